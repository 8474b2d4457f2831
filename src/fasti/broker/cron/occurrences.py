"""When a schedule happens: cron expressions and intervals, in any time zone.

A cron expression (5 fields, or 6 with seconds first, or `@daily` and the like) is about the times
that a wall clock shows. Those are enumerated without a zone by cronsim and then looked up in the
zone, so that what happens around a change of the clock is a rule that is written here:

* a time that the clock leaps over (a gap) moves to the first moment after it (`shift`), or does not
  happen (`skip`);
* a time that the clock shows twice (a fold) happens at the `first`, at the `second`, or at `both`;
* an expression for every hour (its hour field begins with `*`) follows elapsed time: it happens in
  both hours that have the same name, and is not made up for where an hour is missing.

An interval is counted from the schedule's start, or, if it has none, from midnight UTC of 1 January
1970: `every 15m` happens at :00, :15, :30 and :45.

Nothing happens before 1970 or after the last day of 9998: the calendar that shows it ends a year later.

A look-up costs tens of microseconds, so schedules with the same timing share one `Occurrences`,
which remembers what it has worked out. One thread at a time.
"""

from __future__ import annotations

import difflib
import heapq
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import chain, islice, takewhile
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from fasti.core.cron.schedule import Schedule
from fasti.errors import InvalidArgument
from fasti.model import SECOND_US

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Without a zone, as every time that only a wall clock shows.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
# No clock is further from UTC than this.
_FIRST_LOCAL = _EPOCH - timedelta(days=2)
_LAST_LOCAL = _EPOCH.replace(year=9999) + timedelta(days=2)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
# No zone ever leapt by more at once.
_LEAP_US_MAX = 25 * 3_600 * SECOND_US
_WALKED_US_MAX = 600 * SECOND_US
_LAST_US = (_EPOCH.replace(year=9999) - _EPOCH) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class Timing:
    """What occurrences depend on. `anchor_us` is where an interval is counted from."""

    cron: str
    every_us: int
    timezone: str
    anchor_us: int = 0
    gap: str = "shift"
    fold: str = "first"

    @classmethod
    def of(cls, schedule: Schedule) -> Timing:
        """Of a schedule, checked. Raises `invalid_argument`, which names the field."""
        zone_of(schedule.timezone)
        if schedule.every_us:
            anchor_us = schedule.start_us % schedule.every_us
            return cls("", schedule.every_us, schedule.timezone, anchor_us)
        expression = _checked(schedule.cron)
        return cls(expression, 0, schedule.timezone, 0, schedule.gap, schedule.fold)


def zone_of(name: str) -> tzinfo:
    """The IANA time zone of a name."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = difflib.get_close_matches(name, _known_zones(), n=1)
        hint = f": did you mean {near[0]!r}?" if near else " (names are like 'Europe/Paris')"
        raise InvalidArgument(f"there is no time zone {name!r}{hint}", field="timezone") from None


@lru_cache(1)
def _known_zones() -> list[str]:
    return sorted(available_timezones())


def _expression(text: str) -> str:
    squeezed = " ".join(text.split())
    if not squeezed.startswith("@"):
        return squeezed.upper()
    expression = _MACROS.get(squeezed.lower())
    if expression is None:
        macros = ", ".join(sorted(_MACROS))
        raise InvalidArgument(f"{text!r} is not a cron macro: use one of {macros}", field="cron")
    return expression


@lru_cache(4096)
def _checked(text: str) -> str:
    """An expression in its plain form. Thousands of schedules have the same few."""
    expression = _expression(text)
    form = "minute hour day month weekday, or with seconds before them"
    try:
        next(CronSim(expression, _EPOCH.replace(year=2000)))
    except StopIteration:
        raise InvalidArgument(f"cron {text!r} never matches", field="cron") from None
    except (CronSimError, ValueError, AssertionError, IndexError) as error:
        reason = str(error).lower() or "not understood"
        raise InvalidArgument(f"cron {text!r}: {reason} (fields: {form})", field="cron") from None
    return expression


class Occurrences:
    """The occurrences of one timing, between the start and end that a caller names."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.zone = zone_of(timing.timezone)
        # What is known: all occurrences after `_from_us`, as far as `_moments` goes.
        self._from_us = 0
        self._moments: list[int] = []
        self._coming: Iterator[int] | None = None

    def after(self, us: int) -> Iterator[int]:
        """Those later than a moment, in order."""
        if self.timing.every_us:
            return self._intervals(us, 1)
        return self._crons(us, forward=True)

    def until(self, us: int) -> Iterator[int]:
        """Those not later than a moment, the latest first."""
        if self.timing.every_us:
            return self._intervals(us, -1)
        return self._crons(us, forward=False)

    def first_after(self, us: int) -> int | None:
        """The next one after a moment; None if there is none any more. Remembered."""
        known_us = self._moments[-1] if self._moments else self._from_us
        # After a long downtime not all that was missed is walked through.
        if self._coming is None or us < self._from_us or us - known_us > _WALKED_US_MAX:
            self._from_us, self._moments, self._coming = us, [], self.after(us)
        while not self._moments or self._moments[-1] <= us:
            coming = next(self._coming, None)
            if coming is None:
                return None
            self._moments.append(coming)
        return self._moments[bisect_right(self._moments, us)]

    def forget(self, us: int) -> None:
        """What lies before this moment is not asked for any more."""
        known = bisect_right(self._moments, us)
        if known > 16:
            self._from_us = max(self._from_us, us)
            del self._moments[:known]

    def _intervals(self, us: int, step: Literal[1, -1]) -> Iterator[int]:
        every_us, anchor_us = self.timing.every_us, self.timing.anchor_us
        us = min(us, _LAST_US)
        number = (us - anchor_us) // every_us + (1 if step > 0 else 0)
        while 0 <= (at_us := anchor_us + number * every_us) <= _LAST_US:
            yield at_us
            number += step

    def _crons(self, us: int, forward: bool) -> Iterator[int]:
        """Local times in order give moments almost in order: the second one of a fold waits."""
        sign = 1 if forward else -1
        waiting: list[int] = []
        last: int | None = None
        for local in chain(self._local_times(us, forward), [None]):
            # After the last one nothing is waited for.
            limit = math.inf
            if local is not None:
                moments, bound = self._moments_of(local, forward)
                for at_us in moments:
                    heapq.heappush(waiting, sign * at_us)
                limit = sign * bound
            while waiting and waiting[0] <= limit:
                at_us = sign * heapq.heappop(waiting)
                if at_us != last and ((us < at_us <= _LAST_US) if forward else (at_us <= us)):
                    yield at_us
                    last = at_us

    def _local_times(self, us: int, forward: bool) -> Iterator[datetime]:
        if not 0 <= us <= _LAST_US:
            us = min(max(us, 0), _LAST_US)
            if forward and us == _LAST_US:
                return
        # Of the local times that are shown twice around here all are wanted.
        here, there = self._offset(us), self._offset(us + (1 if forward else -1) * _LEAP_US_MAX)
        if forward:
            begin = _local(us) + here - max(here - there, timedelta(0))
        else:
            begin = _local(us) + here + max(there - here, timedelta(0)) + _SECOND
        begin = begin.replace(microsecond=0)
        times = CronSim(self.timing.cron, begin, reverse=not forward)
        while True:
            try:
                local = next(times)
            except (StopIteration, OverflowError, ValueError):
                return
            if not _FIRST_LOCAL < local < _LAST_LOCAL:
                return
            yield local

    def _offset(self, us: int) -> timedelta:
        us = min(max(us, 0), _LAST_US)
        return _local(us).replace(tzinfo=UTC).astimezone(self.zone).utcoffset() or timedelta(0)

    def _moments_of(self, local: datetime, forward: bool) -> tuple[list[int], int]:
        """The moments of a local time, and a bound that later (earlier) ones don't fall short of.

        The first moment of a local time grows with it, and so does the last.
        """
        if self.zone is UTC:
            at_us = (local - _EPOCH) // _MICROSECOND
            return [at_us], at_us
        before = local.replace(tzinfo=self.zone).utcoffset() or timedelta(0)
        after = local.replace(tzinfo=self.zone, fold=1).utcoffset() or timedelta(0)
        first_us = (local - before - _EPOCH) // _MICROSECOND
        if before == after:
            return [first_us], first_us
        second_us = (local - after - _EPOCH) // _MICROSECOND
        elapsed = self._follows_elapsed_time
        if before > after:
            moments = [first_us, second_us]
            if not elapsed and self.timing.fold != "both":
                moments = [first_us if self.timing.fold == "first" else second_us]
            return moments, first_us if forward else second_us
        leap_us = self._leap(second_us, first_us)
        happens = not elapsed and self.timing.gap == "shift"
        return [leap_us] if happens else [], leap_us

    def _leap(self, low_us: int, high_us: int) -> int:
        """The moment in between at which the clock leaps ahead."""
        low_us -= 1
        offset = self._offset(high_us)
        while high_us - low_us > 1:
            middle_us = (low_us + high_us) // 2
            if self._offset(middle_us) == offset:
                high_us = middle_us
            else:
                low_us = middle_us
        return high_us

    @property
    def _follows_elapsed_time(self) -> bool:
        return self.timing.cron.split()[-4].startswith("*")


def _local(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def preview(schedule: Schedule, after_us: int, count: int) -> list[tuple[int, str]]:
    """The next occurrences after a moment: in UTC microseconds, and as the local clock shows it."""
    occurrences = Occurrences(Timing.of(schedule))
    coming = occurrences.after(max(after_us, schedule.start_us - 1))
    end_us = schedule.end_us or _LAST_US
    within = islice(takewhile(lambda at_us: at_us <= end_us, coming), count)
    return [(at_us, local_text(at_us, occurrences.zone)) for at_us in within]


def local_text(at_us: int, zone: tzinfo | timezone) -> str:
    """ISO 8601 with the offset, to the second, or finer if it must."""
    shown = _local(at_us).replace(tzinfo=UTC).astimezone(zone)
    return shown.isoformat(timespec="microseconds" if at_us % SECOND_US else "seconds")
