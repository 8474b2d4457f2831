"""One step in progress: what was decided so far, and the tools that every decision needs.

`emit` applies an event at once, so that the next decision sees it, and puts it into the frame
that is open. A command's frames form a group: the journal holds all of them or none.

A command that raises by a fault of the program is refused alone if nothing of it was applied, which
is known from here (`Work.mark`, `Work.take_back`): state changes by `emit`, under undo notes or not,
and whatever else changes something says so (`touched`, `change_hints`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import highest, lowest
from fasti.core.commands import Expires, When
from fasti.core.events import Event
from fasti.core.keys import Rows
from fasti.core.replies import Frame
from fasti.core.state import ShardState, Topic
from fasti.errors import InvalidArgument, NotFound
from fasti.model import DUE_MAX_US, SEQUENCE_BITS, SEQUENCE_MASK, Limits

Int64s = NDArray[np.int64]
T = TypeVar("T")


@dataclass(slots=True)
class Fault:
    """Something that a step got over: a command that raised, and was refused."""

    command: Any
    error: Exception


class StepFailed(Exception):
    """A step raised, and what it left of the engine is not known: the engine must be dropped.

    `place` is the input that raised, if it was one; `serving` the topic whose messages were handed
    out, if that raised. The cause is what was raised.
    """

    def __init__(self, place: int | None = None, serving: str = "") -> None:
        super().__init__("the step failed")
        self.place, self.serving = place, serving


class Work:
    """What a step has and has made."""

    def __init__(self, state: ShardState, limits: Limits, now_us: int, tick: int) -> None:
        self.state, self.limits = state, limits
        self.now_us, self.tick = now_us, tick
        self.frames: list[Frame] = []
        self.effects: list[Any] = []
        self._group: list[Frame] = []
        self._open: Frame | None = None
        self.faults: list[Fault] = []
        # An event is being applied; something changed that is no event; who is being served.
        self.applying = self.touched = False
        self.serving = ""

    # Faults of the program

    def mark(self, touched: bool = False) -> tuple[int, int]:
        """Where a command begins. `touched`: it may change what is not told by events."""
        self.touched = touched
        return len(self.frames), len(self.effects)

    def take_back(self, mark: tuple[int, int]) -> bool:
        """Whether nothing of the command that broke off remains; its undo notes are carried out."""
        frames, effects = mark
        undo = self.state.memory.undo
        if self.applying or self.touched or len(self.frames) != frames:
            return False
        if undo.active:
            undo.rollback()
        elif self.group_has_events:
            return False
        self.abandon_group()
        del self.effects[effects:]
        return True

    def begin_undo(self) -> None:
        """What is decided from here to the undo's end can be taken back: the whole group, so far."""
        assert not self.group_has_events, "undo notes begin before the first event of their group"
        self.state.memory.undo.begin()

    def change_hints(self, change: Callable[..., T], *arguments: Any) -> T:
        """Carries out a change of what no event tells of. If it breaks off, the engine must go."""
        before, self.touched = self.touched, True
        result = change(*arguments)
        self.touched = before
        return result

    # Frames

    def begin_group(self) -> None:
        """The frames from here to `end_group` stand or fall together."""
        self._group, self._open = [], None

    def end_group(self) -> None:
        """The group is complete."""
        self._drop_empty()
        for frame in self._group:
            frame.begins_group = frame is self._group[0]
            frame.ends_group = frame is self._group[-1]
        self.frames += self._group
        self._group, self._open = [], None

    @property
    def group_has_events(self) -> bool:
        """Whether anything was decided in this group."""
        return any(frame.events for frame in self._group)

    def abandon_group(self) -> None:
        """The group never was (its events have been undone)."""
        self.state.next_frame -= len(self._group)
        self._group, self._open = [], None

    def bring(self, rows: Rows) -> int:
        """Opens a frame for payloads; the events that follow may point to its rows."""
        self._open = self._new_frame(rows)
        return self._open.sequence

    def emit(self, event: Event, slots: Int64s | None = None) -> None:
        """Decided: applied now, journaled with its group. `slots`: of the event's sequences."""
        if self._open is None:
            self._open = self._new_frame(None)
        self.applying = True
        self.state.apply(event, self._open.sequence, self.tick, slots)
        self._open.events.append(event)
        self.applying = False

    def _drop_empty(self) -> None:
        """A frame whose payloads no event wants is not written; its number serves the next."""
        while self._group and not self._group[-1].events:
            self._group.pop()
            self.state.next_frame -= 1

    def _new_frame(self, rows: Rows | None) -> Frame:
        self._drop_empty()
        frame = Frame(self.state.next_frame, [], rows)
        self.state.next_frame += 1
        self._group.append(frame)
        return frame

    # What commands have in common

    def topic(self, name: str) -> Topic:
        """The topic, or `not_found`."""
        topic = self.state.by_name.get(name)
        if topic is None:
            raise NotFound(f"there is no topic {name!r}", details={"topic": name})
        return topic

    def moments(self, when: When, count: int) -> Int64s:
        """The due time of each row, checked."""
        if when.due_us is not None and when.delay_us is not None:
            raise InvalidArgument("either due or delay, not both", field="due")
        if when.due_us is None and when.delay_us is None:
            return np.array([self.now_us] * count) if count < 4 else np.full(count, self.now_us)
        if when.due_us is not None:
            due = column(when.due_us, count, "due")
            _check_range(due, "due", DUE_MAX_US)
            return due
        assert when.delay_us is not None
        delay = column(when.delay_us, count, "due")
        _check_range(delay, "delay", DUE_MAX_US - self.now_us)
        return delay + self.now_us

    def expiry(self, expires: Expires, due: Int64s) -> Int64s:
        """When each row expires, checked; 0: never."""
        count = len(due)
        expiry_us = np.zeros(count, dtype=np.int64)
        if expires.at_us is not None:
            expiry_us = column(expires.at_us, count, "expires").copy()
            _check_range(expiry_us, "expires", DUE_MAX_US)
        if expires.after_us is not None:
            after = column(expires.after_us, count, "expires")
            _check_range(after, "expires", DUE_MAX_US)
            # For ever is the longest there is.
            expiry_us = np.where(after != 0, np.minimum(due + after, DUE_MAX_US), expiry_us)
        return expiry_us


def _check_range(values: Int64s, field: str, limit: int) -> None:
    if len(values) and (lowest(values) < 0 or highest(values) > limit):
        raise InvalidArgument(
            f"{field} must lie between 0 and {limit} microseconds", field=field, limit=limit
        )


def column(values: Int64s | int, count: int, field: str) -> Int64s:
    """A number for all rows, or one each."""
    if type(values) is int and count == 1:
        return np.array([values], dtype=np.int64)
    array = np.asarray(values, dtype=np.int64)
    if array.ndim == 0:
        return np.full(count, int(array), dtype=np.int64)
    if len(array) != count:
        raise InvalidArgument(f"{len(array)} values for {count} rows", field=field)
    return array


def split_ids(ids: Int64s, partitions: int) -> list[tuple[int, NDArray[np.intp] | slice, Int64s]]:
    """(partition, its rows, their sequences) for each partition that the ids name."""
    if partitions == 1 and (not len(ids) or highest(ids) <= SEQUENCE_MASK):
        return [(0, slice(None), ids)]
    if len(ids) and (number := lowest(ids) >> SEQUENCE_BITS) == highest(ids) >> SEQUENCE_BITS:
        # Mostly: what was leased together is returned together.
        return [(number, slice(None), ids & SEQUENCE_MASK)]
    numbers = ids >> SEQUENCE_BITS
    pieces: list[tuple[int, NDArray[np.intp] | slice, Int64s]] = []
    for number in np.unique(numbers).tolist():
        rows = np.flatnonzero(numbers == number)
        pieces.append((number, rows, ids[rows] & SEQUENCE_MASK))
    return pieces


def repeated(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Which values stand for a second time; None if none does (the usual case, and cheap)."""
    if len(values) < 2:
        return None
    ordered = np.sort(values)
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    again = np.ones(len(values), dtype=np.bool_)
    again[np.unique(values, return_index=True)[1]] = False
    return again
