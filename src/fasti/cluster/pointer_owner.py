"""How the leader moves its shard's pointer from manifest to manifest, and what it may delete then.

The pointer is what makes a manifest the one in force: a compare-and-set of a revision. The rules:

- Only the broker that has claimed the pointer under its own epoch changes it, so one of a lower epoch
  can't bring an old manifest back: its revision is old.
- One change is in flight. Refused or unanswered, it is read for: its own value is there: ok; the old
  revision: the same change again, and no other, since the first may still arrive; another's: lost.
- A manifest names blocks of the one before it and blocks of its own epoch, nothing else.
- What a change put out of force (the journal up to the new manifest, blocks that only the old one
  named) may be deleted when the change is known to stand, after `GRACE_S` for those who still read it.
- Leftovers of others are blocks of lower epochs that are not in force; the lower epochs are over, since
  the pointer is claimed. Blocks of the owner's own epoch may be those of a checkpoint under way, and
  those of a higher one belong to the next leader: both are spared.

One thread at a time. The caller does what is asked and brings the result, as for `writer.py`; `FreeSpace`
and `LoseShard` end a change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fasti.cluster.writer_actions import ClaimPointer, LoseShard, PointerHeader, ReadPointer

# A standby that installs the old manifest has so long to read its blocks.
GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The new manifest is in force: after the grace, trim the stream up to here and delete the blocks."""

    trim_to: int
    blocks: frozenset[str]


class PointerOwner:
    """The pointer of one shard, in the hands of its leader, from `Serve` on.

    `blocks` are the names of all blocks that the manifest in force needs, its own among them.
    """

    __slots__ = ("_asked", "_blocks", "_next", "_next_blocks", "_pointer", "lost_to")

    def __init__(self, pointer: PointerHeader, blocks: Iterable[str]) -> None:
        if pointer.revision < 1:
            raise ValueError("a pointer that was never claimed has no owner")
        self._pointer = pointer
        self._blocks = frozenset(blocks)
        # The change in flight.
        self._next: PointerHeader | None = None
        self._next_blocks: frozenset[str] = frozenset()
        self._asked: type[ClaimPointer] | type[ReadPointer] | None = None
        # The epoch that took the pointer; 0: nobody did, as far as is known.
        self.lost_to = 0

    @property
    def pointer(self) -> PointerHeader:
        """The value in force, as far as is known."""
        return self._pointer

    def switch(self, manifest: str, sequence: int, blocks: Iterable[str]) -> ClaimPointer:
        """Put a manifest in force. All its blocks are stored already."""
        if self._next is not None or self.lost_to:
            raise RuntimeError("one change at a time, by the pointer's owner")
        if sequence < self._pointer.sequence:
            raise ValueError("a manifest must not be older than the one in force")
        value = self._pointer._replace(revision=0, manifest=manifest, sequence=sequence)
        self._next, self._next_blocks = value, frozenset(blocks)
        return self._write()

    def changed(self, revision: int) -> FreeSpace:
        """The pointer was written, at this revision."""
        self._check_asked(ClaimPointer)
        return self._settle(revision)

    def refused(self) -> ReadPointer:
        """The change was not taken, it says."""
        self._check_asked(ClaimPointer)
        return self._read()

    def unanswered(self) -> ReadPointer:
        """No answer in time, to the change or to the read."""
        self._check_asked(ClaimPointer, ReadPointer)
        return self._read()

    def pointer_read(self, pointer: PointerHeader | None) -> ClaimPointer | FreeSpace | LoseShard:
        """The pointer's newest value, as its stream's leader has it."""
        self._check_asked(ReadPointer)
        assert self._next is not None
        assert pointer is not None, "a pointer that was claimed is gone"
        if pointer.revision <= self._pointer.revision:
            return self._write()
        if pointer.epoch == self._next.epoch:
            # Only its owner writes under its epoch, and this is all that it has in flight.
            assert pointer.manifest == self._next.manifest, "two owners of one epoch"
            return self._settle(pointer.revision)
        self._asked, self._next = None, None
        self.lost_to = pointer.epoch
        return LoseShard(pointer.epoch, None)

    def leftovers(self, blocks: Iterable[tuple[str, int]]) -> list[str]:
        """Which of these blocks (names and epochs, as the store lists them) nobody needs any more."""
        if self.lost_to:
            return []
        needed = self._blocks | self._next_blocks
        return [
            name for name, epoch in blocks if epoch < self._pointer.epoch and name not in needed
        ]

    def _settle(self, revision: int) -> FreeSpace:
        assert self._next is not None
        gone = self._blocks - self._next_blocks
        self._pointer = self._next._replace(revision=revision)
        self._blocks, self._next, self._next_blocks = self._next_blocks, None, frozenset()
        self._asked = None
        return FreeSpace(self._pointer.sequence, gone)

    def _write(self) -> ClaimPointer:
        assert self._next is not None
        self._asked = ClaimPointer
        return ClaimPointer(self._pointer.revision, self._next)

    def _read(self) -> ReadPointer:
        self._asked = ReadPointer
        return ReadPointer()

    def _check_asked(self, *kinds: type[ClaimPointer] | type[ReadPointer]) -> None:
        if self._asked is None or self._asked not in kinds:
            raise RuntimeError("this is no result of what was asked for")
