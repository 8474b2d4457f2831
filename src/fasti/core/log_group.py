"""A consumer group's place in one partition of a log.

Everything below `committed` is finished for the group: acked, or dead. `next` is the next row that
was never handed out. Between the two lies the *window*: a state, attempts and a lease for each row,
in columns whose index is the offset less a base. A window has at most `WINDOW_ROWS` rows; when it
is full, nothing new is handed out until its first row is finished.

Rows that were given back stand in `again` with the time at which they may go out. A dead row counts
as finished, so that `committed` always moves on; when it is made to live again it is a *stray*,
wherever `committed` is by then: strays have slots of their own at the front of the same columns, so
that one index names any row. Slot 0 is nobody's, and its state is `NOWHERE`.

Rows that retention took before they were finished are counted in `behind`: the group's consumers
are told, and get nothing until the group is set anew.

All of it is changed only by events, except that the columns are laid out anew when they are full.
The sequencer's thread only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.log_dead import Dead
from fasti.core.log_order import Order
from fasti.core.names import Names
from fasti.core.pairs import sort_pairs
from fasti.core.ready import Ready
from fasti.core.reductions import every, highest, lowest, some
from fasti.core.undo import Undo
from fasti.core.work import repeated

Int64s = NDArray[np.int64]
# Which slots of the columns: a range wherever it can be one.
Slots = Int64s | slice

WINDOW_ROWS = 1 << 20
# Between topics' partitions and groups in the lease table's `partition`.
GROUP_SHIFT = 12

WAITING, LEASED, ACKED, DEAD, NOWHERE = (np.uint8(code) for code in range(5))
_ROWS_MIN = 4_096
# Columns longer than this are given back when nothing is out.
_ROWS_KEPT = 65_536
_ATTEMPTS_MAX = 65_534
_SCANNED_ROWS = 4_096
_COLUMNS: dict[str, type[np.generic]] = {
    "state": np.uint8,
    "attempts": np.uint16,
    "lease": np.uint32,
    # When a row that was given back may go out again. Says nothing about others.
    "due": np.int64,
}
_ROW_BYTES = sum(np.dtype(kind).itemsize for kind in _COLUMNS.values())
_NONE = np.zeros(0, dtype=np.int64)


class GroupPartition:
    """What became of each row, as far as one group is concerned."""

    __slots__ = (
        "_base",
        "_free_strays",
        "_room",
        "again",
        "attempts",
        "behind",
        "committed",
        "dead",
        "due",
        "lease",
        "leased",
        "next",
        "odd_turn",
        "open",
        "order",
        "state",
        "strays",
    )

    def __init__(self, offset: int, ordered: bool = False) -> None:
        self.committed = self.next = self._base = offset
        self.state = np.full(1, NOWHERE, dtype=np.uint8)
        self.attempts = np.zeros(1, dtype=np.uint16)
        self.lease = np.zeros(1, dtype=np.uint32)
        self.due = np.zeros(1, dtype=np.int64)
        # Slots of strays, by offset; the window begins at slot `_room`.
        self.strays: dict[int, int] = {}
        self._free_strays: list[int] = []
        self._room = 1
        # Unfinished rows of the window, and leased rows of the window and among strays.
        self.open = 0
        self.leased = 0
        self.again = Ready()
        self.dead = Dead()
        self.behind = 0
        self.order = Order(offset) if ordered else None
        # Whose turn it is when only one row can go: no durable state.
        self.odd_turn = False

    # Looking

    @property
    def waiting(self) -> int:
        """How many rows were handed out, are not finished, and nobody has."""
        return self.open + len(self.strays) - self.leased

    @property
    def room(self) -> int:
        """How many rows more the window can hold."""
        return WINDOW_ROWS - (self.next - self.committed)

    @property
    def size_bytes(self) -> int:
        """What the columns take."""
        return (len(self.state) - 1) * _ROW_BYTES

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

    def _put_strays(self, offsets: Int64s, slots: Int64s) -> None:
        """The slots of strays among rows. In the window, if they are there, they are dead."""
        states = self.state.take(slots)
        perhaps = np.flatnonzero((states == NOWHERE) | (states == DEAD))
        for row, offset in zip(perhaps.tolist(), offsets[perhaps].tolist(), strict=True):
            stray = self.strays.get(offset)
            if stray is not None:
                slots[row] = stray

    def take_again(self, count: int, now_us: int) -> Int64s:
        """Removes and returns up to `count` rows whose time to go out again has come."""
        found: list[Int64s] = []
        while count > 0:
            due_us, offsets = self.again.take(count, now_us)
            if not len(offsets):
                break
            offsets = offsets[self._is_waiting(due_us, offsets)]
            found.append(offsets)
            count -= len(offsets)
        offsets = np.concatenate(found) if found else _NONE
        if repeated(offsets) is not None:
            offsets = offsets[np.sort(np.unique(offsets, return_index=True)[1])]
        return offsets

    def _is_waiting(self, due_us: Int64s, offsets: Int64s) -> NDArray[np.bool_]:
        """Which entries of `again` are good: they are hints, which a replay leaves behind."""
        slots = self.slots(offsets)
        waiting: NDArray[np.bool_] = (self.state[slots] == WAITING) & (self.due[slots] == due_us)
        return waiting

    def open_rows(self) -> tuple[Int64s, NDArray[np.bool_]]:
        """Unfinished rows of the window, and which are leased or wait for their own time."""
        shift = self._room - self._base
        states = self.state[self.committed + shift : self.next + shift]
        rows = np.flatnonzero(states < ACKED)
        offsets = rows + self.committed
        return offsets, (states[rows] == LEASED) | np.isin(offsets, self.again.pairs()[1])

    # Changing

    def hand_out(self, offsets: Int64s, held: Int64s) -> None:
        """Rows are leased, under these slots of the lease table."""
        end = highest(offsets) + 1
        if end > self.next:
            self._reach(end)
        slots = self.slots(offsets)
        assert every(self.state[slots] == WAITING), "a row is handed to one at a time"
        self.state[slots] = LEASED
        self.lease[slots] = held
        self.attempts[slots] = np.minimum(self.attempts[slots], _ATTEMPTS_MAX - 1) + 1
        self.leased += len(offsets)

    def finish(self, offsets: Int64s, state: np.uint8, undo: Undo) -> None:
        """Leased rows are done, or dead."""
        slots = self.slots(offsets)
        if undo.active:
            self._note(slots, undo)
        self.state[slots] = state
        self.lease[slots] = 0
        own = offsets
        if self.strays and not isinstance(slots, slice):
            own = offsets[slots >= self._room]
            self._end_strays(offsets, undo)
        self.leased -= len(offsets)
        self.open -= len(own)
        if self.order is not None:
            # The next rows of their keys may go. Strays have lost their place.
            undo.once_settled(partial(self.order.finished, own))
        if lowest(offsets) <= self.committed:
            self._advance()
        if not self.open and len(self.state) > _ROWS_KEPT + self._room and not undo.active:
            self._lay_out(self._room, _ROWS_MIN)

    def give_back(self, offsets: Int64s, due_us: Int64s, uncount: bool, undo: Undo) -> None:
        """Leased rows wait to be handed out again, from `due_us` on."""
        slots = self.slots(offsets)
        if undo.active:
            self._note(slots, undo)
        self.state[slots] = WAITING
        self.lease[slots] = 0
        self.due[slots] = due_us
        if uncount:
            self.attempts[slots] -= 1
        self.leased -= len(offsets)
        self.again.push(*sort_pairs(due_us, offsets))

    def revive(self, offsets: Int64s, due_us: Int64s) -> None:
        """Rows that were dead wait to be handed out again, with no attempts counted."""
        missing = len(offsets) - len(self._free_strays)
        if missing > 0:
            used = self._room
            self._lay_out(used + max(missing, used), len(self.state) - used)
            self._free_strays += range(used, self._room)
        for offset in offsets.tolist():
            slot = self._free_strays.pop()
            self.strays[offset] = slot
            self.state[slot], self.attempts[slot], self.lease[slot] = WAITING, 0, 0
        self.due[self.slots(offsets)] = due_us
        self.again.push(*sort_pairs(due_us, offsets))

    def trim(self, first: int, reasons: Names) -> Int64s:
        """Rows below are gone. Counts what was lost; returns the leases that ended with it."""
        held = [self._drop_strays(first)]
        if self.committed < first:
            held.append(self._drop_window(first))
        self.dead.forgotten += self._unbury(self.dead.where(0, first), reasons)
        return np.concatenate(held)

    def reset(self, offset: int, reasons: Names) -> Int64s:
        """The group goes on from here, as if new. Returns the leases that ended with it."""
        shift = self._room - self._base
        window = slice(self.committed + shift, self.next + shift)
        leased = self.lease[window][self.state[window] == LEASED].astype(np.int64)
        held = np.concatenate([leased, self._drop_strays(self.next)])
        self._unbury(self.dead.where(offset, self.next), reasons)
        self.committed = self.next = self._base = offset
        self.open = self.leased = self.behind = 0
        self._free_strays, self._room = [], 1
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[:1].copy())
        self.again = Ready()
        if self.order is not None:
            self.order = Order(offset)
        return held

    def bury(self, offsets: Int64s, reason: int, at_us: int, reasons: Names, undo: Undo) -> None:
        """Leased rows are dead; if there are too many, the oldest are forgotten."""
        attempts = self.attempts[self.slots(offsets)].copy()
        self.finish(offsets, DEAD, undo)
        count = len(offsets)
        self.dead.add(offsets, reason, attempts, at_us)
        reasons.use(reason, count)

        def take_back() -> None:
            self.dead.take_back(count)
            reasons.use(reason, -count)

        def forget() -> None:
            self.dead.forgotten += self._unbury(self.dead.too_many(), reasons)
            self.dead.tidy()

        undo.note(take_back)
        undo.once_settled(forget)

    def unbury(self, offsets: Int64s, reasons: Names, undo: Undo) -> None:
        """Dead rows are dead no more: they live again, or were purged."""
        positions = self.dead.find(offsets)
        self.dead.remove(positions)
        numbers = self.dead.take("reason", positions)

        def let_go() -> None:
            reasons.unuse_all(numbers)
            self.dead.tidy()

        undo.when_settled(let_go, lambda: self.dead.restore(positions))

    def forget_dead(self, reasons: Names) -> None:
        """The group is being deleted."""
        self._unbury(self.dead.where(0, self.next), reasons)

    def count_reasons(self, reasons: Names) -> None:
        """Read back from a checkpoint: names of reasons are in use."""
        for number, count in zip(*np.unique(self._reasons(), return_counts=True), strict=True):
            reasons.use(int(number), int(count))

    def _reasons(self) -> NDArray[Any]:
        return self.dead.take("reason", self.dead.where(0, self.next))

    def _unbury(self, positions: Int64s, reasons: Names) -> int:
        if len(positions):
            reasons.unuse_all(self.dead.take("reason", positions))
            self.dead.remove(positions)
        return len(positions)

    def _drop_window(self, first: int) -> Int64s:
        shift, end = self._room - self._base, min(first, self.next)
        rows = slice(self.committed + shift, end + shift)
        states = self.state[rows]
        held = self.lease[rows][states == LEASED].astype(np.int64)
        lost = int(np.count_nonzero(states < ACKED))
        self.open -= lost
        self.leased -= len(held)
        self.behind += lost + first - end
        self.committed = first
        if self.next < first:
            self.next = self._base = first
        self._advance()
        return held

    def _drop_strays(self, below: int) -> Int64s:
        gone = [offset for offset in self.strays if offset < below]
        slots = np.array([self.strays.pop(offset) for offset in gone], dtype=np.int64)
        self._free_strays += slots.tolist()
        held = self.lease.take(slots)[self.state.take(slots) == LEASED].astype(np.int64)
        self.leased -= len(held)
        self.behind += len(gone)
        return held

    def _end_strays(self, offsets: Int64s, undo: Undo) -> None:
        ended = {
            offset: self.strays.pop(offset) for offset in offsets.tolist() if offset in self.strays
        }
        self._free_strays += ended.values()

        def take_back() -> None:
            del self._free_strays[len(self._free_strays) - len(ended) :]
            self.strays.update(ended)

        if ended:
            undo.note(take_back)

    def _note(self, slots: Slots, undo: Undo) -> None:
        before = [getattr(self, name)[slots].copy() for name in _COLUMNS]
        numbers = self.committed, self.open, self.leased

        def take_back() -> None:
            self.committed, self.open, self.leased = numbers
            for name, values in zip(_COLUMNS, before, strict=True):
                getattr(self, name)[slots] = values

        undo.note(take_back)

    def _advance(self) -> None:
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

    # Columns

    def _reach(self, end: int) -> None:
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

    def _lay_out(self, strays: int, rows: int) -> None:
        """New columns with room for so many strays and rows; the window begins at its base."""
        shift = self._room - self._base
        window = slice(self.committed + shift, self.next + shift)
        live = self.next - self.committed
        for name, kind in _COLUMNS.items():
            old, new = getattr(self, name), np.zeros(strays + max(rows, live), dtype=kind)
            new[: self._room] = old[: self._room]
            new[strays : strays + live] = old[window]
            setattr(self, name, new)
        self._room, self._base = strays, self.committed

    # Checkpoints

    @property
    def is_idle(self) -> bool:
        """Whether the numbers say it all: nothing is out, and nothing is dead."""
        return self.committed == self.next and not self.strays and not self.dead.count

    def numbers(self) -> list[int]:
        """What is durable and no column."""
        return [self.committed, self.next, self.behind, self.dead.forgotten]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Copies of what is durable of each row. Leases are the lease table's to keep."""
        shift = self._room - self._base
        window = slice(self.committed + shift, self.next + shift)
        due_us, again = self.again.pairs()
        if len(again):
            good = self._is_waiting(due_us, again)
            due_us, again = due_us[good], again[good]
        slots = np.array(list(self.strays.values()), dtype=np.int64)
        columns: dict[str, NDArray[Any]] = {
            "state": self.state[window].copy(),
            "attempts": self.attempts[window].copy(),
            "again": again,
            "due": due_us,
            "stray": np.array(list(self.strays), dtype=np.int64),
            "stray_state": self.state.take(slots),
            "stray_attempts": self.attempts.take(slots),
        }
        columns |= {f"dead_{name}": values for name, values in self.dead.columns().items()}
        return columns

    def restore_numbers(self, numbers: list[int]) -> None:
        """Back from `numbers`, into a new one."""
        self.committed = self.next = self._base = numbers[0]
        self.behind, self.dead.forgotten = numbers[2:]
        if self.order is not None:
            self.order = Order(self.committed)

    def restore(self, numbers: list[int], columns: dict[str, NDArray[Any]]) -> None:
        """Back from `columns`, after `restore_numbers`. Slots of leases follow."""
        committed, end = numbers[:2]
        strays = columns["stray"]
        if len(strays):
            self.revive(strays, np.zeros(len(strays), dtype=np.int64))
            slots = np.array(list(self.strays.values()), dtype=np.int64)
            self.state[slots] = columns["stray_state"]
            self.attempts[slots] = columns["stray_attempts"]
            self.again = Ready()
        if end > committed:
            self._reach(end)
            shift = self._room - self._base
            window = slice(committed + shift, end + shift)
            self.state[window] = columns["state"]
            self.attempts[window] = columns["attempts"]
        self.open = int(np.count_nonzero(columns["state"] < ACKED))
        leased = [columns["state"] == LEASED, columns["stray_state"] == LEASED]
        self.leased = sum(int(np.count_nonzero(mask)) for mask in leased)
        if len(columns["again"]):
            self.due[self.slots(columns["again"])] = columns["due"]
            self.again.push(*sort_pairs(columns["due"], columns["again"]))
        self.dead.fill(
            {name[5:]: values for name, values in columns.items() if name[:5] == "dead_"}
        )


class Group:
    """A group of a log: its name, its number in the topic, and its place in each partition."""

    __slots__ = ("is_behind", "name", "number", "ordered", "partitions")

    def __init__(self, name: str, number: int, ordered: bool, offsets: list[int]) -> None:
        self.name, self.number, self.ordered = name, number, ordered
        self.partitions = [GroupPartition(offset, ordered) for offset in offsets]
        # Whether retention took rows of it anywhere that were not finished.
        self.is_behind = False

    def place(self, partition: int) -> int:
        """What the lease table has for one of its partitions."""
        return self.number << GROUP_SHIFT | partition


class Groups:
    """The groups of one log, by name and by number."""

    __slots__ = ("by_name", "by_number")

    def __init__(self) -> None:
        self.by_name: dict[str, Group] = {}
        self.by_number: dict[int, Group] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    def add(self, group: Group) -> None:
        """One more."""
        self.by_name[group.name] = self.by_number[group.number] = group

    def remove(self, number: int) -> Group:
        """One fewer."""
        group = self.by_number.pop(number)
        del self.by_name[group.name]
        return group

    def free_number(self) -> int:
        """The lowest number that no group has: subscribers come and go, numbers stay low."""
        number = 1
        while number in self.by_number:
            number += 1
        return number


def is_range(offsets: Int64s) -> bool:
    """Whether offsets count up by one."""
    count = len(offsets)
    return count == 1 or (
        int(offsets[-1]) - int(offsets[0]) == count - 1 and every(offsets[1:] - offsets[:-1] == 1)
    )
