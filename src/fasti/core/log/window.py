"""The window of a group on a partition of a log: what became of the rows that are out.

Everything below `committed` is finished for the group: acked, or dead. `next` is the next row that
was never handed out. Between the two lies the window: a state, attempts, a lease and a due time for
each row, in columns whose index is the offset less a base. A window has at most `WINDOW_ROWS` rows;
when it is full, nothing new is handed out until its first row is finished.

A dead row that was made to live again is a *stray*, wherever `committed` is by then: strays have
slots of their own at the front of the same columns, so that one index names any row. Slot 0 is
nobody's, and its state is `NOWHERE`. Columns are laid out anew when they are full, twice as long as
what is out, and when nothing is out and they are long.

The sequencer's thread only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import every, some
from fasti.core.rows.memory import Undo

Int64s = NDArray[np.int64]
# Which slots of the columns: a range wherever it can be one.
Slots = Int64s | slice

WINDOW_ROWS = 1 << 20

WAITING, LEASED, ACKED, DEAD, NOWHERE = (np.uint8(code) for code in range(5))
_ROWS_MIN = 256
# Columns longer than this are given back when nothing is out.
_ROWS_KEPT = 1_024
_SCANNED_ROWS = 4_096
_COLUMNS: dict[str, type[np.generic]] = {
    "state": np.uint8,
    "attempts": np.uint16,
    "lease": np.uint32,
    # When a row that was given back may go out again. Says nothing about others.
    "due": np.int64,
}
# Nobody's slot alone: all windows without rows share it.
_NOTHING = {
    name: np.full(1, NOWHERE if name == "state" else 0, dtype=kind)
    for name, kind in _COLUMNS.items()
}
for _column in _NOTHING.values():
    _column.flags.writeable = False
_ROW_BYTES = sum(np.dtype(kind).itemsize for kind in _COLUMNS.values())


class Window:
    """Columns of rows that are out, and of strays."""

    __slots__ = (
        "_base",
        "_room",
        "attempts",
        "committed",
        "due",
        "free_strays",
        "lease",
        "leased",
        "next",
        "open",
        "state",
        "strays",
    )

    state: NDArray[np.uint8]
    attempts: NDArray[np.uint16]
    lease: NDArray[np.uint32]
    due: Int64s

    def __init__(self, offset: int) -> None:
        self.clear(offset)

    def clear(self, offset: int) -> None:
        """Nothing is out, and nothing was: it begins here."""
        self.committed = self.next = self._base = offset
        for name, column in _NOTHING.items():
            setattr(self, name, column)
        # Slots of strays, by offset; the window begins at slot `_room`.
        self.strays: dict[int, int] = {}
        self.free_strays: list[int] = []
        self._room = 1
        # Unfinished rows of the window, and leased rows of the window and among strays.
        self.open = 0
        self.leased = 0

    # Looking

    @property
    def room(self) -> int:
        """How many rows more the window can hold."""
        return WINDOW_ROWS - (self.next - self.committed)

    @property
    def size_bytes(self) -> int:
        """What the columns take."""
        return (len(self.state) - 1) * _ROW_BYTES

    @property
    def rows(self) -> slice:
        """The slots of the window."""
        shift = self._room - self._base
        return slice(self.committed + shift, self.next + shift)

    def slots(self, offsets: Int64s) -> Slots:
        """Where rows lie in the columns; slot 0 for those that are finished or not out yet."""
        first, last = int(offsets[0]), int(offsets[-1])
        shift = self._room - self._base
        if self.committed <= first and last < self.next and is_range(offsets):
            rows = slice(first + shift, last + shift + 1)
            if not self.strays or not some(self.state[rows] == DEAD):
                return rows
        here = (offsets >= self.committed) & (offsets < self.next)
        slots: Int64s = np.where(here, offsets + shift, 0)
        if self.strays:
            self._put_strays(offsets, slots)
        return slots

    def is_stray(self, slots: Int64s) -> NDArray[np.bool_]:
        """Which slots are those of strays."""
        return slots < self._room

    def _put_strays(self, offsets: Int64s, slots: Int64s) -> None:
        """The slots of strays among rows. In the window, if they are there, they are dead."""
        states = self.state.take(slots)
        perhaps = np.flatnonzero((states == NOWHERE) | (states == DEAD))
        for row, offset in zip(perhaps.tolist(), offsets[perhaps].tolist(), strict=True):
            stray = self.strays.get(offset)
            if stray is not None:
                slots[row] = stray

    # Changing

    def reach(self, end: int) -> None:
        """The window ends here now; its new rows wait."""
        assert end - self.committed <= WINDOW_ROWS, "the window is full"
        if end - self._base + self._room > len(self.state):
            self._lay_out(self._room, max(_ROWS_MIN, 2 * (end - self.committed)))
        shift = self._room - self._base
        rows = slice(self.next + shift, end + shift)
        self.state[rows] = WAITING
        self.attempts[rows] = 0
        self.lease[rows] = 0
        self.open += end - self.next
        self.next = end

    def advance(self) -> None:
        """Moves `committed` to the first row that is not finished."""
        if not self.open:
            self.committed = self.next
            return
        shift = self._room - self._base
        begin, end, rows = self.committed + shift, self.next + shift, _SCANNED_ROWS
        while begin < end:
            unfinished = self.state[begin : min(begin + rows, end)] < ACKED
            first = int(unfinished.argmax())
            if unfinished[first]:
                begin += first
                break
            begin += len(unfinished)
            rows *= 2
        self.committed = begin - shift

    def drop(self, first: int) -> tuple[Int64s, int]:
        """Rows below go, finished or not: the leases that they had, and how many were unfinished."""
        shift, end = self._room - self._base, min(first, self.next)
        rows = slice(self.committed + shift, end + shift)
        states = self.state[rows]
        held = self.lease[rows][states == LEASED].astype(np.int64)
        lost = int(np.count_nonzero(states < ACKED))
        self.open -= lost
        self.leased -= len(held)
        self.committed = first
        if self.next < first:
            self.next = self._base = first
        self.advance()
        return held, lost + first - end

    def add_strays(self, offsets: Int64s) -> None:
        """Rows that were dead wait, with no attempts counted."""
        missing = len(offsets) - len(self.free_strays)
        if missing > 0:
            used = self._room
            self._lay_out(used + max(missing, used), len(self.state) - used)
            self.free_strays += range(used, self._room)
        for offset in offsets.tolist():
            slot = self.free_strays.pop()
            self.strays[offset] = slot
            self.state[slot], self.attempts[slot], self.lease[slot] = WAITING, 0, 0

    def end_strays(self, offsets: Int64s, undo: Undo) -> None:
        """Strays among these rows are finished."""
        ended = {
            offset: self.strays.pop(offset) for offset in offsets.tolist() if offset in self.strays
        }
        self.free_strays += ended.values()

        def take_back() -> None:
            del self.free_strays[len(self.free_strays) - len(ended) :]
            self.strays.update(ended)

        if ended:
            undo.note(take_back)

    def drop_strays(self, below: int) -> tuple[Int64s, int]:
        """Strays below go: the leases that they had, and how many there were."""
        gone = [offset for offset in self.strays if offset < below]
        slots = np.array([self.strays.pop(offset) for offset in gone], dtype=np.int64)
        self.free_strays += slots.tolist()
        held = self.lease.take(slots)[self.state.take(slots) == LEASED].astype(np.int64)
        self.leased -= len(held)
        return held, len(gone)

    def note(self, slots: Slots, undo: Undo) -> None:
        """Notes how these rows are, should a transaction be void."""
        before = [getattr(self, name)[slots].copy() for name in _COLUMNS]
        numbers = self.committed, self.open, self.leased

        def take_back() -> None:
            self.committed, self.open, self.leased = numbers
            for name, values in zip(_COLUMNS, before, strict=True):
                getattr(self, name)[slots] = values

        undo.note(take_back)

    # Columns

    def give_memory_back(self) -> None:
        """Columns that were long are short again, if nothing is out. Slots change."""
        if not self.open and not self.strays and len(self.state) > _ROWS_KEPT:
            self.free_strays = []
            self._lay_out(1, _ROWS_MIN)

    def _lay_out(self, strays: int, rows: int) -> None:
        """New columns with room for so many strays and rows; the window begins at its base."""
        shift = self._room - self._base
        window = slice(self.committed + shift, self.next + shift)
        live = self.next - self.committed
        for name, kind in _COLUMNS.items():
            old, new = getattr(self, name), np.zeros(strays + max(rows, live), dtype=kind)
            kept = min(strays, self._room)
            new[:kept] = old[:kept]
            new[strays : strays + live] = old[window]
            setattr(self, name, new)
        self._room, self._base = strays, self.committed


def is_range(offsets: Int64s) -> bool:
    """Whether offsets count up by one."""
    count = len(offsets)
    return count == 1 or (
        int(offsets[-1]) - int(offsets[0]) == count - 1 and every(offsets[1:] - offsets[:-1] == 1)
    )
