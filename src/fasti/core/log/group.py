"""A consumer group's place in one partition of a log.

The window (window.py) has what became of the rows that are out. Rows that were given back stand
in `again` with the time at which they may go out. A dead row counts as finished, so that `committed`
always moves on (dead.py). Rows that retention took before they were finished are counted in
`behind`: the group's consumers are told, and get nothing until the group is set anew.

All of it is changed only by events. The sequencer's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fasti.core.calendar.wheel import ENTRY_BYTES, Ready
from fasti.core.columns.reductions import every, highest, lowest, some, sort_pairs
from fasti.core.log.dead import Dead
from fasti.core.log.order import Order
from fasti.core.log.window import ACKED, DEAD, LEASED, WAITING, Window
from fasti.core.rows.memory import Names, Undo
from fasti.core.state import Partitions, ignore
from fasti.core.work import repeated

Int64s = NDArray[np.int64]

# Between topics' partitions and groups in the lease table's `partition`.
GROUP_SHIFT = 12
# The objects that a group, and its place in a partition, are made of, about.
GROUP_BYTES = 1 << 10
PLACE_BYTES = 1 << 10
_STRAY_BYTES = 128
_ATTEMPTS_MAX = 65_534
_NONE = np.zeros(0, dtype=np.int64)


class Sums(NamedTuple):
    """Of all partitions of a group: what an operator looks at first."""

    # The next rows that were never handed out, added up: with the log's ends they tell the lag.
    next: int = 0
    unfinished: int = 0
    leased: int = 0
    dead: int = 0
    behind: int = 0
    # Partitions whose window is full.
    full: int = 0


class GroupPartition(Window):
    """What became of each row, as far as one group is concerned."""

    __slots__ = ("again", "behind", "counted", "counted_bytes", "dead", "odd_turn", "order")

    def __init__(self, offset: int, ordered: bool = False) -> None:
        super().__init__(offset)
        self.again = Ready()
        self.dead = Dead()
        self.behind = 0
        self.order = Order(offset) if ordered else None
        # Whose turn it is when only one row can go: no durable state.
        self.odd_turn = False
        # What it took when it was last counted into the memory budget, and into its group's sums.
        self.counted_bytes = 0
        self.counted = Sums(next=offset)

    # Looking

    def sums(self) -> Sums:
        """What it adds to those of its group."""
        unfinished, full = self.open + len(self.strays), int(self.room <= 0)
        return Sums(self.next, unfinished, self.leased, self.dead.count, self.behind, full)

    @property
    def size_bytes(self) -> int:
        """What it takes once it has rows: the window, rows that go out again, and the dead."""
        lists = self.again.entries * ENTRY_BYTES + len(self.strays) * _STRAY_BYTES
        return super().size_bytes + lists + self.dead.size_bytes

    @property
    def waiting(self) -> int:
        """How many rows were handed out, are not finished, and nobody has."""
        return self.open + len(self.strays) - self.leased

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
        states = self.state[self.rows]
        rows = np.flatnonzero(states < ACKED)
        offsets = rows + self.committed
        return offsets, (states[rows] == LEASED) | np.isin(offsets, self.again.pairs()[1])

    # Changing

    def hand_out(self, offsets: Int64s, held: Int64s) -> None:
        """Rows are leased, under these slots of the lease table."""
        end = highest(offsets) + 1
        if end > self.next:
            self.reach(end)
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
            self.note(slots, undo)
        self.state[slots] = state
        self.lease[slots] = 0
        own = offsets
        if self.strays and not isinstance(slots, slice):
            own = offsets[~self.is_stray(slots)]
            self.end_strays(offsets, undo)
        self.leased -= len(offsets)
        self.open -= len(own)
        if self.order is not None:
            # The next rows of their keys may go. Strays have lost their place.
            undo.once_settled(partial(self.order.finished, own))
        if lowest(offsets) <= self.committed:
            self.advance()
        if not undo.active:
            self.give_memory_back()

    def give_back(self, offsets: Int64s, due_us: Int64s, uncount: bool, undo: Undo) -> None:
        """Leased rows wait to be handed out again, from `due_us` on."""
        slots = self.slots(offsets)
        if undo.active:
            self.note(slots, undo)
        self.state[slots] = WAITING
        self.lease[slots] = 0
        self.due[slots] = due_us
        if uncount:
            self.attempts[slots] -= 1
        self.leased -= len(offsets)
        self.again.push(*sort_pairs(due_us, offsets))

    def revive(self, offsets: Int64s, due_us: Int64s) -> None:
        """Rows that were dead wait to be handed out again, with no attempts counted."""
        self.add_strays(offsets)
        self.due[self.slots(offsets)] = due_us
        self.again.push(*sort_pairs(due_us, offsets))

    def trim(self, first: int, reasons: Names) -> Int64s:
        """Rows below are gone. Counts what was lost; returns the leases that ended with it."""
        held, lost = self.drop_strays(first)
        self.behind += lost
        if self.committed < first:
            more, lost = self.drop(first)
            held = np.concatenate([held, more])
            self.behind += lost
        self.dead.forgotten += self._unbury(self.dead.where(0, first), reasons)
        return held

    def reset(self, offset: int, reasons: Names) -> Int64s:
        """The group goes on from here, as if new. Returns the leases that ended with it."""
        leased = self.lease[self.rows][self.state[self.rows] == LEASED].astype(np.int64)
        held = np.concatenate([leased, self.drop_strays(self.next)[0]])
        self._unbury(self.dead.where(offset, self.next), reasons)
        self.clear(offset)
        self.behind = 0
        self.again = Ready()
        if self.order is not None:
            self.order = Order(offset)
        return held

    # The dead

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
        numbers = self.dead.take("reason", self.dead.where(0, self.next))
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            reasons.use(int(number), int(count))

    def _unbury(self, positions: Int64s, reasons: Names) -> int:
        if len(positions):
            reasons.unuse_all(self.dead.take("reason", positions))
            self.dead.remove(positions)
        return len(positions)

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
        due_us, again = self.again.pairs()
        if len(again):
            good = self._is_waiting(due_us, again)
            due_us, again = due_us[good], again[good]
        slots = np.array(list(self.strays.values()), dtype=np.int64)
        columns: dict[str, NDArray[Any]] = {
            "state": self.state[self.rows].copy(),
            "attempts": self.attempts[self.rows].copy(),
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
        self.clear(numbers[0])
        self.behind, self.dead.forgotten = numbers[2:]
        if self.order is not None:
            self.order = Order(self.committed)

    def restore(self, numbers: list[int], columns: dict[str, NDArray[Any]]) -> None:
        """Back from `columns`, after `restore_numbers`. Slots of leases follow."""
        if len(columns["stray"]):
            self.add_strays(columns["stray"])
            slots = np.array(list(self.strays.values()), dtype=np.int64)
            self.state[slots] = columns["stray_state"]
            self.attempts[slots] = columns["stray_attempts"]
        if numbers[1] > self.next:
            self.reach(numbers[1])
            self.state[self.rows] = columns["state"]
            self.attempts[self.rows] = columns["attempts"]
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

    __slots__ = ("_offsets", "is_behind", "name", "number", "ordered", "partitions", "sums")

    def __init__(
        self,
        name: str,
        number: int,
        ordered: bool,
        offsets: Sequence[int] | Int64s,
        note: Callable[[int], None] = ignore,
    ) -> None:
        self.name, self.number, self.ordered = name, number, ordered
        # Where it began in each partition; nothing but 0 needs no column.
        starts = np.asarray(offsets, dtype=np.int64)
        self._offsets = starts if some(starts) else None
        self.partitions = Partitions(len(offsets), self._make, note)
        self.sums = Sums(next=int(starts.sum()))
        # Whether retention took rows of it anywhere that were not finished.
        self.is_behind = False

    def count(self, place: GroupPartition) -> None:
        """Something of a place has changed: so have the sums."""
        before, now = place.counted, place.sums()
        if before != now:
            self.sums = Sums(*(s + n - b for s, n, b in zip(self.sums, now, before, strict=True)))
            place.counted = now

    def _make(self, partition: int) -> GroupPartition:
        return GroupPartition(self.offset(partition), self.ordered)

    @property
    def offsets(self) -> Int64s:
        """Where it began in each partition."""
        if self._offsets is None:
            return np.zeros(len(self.partitions), dtype=np.int64)
        return self._offsets

    def offset(self, partition: int) -> int:
        """Where it began in a partition."""
        return 0 if self._offsets is None else int(self._offsets[partition])

    @property
    def size_bytes(self) -> int:
        """What it takes beside its places."""
        offsets = 0 if self._offsets is None else self._offsets.nbytes
        return GROUP_BYTES + len(self.name) + offsets

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
