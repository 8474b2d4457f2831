"""The journal: the truth of a shard, a sequence of frames that are appended, synced and replayed.

`Journal` is the seam to the storage engine: files (`FileJournal`), memory (`MemoryJournal`), and
in a cluster a replicated stream.  Its rules hold for all of them, and one conformance suite
checks them:

* Sequences start at 1 and have no holes; the caller numbers the frames.
* A frame counts when it is durable, and a group of frames when its last one is: `replay` shows
  durable, finished groups and nothing else.  A group that was never finished is void; at the
  next opening its sequences are given again.
* Reading one frame by its sequence (`body`, `at_us`) may be slow: recent frames with payloads come
  from memory (payloads.py).
* `StorageFull` means that nothing was written and the journal can still be used.  After any
  other failure of an append or sync the outcome is unknown and the journal is of no more use, but for
  `NoQuorum`: that is waited out.

Threads: `append`, `sync`, `prove`, `sync_end` and `mark` are for one thread at a time, the committer;
`body` and `replay` for any; `trim` for a background thread; the properties for any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from fasti.storage.frames import Frame, Sealed, StoredFrame


class JournalReader(Protocol):
    """What is read of a journal; also of one that is not open for appending."""

    @property
    def epoch(self) -> int:
        """Raised by every opening; frames of this opening carry it."""

    @property
    def first_sequence(self) -> int:
        """The lowest sequence that can still be read; last_sequence + 1 when there is none."""

    @property
    def last_sequence(self) -> int:
        """The last frame appended, 0 in a new journal."""

    @property
    def finished_sequence(self) -> int:
        """The last durable frame that ends a group: `replay` shows all up to it."""

    def replay(self, after: int) -> Iterator[StoredFrame]:
        """The durable frames with a sequence above ``after``, whole groups only, in order.

        Raises `Gone` if some of them were trimmed away, `NotFound` if the journal doesn't reach
        as far as ``after``, `Corruption` when it comes to a damaged frame.
        """

    def body(self, sequence: int) -> memoryview:
        """The body of one frame, whether synced or not; `Gone` if trimmed, `NotFound` if new."""


class Journal(JournalReader, Protocol):
    """An append-only sequence of frames."""

    @property
    def incarnation(self) -> int:
        """Drawn once per journal; a position from another incarnation is gone."""

    @property
    def synced_sequence(self) -> int:
        """The last frame known to be durable."""

    @property
    def is_replicated(self) -> bool:
        """Whether servers keep it that may be away for a while, and another process may take it over.

        Then `NoQuorum` from `sync` or `prove` says that what was appended is still on its way: the next
        call goes on with it. And what this process knows may be out of date, unless `prove` says no.
        """

    @property
    def end_problem(self) -> str | None:
        """Why `sync_end` records nothing any more, until the next segment; None if it does."""

    def append(self, frames: Sequence[Frame], *, use_reserve: bool = False) -> None:
        """Write frames behind the last one; don't count on them before `sync`.

        Raises `StorageFull` with nothing written (``use_reserve`` gets further than that, for
        what frees space), `StorageFailed` when the outcome is unknown, `InvalidArgument` for a
        sequence or group flag out of order.
        """

    def sync(self) -> int:
        """Make all appended frames durable and return `synced_sequence`."""

    def prove(self) -> int:
        """Return when it is certain that no other process had taken over when this was called.

        Costs as much as a sync, and returns how many bytes it took in the journal; nothing where it is
        not replicated, because nobody else can append there. Raises `Fenced`, and what `sync` raises.
        """

    def mark(self) -> bool:
        """Record durably that the last frame was synced; for an idle moment and before closing.

        False when there was nothing to record.  Takes no sequence and never shows in a replay.
        """

    def sync_end(self) -> bool:
        """Make durable how far the journal was synced, so that an end which goes missing is told.

        For a committer that never falls idle: `mark` does it too.  Costs a sync; about each second is often
        enough.  False when there was nothing to record.
        """

    def trim(self, through: int) -> None:
        """Frames up to ``through`` may go; whole segments do."""

    def sealed(self) -> list[Sealed]:
        """What `trim` could take, oldest first: pieces that go as a whole."""

    def at_us(self, sequence: int) -> int:
        """When a frame was decided; `Gone` if trimmed, `NotFound` if new."""

    def close(self) -> None:
        """Let go of everything.  Syncs nothing."""


def prove_nothing() -> int:
    """The `prove` of a journal to which nobody else can append."""
    return 0
