"""What can be asked of schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fasti.core.command import Command, WithPayloads
from fasti.core.keys import Rows

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class PutSchedules(Command):
    """Makes or changes schedules: (name, definition as JSON), checked by who sends this.

    Done(value=[(outcome, version), ...]), a row each.
    """

    topic: str
    schedules: list[tuple[str, str]]
    # -1 any, 0 must not exist, else must be equal; one for all.
    version: int = -1


@dataclass(slots=True)
class DeleteSchedule(Command):
    """Removes one, and cancels what it has emitted ahead."""

    topic: str
    name: str


@dataclass(slots=True)
class PauseSchedule(Command):
    """Rests, or goes on."""

    topic: str
    name: str
    paused: bool


@dataclass(slots=True)
class RunSchedule(WithPayloads):
    """One message now, beside the occurrences; the overlap policy holds."""

    topic: str
    name: str
    rows: Rows


@dataclass(slots=True)
class ReadSchedules(Command):
    """Done(value=SchedulesPage): one by name, all by number, or those that changed since.

    `after_change` is the page's own count of changes, from before; then those that are gone stand
    there too, without a definition.
    """

    topic: str
    name: str = ""
    after_number: int = -1
    after_change: int = -1
    limit: int = 5_000


@dataclass(slots=True)
class SchedulesPage:
    """Schedules as they are, a row each."""

    numbers: Int64s
    versions: Int64s
    paused: NDArray[np.bool_]
    last_us: Int64s
    occurred_us: Int64s
    last_ids: Int64s
    fired: Int64s
    skipped: Int64s
    names: list[str]
    definitions: list[str | None]
    # Ask again from here; and whether there is more.
    changes: int
    more: bool


@dataclass(frozen=True, slots=True)
class SumSchedules(Command):
    """All schedules of a topic together. Done(value=`ScheduleSums`)."""

    topic: str


class ScheduleSums(NamedTuple):
    """Schedules, those that are paused, messages emitted, and occurrences passed over."""

    schedules: int
    paused: int
    emitted: int
    skipped: int


@dataclass(slots=True)
class Fire(WithPayloads):
    """Occurrences of schedules as messages of one target, a row each, at most 5,000.

    Each must be later than the schedule's last one. `due_us` is the occurrence and its jitter;
    -1 passes the occurrence over (a misfire that is skipped).
    """

    topic: str
    target: str
    numbers: Int64s
    versions: Int64s
    occurrences_us: Int64s
    due_us: Int64s
    rows: Rows
