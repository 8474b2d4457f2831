"""Which frames lie where in a journal's stream: a list of pieces, in order.

A piece is what was appended at once: a pack of frames, the parts of one large frame, or some packs without
frames, which prove that their writer leads. Each tells the state of a reader that has come so far, so that a manifest can name its place.

When a leader starts, frames from its first on belong to a group that nobody finished: they are cut off.
Values only; the caller has the lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from fasti.cluster.pack import END_OF_LEADER, PART, Pack, frames_in
from fasti.cluster.pack_reader import PackReader
from fasti.cluster.pointer import Place
from fasti.errors import Corruption
from fasti.storage.frames import StoredFrame

_last = attrgetter("last")
# About what a pack takes beside its body, NATS' own included.
_PACK_BYTES = 256
# Packs without frames are one piece up to so much: a leader that is only read from has many.
_EMPTY_BYTES = 1 << 16


class Piece(NamedTuple):
    """Frames `first` to `last` at the places `begin` to `end`; none if the last is before the first."""

    begin: int
    end: int
    first: int
    last: int
    size_bytes: int
    at_us: int
    place: Place


class Pieces:
    """The pieces after a place; `last` is the last frame, `finished` the last one that ends a group."""

    def __init__(self, place: Place) -> None:
        self.base = place
        self.last = self.finished = place.reader.last_frame
        self.items: list[Piece] = []
        # The parts of a frame that has not come whole.
        self._parts: list[Pack] = []

    def take(self, pack: Pack, reader: PackReader, stream: str) -> None:
        """A pack that counts, with the reader's state after it. Raises `Corruption`."""
        if pack.header.is_start:
            self._cut(pack.header.first_frame)
        packs = [pack]
        if pack.kind == PART:
            packs = self._collect(pack, stream)
            if not packs:
                return
        header = pack.header
        body = b"" if pack.kind == END_OF_LEADER else join_bodies(packs)
        frames = list(frames_in(body, stream, pack.place))
        expected = list(range(header.first_frame, header.last_frame + 1))
        if [frame.sequence for frame in frames] != expected:
            text = f"a pack of {stream} has other frames than its header says"
            raise Corruption(text, file=stream, offset=pack.place)
        self.add(packs, frames, reader)

    def add(self, packs: Sequence[Pack], frames: Sequence[StoredFrame], reader: PackReader) -> None:
        """What was appended at once, and is durable."""
        pack = packs[-1]
        place = Place(pack.place, reader, pack.checksum)
        size_bytes = sum(memoryview(one.body).nbytes + _PACK_BYTES for one in packs)
        header = pack.header
        begin = packs[0].place
        if not frames and self.items and _is_empty(self.items[-1]):
            before = self.items.pop()
            begin, size_bytes = before.begin, before.size_bytes + size_bytes
        self.items.append(
            Piece(begin, pack.place, header.first_frame, header.last_frame, size_bytes, pack.at_us,
                  place)
        )  # fmt: skip
        self.last = max(self.last, header.last_frame)
        for frame in reversed(frames):
            if frame.ends_group:
                self.finished = frame.sequence
                break

    def _collect(self, pack: Pack, stream: str) -> list[Pack]:
        """All parts, when this is the last of them; else none."""
        if pack.part == 0:
            self._parts = []
        if pack.part != len(self._parts):
            text = (
                f"part {len(self._parts)} of frame {pack.header.first_frame} is missing in {stream}"
            )
            raise Corruption(text, file=stream, offset=pack.place)
        self._parts.append(pack)
        if pack.part + 1 < pack.parts:
            return []
        packs, self._parts = self._parts, []
        return packs

    def _cut(self, first: int) -> None:
        self._parts = []
        while self.items and self.items[-1].first >= first and self.items[-1].last >= first:
            self.items.pop()
        for number in range(len(self.items) - 1, -1, -1):
            piece = self.items[number]
            if piece.last < first:
                break
            self.items[number] = piece._replace(last=first - 1)
        self.last = min(self.last, first - 1)
        self.finished = min(self.finished, self.last)

    def forget(self, place: Place) -> None:
        """What comes up to this place is told by a manifest now."""
        count = 0
        while count < len(self.items) and self.items[count].end <= place.sequence:
            count += 1
        if count:
            self.base = place
            del self.items[:count]

    def find(self, frame: int) -> int:
        """The number of the piece with this frame, or of the first one after it."""
        return bisect_left(self.items, frame, key=_last)

    def place_of(self, position: int) -> Place:
        """The last place at which nothing after this frame has been told yet."""
        number = bisect_right(self.items, position, key=_last)
        return self.items[number - 1].place if number else self.base


def _is_empty(piece: Piece) -> bool:
    """Whether it is without frames, and may take one more pack without."""
    return piece.last < piece.first and piece.size_bytes < _EMPTY_BYTES


def join_bodies(packs: Sequence[Pack]) -> memoryview:
    """The bodies of packs one after another."""
    if len(packs) == 1:
        return memoryview(packs[0].body)
    return memoryview(b"".join(memoryview(pack.body) for pack in packs))
