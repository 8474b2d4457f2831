"""What can be asked of schedules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasti.core.keys import Rows

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class PutSchedules:
    """Makes or changes schedules: (name, definition as JSON), checked by who sends this."""

    topic: str
    schedules: list[tuple[str, str]]
    # -1 any, 0 must not exist, else must be equal; one for all.
    version: int = -1


@dataclass(slots=True)
class DeleteSchedule:
    """Removes one, and cancels what it has emitted ahead."""

    topic: str
    name: str


@dataclass(slots=True)
class PauseSchedule:
    """Rests, or goes on."""

    topic: str
    name: str
    paused: bool


@dataclass(slots=True)
class RunSchedule:
    """One message now, beside the occurrences; the overlap policy holds."""

    topic: str
    name: str
    rows: Rows


@dataclass(slots=True)
class ReadSchedules:
    """Done(value=page): those that changed after a change number, or one by name."""

    topic: str
    name: str = ""
    after_change: int = 0
    limit: int = 5_000


@dataclass(slots=True)
class Fire:
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
