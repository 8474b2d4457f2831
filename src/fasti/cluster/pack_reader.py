"""Which packs of a journal stream count, for everyone who reads it.

The rules, alike for a standby, a candidate and a leader that meets what it did not write:

- `LeaderStarted` counts if its epoch is higher than that of the last one that counted. Else it is void.
- Any other pack counts if the last `LeaderStarted` that counted is its writer's, by epoch and nonce.
  A pack of an older writer, or of a writer that never started, is void: it took a place in the stream
  and nothing else. With one pack in flight per writer it can't come about; the rule costs nothing.
- `LeaderStarted` names the first frame that its leader will write. Frames from there on that came
  before it belong to a group that was never finished: they are void, and the reader drops them.
- `LeaderYielded` ends its writer's leadership: what it might write behind it is void.
- A pack of a newer writer whose `LeaderStarted` was not there, or frames after a gap, show a hole:
  the reader has missed something. Nothing is ever skipped to go on.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# Stands for a leader that has yielded: no writer has this nonce.
YIELDED = -1


class PackHeader(NamedTuple):
    """What leadership needs to know of a pack.

    The `nonce` is drawn once per life of a broker's process. `LeaderStarted` (`is_start`) has no frames:
    its `first_frame` is the one that its leader will write next, its `last_frame` the one before. An
    empty pack, which only proves that its writer leads, is alike, and so is `LeaderYielded` (`is_end`). A part of a frame that is too large
    for one pack has the frame's number as first and last.
    """

    epoch: int
    broker: str
    nonce: int
    first_frame: int
    last_frame: int
    is_start: bool = False
    is_end: bool = False

    def has_writer_of(self, other: PackHeader) -> bool:
        """Whether both are of one leadership. With the place in the stream, that identifies a pack."""
        return (self.epoch, self.nonce) == (other.epoch, other.nonce)


class PackVerdict(NamedTuple):
    """What a reader does with a pack: leave a `void` one out, stop at a `hole`, else apply the frames.

    `drop_from`: frames from there on that were held back as an unfinished group are dropped first.
    """

    what: Literal["counts", "void", "hole"]
    drop_from: int | None = None


class PackReader(NamedTuple):
    """How far a reader has come. Immutable: `take` gives the next one.

    It begins with nothing, or with what a manifest says of its place in the stream. There, a nonce of 0
    stands for a leader of which only the epoch is known.
    """

    epoch: int = 0
    nonce: int = 0
    last_frame: int = 0

    def take(self, header: PackHeader) -> tuple[PackVerdict, PackReader]:
        """What the pack at the next place of the stream is, and how far the reader is with it."""
        if header.is_start:
            return self._take_start(header)
        if header.epoch > self.epoch:
            return PackVerdict("hole"), self
        if header.epoch < self.epoch or self.nonce not in (0, header.nonce):
            return PackVerdict("void"), self
        if header.first_frame > self.last_frame + 1:
            return PackVerdict("hole"), self
        nonce = YIELDED if header.is_end else header.nonce
        return PackVerdict("counts"), PackReader(header.epoch, nonce, header.last_frame)

    def _take_start(self, header: PackHeader) -> tuple[PackVerdict, PackReader]:
        if header.epoch <= self.epoch:
            return PackVerdict("void"), self
        if header.first_frame > self.last_frame + 1:
            return PackVerdict("hole"), self
        drop_from = header.first_frame if header.first_frame <= self.last_frame else None
        reader = PackReader(header.epoch, header.nonce, header.first_frame - 1)
        return PackVerdict("counts", drop_from), reader
