"""What happens to schedules. What they emit is `Produced` in their target, in the same group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fasti.core.events import Event, Int64s


@dataclass(slots=True)
class SchedulePut(Event):
    """A schedule is new, or another one now. `definition` is JSON."""

    code: ClassVar[int] = 90
    topic: int
    number: int
    version: int
    last_us: int
    name: str
    definition: str


@dataclass(slots=True)
class ScheduleDeleted(Event):
    """A schedule is gone."""

    code: ClassVar[int] = 91
    topic: int
    number: int


@dataclass(slots=True)
class SchedulePaused(Event):
    """A schedule rests, or goes on after `last_us`."""

    code: ClassVar[int] = 92
    topic: int
    number: int
    paused: int
    last_us: int


@dataclass(slots=True)
class Fired(Event):
    """Occurrences were emitted as these messages of the target topic; id 0: passed over."""

    code: ClassVar[int] = 93
    topic: int
    target: int
    number: Int64s
    occurrence_us: Int64s
    id: Int64s


@dataclass(slots=True)
class Unfired(Event):
    """What was emitted ahead was cancelled: schedules go on after `last_us`."""

    code: ClassVar[int] = 94
    topic: int
    number: Int64s
    last_us: Int64s


@dataclass(slots=True)
class Passed(Event):
    """Messages that were emitted ahead fell due while the broker ran: they were in time."""

    code: ClassVar[int] = 95
    topic: int
