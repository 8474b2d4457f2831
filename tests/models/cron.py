"""Schedules, as simply as they can be told: a walk through every second.

Nothing is emitted ahead and nothing is planned: each second that passes while the broker runs asks
every schedule whether it happens, and each start asks which occurrences were missed. Beside it a
real scheduler and engine must have emitted the same messages. Times are whole seconds, because the
schedules that it is asked about happen at whole seconds; commands come in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fasti.core.cron.schedule import Schedule
from fasti.model import SECOND_US


@dataclass(slots=True, eq=False)
class Emitted:
    """A message: which schedule, which occurrence (0: it was asked for), and how it is.

    `mark` is when it was asked for, to tell such messages apart.
    """

    schedule: str
    occurrence: int
    mark: int = 0
    state: str = "ready"

    @property
    def open(self) -> bool:
        """Whether it is not finished."""
        return self.state in ("ready", "leased")


@dataclass(slots=True)
class Known:
    """A schedule and where it stands."""

    schedule: Schedule
    last: float
    paused: bool = False
    message: Emitted | None = None
    fired: int = 0
    skipped: int = 0


@dataclass(slots=True)
class CronModel:
    """Schedules by name, and every message that was ever emitted."""

    now: float
    known: dict[str, Known] = field(default_factory=dict)
    messages: list[Emitted] = field(default_factory=list)

    def put(self, name: str, schedule: Schedule) -> None:
        """New, or changed: with another timing it begins anew here."""
        known = self.known.get(name)
        if known is None:
            self.known[name] = Known(schedule, self.now)
            return
        if known.schedule.timing != schedule.timing:
            known.last = max(known.last, self.now)
        known.schedule = schedule

    def delete(self, name: str) -> None:
        """What it emitted stays."""
        del self.known[name]

    def pause(self, name: str, paused: bool) -> None:
        """What is missed while it rests is not made up for."""
        known = self.known[name]
        if known.paused and not paused:
            known.last = max(known.last, self.now)
        known.paused = paused

    def run_now(self, name: str, mark: int) -> bool:
        """One message, unless the last one is to be waited for."""
        return self._emit(name, 0, mark)

    def advance(self, seconds: int) -> None:
        """The broker runs on."""
        end = self.now + seconds
        for second in range(int(self.now) + 1, int(end) + 1):
            self.now = float(second)
            for name, known in self.known.items():
                if not known.paused and happens(known.schedule, second) and second > known.last:
                    self._occur(name, second)
        self.now = end

    def restart(self, seconds: int) -> None:
        """No broker ran for so long."""
        begin, self.now = self.now, self.now + seconds
        for name, known in self.known.items():
            if known.paused:
                continue
            missed: list[int] = []
            late: list[int] = []
            for second in range(int(min(begin, known.last)), int(self.now) + 1):
                if happens(known.schedule, second) and second > known.last:
                    grace = known.schedule.misfire_grace_us / SECOND_US
                    (missed if second < self.now - grace else late).append(second)
            self._misfire(name, missed)
            for second in late:
                self._occur(name, second)

    def _misfire(self, name: str, missed: list[int]) -> None:
        known = self.known[name]
        if not missed:
            return
        if known.schedule.misfire == "skip":
            known.last, known.skipped = missed[-1], known.skipped + 1
            return
        wanted = known.schedule.misfire_max if known.schedule.misfire == "all" else 1
        for second in missed[-wanted:]:
            self._occur(name, second)

    def _occur(self, name: str, second: int) -> None:
        known = self.known[name]
        known.last = second
        if not self._emit(name, second):
            known.skipped += 1

    def _emit(self, name: str, occurrence: int, mark: int = 0) -> bool:
        known = self.known[name]
        last = known.message
        if last is not None and last.open and known.schedule.overlap == "skip":
            return False
        if last is not None and last.state == "ready" and known.schedule.overlap == "cancel":
            last.state = "cancelled"
        known.message = Emitted(name, occurrence, mark)
        known.fired += 1
        self.messages.append(known.message)
        return True

    def of_state(self, *states: str) -> list[Emitted]:
        """Messages as they are."""
        return [message for message in self.messages if message.state in states]

    def numbers(self) -> dict[str, Any]:
        """What each schedule has counted."""
        return {name: (known.fired, known.skipped) for name, known in self.known.items()}


def happens(schedule: Schedule, second: int) -> bool:
    """Whether it does at this second: an interval, or an expression that is about seconds alone."""
    start, end = schedule.start_us // SECOND_US, schedule.end_us // SECOND_US
    if second < start or (end and second > end):
        return False
    if schedule.every_us:
        return (second - start) % (schedule.every_us // SECOND_US) == 0
    wanted, *rest = schedule.cron.split()
    assert rest == ["*"] * 5
    if wanted.startswith("*/"):
        return second % 60 % int(wanted[2:]) == 0
    return second % 60 in {int(each) for each in wanted.split(",")}
