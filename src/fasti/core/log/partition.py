"""One partition of a log: which rows it has, where they lie, and in which segments.

Offsets count from 0 and have no holes: rows come in *pieces*, each of them side by side in one
journal frame or, once a checkpoint has moved them, in one log block. A piece costs four numbers,
however many rows it has; where a frame's rows went to several partitions, their places in the
frame are kept too (two bytes a row, until the checkpoint).

Segments, by which retention goes, stand in segments.py. The sequencer's thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import every
from fasti.core.log.commands import LogPiece
from fasti.core.log.segments import Mark, Segments
from fasti.core.rows.location import ROW_BITS, in_block, in_frame
from fasti.model import TopicSettings

Int64s = NDArray[np.int64]
UInt16s = NDArray[np.uint16]
# (first offset, rows, block number, time of the first row, time of the last row)
WrittenBlock = tuple[int, int, int, int, int]

PIECES_MAX = 1024
# The objects that a partition is made of, about, before it has many pieces.
LOG_PARTITION_BYTES = 3 << 10
# What a piece takes at most, with room for more of them and its share of a segment; and each row of
# one that is not a range of its frame.
APPENDED_BYTES = 256
SCATTERED_ROW_BYTES = 2
_SEGMENT_BYTES = 256
# What `capture` says of a partition that never had a row.
NO_ROWS: dict[str, Any] = {"earliest": 0, "next": 0, "segments": []}
_COLUMNS = ("first", "location", "from_us", "to_us")


class LogPartition:
    """Rows from `earliest` up to, not including, `next_offset`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.earliest = 0
        self.next_offset = 0
        # Rows below lie in blocks (or are gone), the others in frames.
        self.written_until = 0
        self.segments = Segments()
        # What is not trimmed of the columns is [begin, end).
        self._columns = {name: np.zeros(16, dtype=np.int64) for name in _COLUMNS}
        self._begin = self._end = 0
        # What it took when it was last counted into the memory budget; and its share of its log's
        # sums: where it begins and ends, and its bytes.
        self.counted_bytes = 0
        self.counted = 0, 0, 0
        self._scattered_rows = 0
        # By first offset, for pieces whose rows are not a range of their frame.
        self._scattered: dict[int, UInt16s] = {}

    def __len__(self) -> int:
        return self.next_offset - self.earliest

    @property
    def size_bytes(self) -> int:
        """What it takes beside its objects: pieces and segments."""
        pieces = len(_COLUMNS) * self._columns["first"].nbytes
        scattered = self._scattered_rows * SCATTERED_ROW_BYTES + len(self._scattered) * 256
        return pieces + scattered + len(self.segments) * _SEGMENT_BYTES

    def _unscatter(self, first: int) -> None:
        """A piece is gone."""
        rows = self._scattered.pop(first, None)
        if rows is not None:
            self._scattered_rows -= len(rows)

    # Appending

    def append(
        self, frame: int, rows: Int64s, at_us: int, size_bytes: int, settings: TopicSettings
    ) -> None:
        """Rows of a frame are the next offsets."""
        if not is_range(rows):
            self._scattered[self.next_offset] = rows.astype(np.uint16)
            self._scattered_rows += len(rows)
        self.segments.grow(self.next_offset, at_us, size_bytes, settings)
        self._add_piece(self.next_offset, int(in_frame(frame, int(rows[0]))), at_us, at_us)
        self.next_offset += len(rows)

    def mark(self) -> tuple[int, Mark]:
        """What `restore_mark` needs to take the next append back."""
        return self.next_offset, self.segments.mark()

    def restore_mark(self, mark: tuple[int, Mark]) -> None:
        """The append after `mark` never was."""
        self.next_offset, segments = mark
        self._end -= 1
        self._unscatter(self.next_offset)
        self.segments.restore_mark(segments)

    # Trimming

    def trim(self, first_offset: int) -> int:
        """The log begins here now. Returns about how many bytes went."""
        assert self.earliest <= first_offset <= self.next_offset, "a log is trimmed within itself"
        self.earliest = first_offset
        self._trim_pieces(first_offset)
        return self.segments.trim(first_offset, self.next_offset)

    def _trim_pieces(self, first_offset: int) -> None:
        if first_offset == self.next_offset:
            gone = self._end
        else:
            gone = self._begin + self._piece_of(first_offset)
        if self._scattered:
            for first in self._columns["first"][self._begin : gone].tolist():
                self._unscatter(first)
        self._begin = gone
        if self._begin == self._end:
            self._begin = self._end = 0

    def too_old(self, now_us: int, settings: TopicSettings) -> int:
        """The offset that the log is to begin with, by age."""
        return self.segments.too_old(self.earliest, self.next_offset, now_us, settings)

    def too_large(self, settings: TopicSettings) -> int:
        """The offset that the log is to begin with, by bytes."""
        return self.segments.too_large(self.earliest, settings)

    # Where rows lie

    def locate(self, offset: int, count: int) -> list[LogPiece]:
        """Pieces, in order, that hold up to `count` rows from an offset on (1,024 of them)."""
        end = min(offset + count, self.next_offset)
        if not self.earliest <= offset < end:
            return []
        place = self._piece_of(offset)
        upto = min(self._piece_of(end - 1) + 1, place + PIECES_MAX)
        columns = [
            self._view(name)[place:upto].tolist() for name in ("first", "location", "from_us")
        ]
        ends = [*columns[0][1:], self._piece_end(upto - 1)]
        return [
            _clipped(first, location, at_us, self._scattered.get(first), offset, min(last, end))
            for first, location, at_us, last in zip(*columns, ends, strict=True)
        ]

    def locations_of(self, offsets: Int64s) -> Int64s:
        """Where the payload of each of these rows lies; all of them must be there."""
        places = self._pieces_of(offsets)
        found: Int64s = self._view("location").take(places)
        found += offsets
        found -= self._view("first").take(places)
        if self._scattered:
            changes = np.flatnonzero(places[1:] != places[:-1]) + 1
            for begin, end in pairwise([0, *changes.tolist(), len(places)]):
                self._place_scattered(int(places[begin]), offsets[begin:end], found[begin:end])
        return found

    def _place_scattered(self, place: int, offsets: Int64s, found: Int64s) -> None:
        """Puts right where rows of one piece lie, if they are not a range of their frame."""
        first = int(self._view("first")[place])
        rows = self._scattered.get(first)
        if rows is not None:
            frame = self._view("location")[place] >> ROW_BITS << ROW_BITS
            found[:] = rows.take(offsets - first)
            found |= frame

    def times_of(self, offsets: Int64s) -> Int64s:
        """When each row was appended; for rows in a block, when the block's first one was."""
        return self._view("from_us").take(self._pieces_of(offsets))

    def find_time(self, time_us: int) -> LogPiece | None:
        """The piece with the first row that came at the time or later; None if there is none."""
        place = int(np.searchsorted(self._view("to_us"), time_us))
        if place == self._end - self._begin:
            return None
        first = max(int(self._view("first")[place]), self.earliest)
        return self.locate(first, self._piece_end(place) - first)[0]

    def _view(self, name: str) -> Int64s:
        return self._columns[name][self._begin : self._end]

    def _piece_of(self, offset: int) -> int:
        return int(np.searchsorted(self._view("first"), offset, side="right")) - 1

    def _piece_end(self, place: int) -> int:
        firsts = self._view("first")
        return int(firsts[place + 1]) if place + 1 < len(firsts) else self.next_offset

    def _pieces_of(self, offsets: Int64s) -> NDArray[np.intp]:
        """The piece of each row; new rows, which follow one another, are not looked up each."""
        firsts = self._view("first")
        if not len(offsets) or not is_range(offsets):
            return np.searchsorted(firsts, offsets, side="right") - 1
        begin, end = int(offsets[0]), int(offsets[-1]) + 1
        first, last = self._piece_of(begin), self._piece_of(end - 1)
        bounds = firsts[first : last + 2].copy()
        bounds[0] = begin
        sizes = np.diff(bounds[: last - first + 1], append=end)
        return np.repeat(np.arange(first, last + 1), sizes)

    def _add_piece(self, *values: int) -> None:
        if self._end == len(self._columns["first"]):
            self._make_room()
        for name, value in zip(_COLUMNS, values, strict=True):
            self._columns[name][self._end] = value
        self._end += 1

    def _make_room(self) -> None:
        """Twice what is in use; what was trimmed makes room too."""
        used = self._end - self._begin
        for name in _COLUMNS:
            grown = np.zeros(max(16, 2 * used), dtype=np.int64)
            grown[:used] = self._view(name)
            self._columns[name] = grown
        self._begin, self._end = 0, used

    # Checkpoints

    def tail(self) -> LogTail | None:
        """What lies in frames still, the last rows of all; None if there is nothing."""
        if max(self.written_until, self.earliest) == self.next_offset:
            return None
        in_blocks = int(np.searchsorted(self._view("first"), self.written_until))
        return LogTail(
            self.earliest,
            self.next_offset,
            self._view("first")[in_blocks:].copy(),
            self._view("location")[in_blocks:].copy(),
            self._view("from_us")[in_blocks:].copy(),
            dict(self._scattered),
        )

    def install(self, from_offset: int, upto_offset: int, blocks: list[WrittenBlock]) -> None:
        """A checkpoint has rows in blocks now, the last but some that came since."""
        firsts = self._view("first")
        begin = 0
        if from_offset > self.earliest:
            begin = int(np.searchsorted(firsts, from_offset))
        end = int(np.searchsorted(firsts, upto_offset))
        for first in firsts[begin:end].tolist():
            self._unscatter(first)
        alive = [block for block in blocks if block[0] + block[1] > self.earliest]
        written = dict(zip(_COLUMNS, _columns_of(alive), strict=True))
        for name in _COLUMNS:
            old = self._view(name)
            self._columns[name] = np.concatenate([old[:begin], written[name], old[end:]])
        self._begin, self._end = 0, len(self._columns["first"])
        self.written_until = upto_offset

    def capture(self) -> dict[str, Any]:
        """Plain values: all but where rows lie."""
        segments = self.segments.capture()
        return {"earliest": self.earliest, "next": self.next_offset, "segments": segments}

    def restore(self, described: dict[str, Any]) -> None:
        """Back from `capture`; `restore_blocks` follows."""
        self.earliest, self.next_offset = described["earliest"], described["next"]
        self.segments.restore(described["segments"])

    def restore_blocks(self, blocks: list[WrittenBlock]) -> None:
        """Where all rows lie, after a start. Raises AssertionError if some have no place."""
        reached = blocks[0][0] if blocks else self.earliest
        assert reached <= self.earliest, f"rows {self.earliest} to {reached - 1} are in no block"
        for first, rows, *_ in blocks:
            assert first == reached, f"blocks end at {reached}, and go on at {first}"
            reached += rows
        assert reached == self.next_offset, f"blocks end at {reached}, not {self.next_offset}"
        self.install(self.earliest, self.next_offset, blocks)


@dataclass(slots=True)
class LogTail:
    """Rows that a checkpoint is to write: a copy that nobody changes. Any thread."""

    earliest: int
    next_offset: int
    firsts: Int64s
    locations: Int64s
    times_us: Int64s
    scattered: dict[int, UInt16s]

    @property
    def first_offset(self) -> int:
        """The first row that is to be written."""
        return max(self.earliest, int(self.firsts[0]))

    def pieces(self) -> Iterator[LogPiece]:
        """In order, without what was trimmed."""
        ends = np.append(self.firsts[1:], self.next_offset)
        columns = (self.firsts, self.locations, self.times_us, ends)
        for begin in range(0, len(self.firsts), PIECES_MAX):
            part = [column[begin : begin + PIECES_MAX].tolist() for column in columns]
            for first, location, at_us, end in zip(*part, strict=True):
                rows = self.scattered.get(first)
                yield _clipped(first, location, at_us, rows, self.earliest, end)


def _clipped(
    first: int, location: int, at_us: int, rows: UInt16s | None, offset: int, end: int
) -> LogPiece:
    """Of a piece, the rows from an offset up to, not including, another."""
    begin = max(first, offset)
    if rows is None:
        return LogPiece(begin, end - begin, location + begin - first, at_us)
    rows = rows[begin - first : end - first]
    frame = location >> ROW_BITS << ROW_BITS
    return LogPiece(begin, end - begin, frame | int(rows[0]), at_us, rows)


def is_range(rows: Int64s) -> bool:
    """Whether rows count up by one."""
    count = len(rows)
    return count == 1 or (
        int(rows[-1]) - int(rows[0]) == count - 1 and every(rows[1:] - rows[:-1] == 1)
    )


def _columns_of(blocks: list[WrittenBlock]) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    numbers = np.array(blocks, dtype=np.int64).reshape(len(blocks), 5)
    return numbers[:, 0], in_block(0, numbers[:, 2] << ROW_BITS), numbers[:, 3], numbers[:, 4]
