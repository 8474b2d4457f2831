"""The dead rows of one group on one partition of a log.

Columns in the order in which rows died, so the oldest stand first and are the first to be
forgotten, and a replay forgets the same ones. A row that lives again or is purged leaves a gap,
which goes when half of the columns are gaps. To find rows by offset, positions are kept sorted by
offset; a few that died since are searched beside them.

The sequencer's thread only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

DEAD_MAX = 1_000_000
# So many may have died since the positions were sorted.
_UNSORTED_MAX = 4_096
_GAPS_MIN = 1_024
_COLUMNS: dict[str, type[np.generic]] = {
    "offset": np.int64,
    "at_us": np.int64,
    "reason": np.int32,
    "attempts": np.uint16,
    "alive": np.bool_,
}
_ROW_BYTES = sum(np.dtype(kind).itemsize for kind in _COLUMNS.values())
KEPT = ("offset", "at_us", "reason", "attempts")
_NONE = np.zeros(0, dtype=np.int64)


class Dead:
    """Dead rows, found by offset. `alive` marks entries that count, so to speak."""

    __slots__ = ("_columns", "_end", "_order", "_sorted_until", "count", "forgotten")

    def __init__(self) -> None:
        self._columns: dict[str, NDArray[Any]] = {}
        self._end = 0
        self.count = 0
        # How many went by age or with their rows, not by anybody's word.
        self.forgotten = 0
        self._order: Int64s = _NONE
        self._sorted_until = 0

    @property
    def size_bytes(self) -> int:
        """What the columns take."""
        capacity = len(self._columns["offset"]) if self._columns else 0
        return capacity * _ROW_BYTES + self._order.nbytes

    def add(self, offsets: Int64s, reason: int, attempts: NDArray[np.uint16], at_us: int) -> None:
        """Rows died. None of them is here."""
        end = self._end + len(offsets)
        self._make_room(end)
        rows = slice(self._end, end)
        columns = self._columns
        columns["offset"][rows] = offsets
        columns["reason"][rows] = reason
        columns["attempts"][rows] = attempts
        columns["at_us"][rows] = at_us
        columns["alive"][rows] = True
        self._end = end
        self.count += len(offsets)

    def take_back(self, count: int) -> None:
        """The last `count` that were added never died."""
        self._end -= count
        self.count -= count
        if self._sorted_until > self._end:
            self._order, self._sorted_until = _NONE, 0

    def remove(self, positions: Int64s) -> None:
        """Rows are dead no more."""
        self._columns["alive"][positions] = False
        self.count -= len(positions)

    def restore(self, positions: Int64s) -> None:
        """Takes `remove` back."""
        self._columns["alive"][positions] = True
        self.count += len(positions)
        # They may have been sorted meanwhile, without these.
        self._order, self._sorted_until = _NONE, 0

    def find(self, offsets: Int64s) -> Int64s:
        """The position of each row; -1 for those that are not dead."""
        found = np.full(len(offsets), -1, dtype=np.int64)
        if not self.count:
            return found
        recent = self._recent()
        for order in (self._order, recent):
            if len(order):
                keys = self._columns["offset"].take(order)
                places = np.minimum(np.searchsorted(keys, offsets), len(order) - 1)
                positions = order.take(places)
                here = (keys.take(places) == offsets) & self._columns["alive"].take(positions)
                found[here] = positions[here]
        return found

    def after(self, offset: int, limit: int) -> Int64s:
        """Positions of up to `limit` rows above an offset, in the order of their offsets."""
        if not self.count:
            return _NONE
        found = []
        recent = self._recent()
        for order in (self._order, recent):
            keys = self._columns["offset"].take(order)
            begin = int(np.searchsorted(keys, offset, side="right"))
            found.append(_first_alive(order[begin:], self._columns["alive"], limit))
        positions = np.concatenate(found)
        by_offset = np.argsort(self._columns["offset"].take(positions), kind="stable")
        return positions[by_offset[:limit]]

    def take(self, name: str, positions: Int64s) -> NDArray[Any]:
        """A column's values."""
        if not len(positions):
            return np.zeros(0, dtype=_COLUMNS[name])
        return self._columns[name].take(positions)

    def where(self, begin: int, end: int) -> Int64s:
        """Positions of rows from one offset up to, not including, another."""
        if not self.count:
            return _NONE
        offsets = self._columns["offset"][: self._end]
        chosen = self._columns["alive"][: self._end] & (offsets >= begin) & (offsets < end)
        return np.flatnonzero(chosen)

    def too_many(self) -> Int64s:
        """Positions of the oldest ones beyond the most that are kept."""
        if self.count <= DEAD_MAX:
            return _NONE
        return np.flatnonzero(self._columns["alive"][: self._end])[: self.count - DEAD_MAX]

    def tidy(self) -> None:
        """Closes gaps, once they are many. Positions change."""
        if self._end <= 2 * self.count + _GAPS_MIN:
            return
        kept = np.flatnonzero(self._columns["alive"][: self._end])
        for name, values in self._columns.items():
            self._columns[name] = values[kept]
        self._end = len(kept)
        self._order, self._sorted_until = _NONE, 0

    def columns(self) -> dict[str, NDArray[Any]]:
        """Copies of what counts, for a checkpoint."""
        if not self.count:
            return {name: np.zeros(0, dtype=_COLUMNS[name]) for name in KEPT}
        kept = np.flatnonzero(self._columns["alive"][: self._end])
        return {name: self._columns[name].take(kept) for name in KEPT}

    def fill(self, columns: dict[str, NDArray[Any]]) -> None:
        """Back from `columns`, into an empty one."""
        self._end = self.count = len(columns["offset"])
        if self.count:
            self._columns = {
                name: columns[name].astype(kind)
                for name, kind in _COLUMNS.items()
                if name != "alive"
            }
            self._columns["alive"] = np.ones(self.count, dtype=np.bool_)

    def _recent(self) -> Int64s:
        """Positions of those that died since the others were sorted, by offset."""
        if self._end - self._sorted_until > _UNSORTED_MAX:
            self._order, self._sorted_until = self._sorted(0), self._end
        return self._sorted(self._sorted_until)

    def _sorted(self, begin: int) -> Int64s:
        positions = begin + np.flatnonzero(self._columns["alive"][begin : self._end])
        by_offset = np.argsort(self._columns["offset"].take(positions), kind="stable")
        return positions[by_offset]

    def _make_room(self, end: int) -> None:
        capacity = len(self._columns["offset"]) if self._columns else 0
        if end <= capacity:
            return
        wanted = max(16, 2 * capacity, end)
        for name, kind in _COLUMNS.items():
            grown = np.zeros(wanted, dtype=kind)
            if self._end:
                grown[: self._end] = self._columns[name][: self._end]
            self._columns[name] = grown


def _first_alive(order: Int64s, alive: Bools, limit: int) -> Int64s:
    """The first `limit` positions that count; gaps are at most half of all."""
    begin, step = 0, 2 * limit + 64
    found: list[Int64s] = []
    missing = limit
    while missing > 0 and begin < len(order):
        piece = order[begin : begin + step]
        good = piece[alive.take(piece)][:missing]
        found.append(good)
        missing -= len(good)
        begin += step
    return np.concatenate(found) if found else _NONE
