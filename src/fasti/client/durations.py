"""Lengths and moments of time as people write them, as the microseconds that travel.

A length is `"5m"`, `"1h30m"`, `"100ms"`, a `timedelta`, or a number of seconds. A moment is an aware
`datetime`; a naive one is refused, because it is unclear which moment it means. Where a name ends
in `_us`, and for `due=`, a whole number is microseconds since the Unix epoch.

When a message is to be due has the same three names in every call: `at` (an aware `datetime`), `delay`
(a length) and `due` (microseconds, or an aware `datetime`). One of them may be given.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from fasti.errors import InvalidArgument
from fasti.model import DAY_US, DUE_MAX_US, HOUR_US, MINUTE_US, SECOND_US

Duration = str | timedelta | int | float
"""A length of time: `"5m"`, `"1h30m"`, a `timedelta`, or seconds."""

_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND_US,
    "m": MINUTE_US,
    "h": HOUR_US,
    "d": DAY_US,
    "w": 7 * DAY_US,
}
_WRITTEN = (("d", DAY_US), ("h", HOUR_US), ("m", MINUTE_US), ("s", SECOND_US), ("ms", 1_000))
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:us|ms|s|m|h|d|w))+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def duration_us(value: Duration, field: str = "duration") -> int:
    """A length in microseconds. Raises `invalid_argument` on what is none, or is negative."""
    if isinstance(value, str):
        # The same few texts come again and again, with every send.
        return _parsed_us(value, field)
    if isinstance(value, timedelta):
        return _bounded(value // _MICROSECOND, value, field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(
            f"{field} must be a length of time such as '5m', a timedelta or seconds, not {value!r}",
            field=field,
        )
    if not math.isfinite(value):
        raise InvalidArgument(f"{field} must be finite, not {value!r}", field=field)
    return _bounded(round(value * SECOND_US), value, field)


def length_text(length_us: int) -> str:
    """A length of time as one would write it, and as it is read back."""
    text, left = "", length_us
    for unit, size_us in _WRITTEN:
        count, left = divmod(left, size_us)
        text += f"{count}{unit}" if count else ""
    return text + (f"{left}us" if left else "") or "0s"


def optional_duration_us(value: Duration | None, field: str = "duration") -> int | None:
    """The same; None stays None."""
    return None if value is None else duration_us(value, field)


def seconds(value: Duration | None, field: str = "timeout") -> float | None:
    """A length in seconds, for those who wait; None stays None."""
    return None if value is None else duration_us(value, field) / SECOND_US


@lru_cache(1024)
def _parsed_us(text: str, field: str) -> int:
    squeezed = text.replace(" ", "")
    if not _WHOLE.fullmatch(squeezed):
        raise InvalidArgument(
            f"{field} {text!r} is not a length of time: write '90s', '5m', '1h30m', '100ms', '7d'",
            field=field,
        )
    length_us = round(sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(squeezed)))
    return _bounded(length_us, text, field)


def _bounded(length_us: int, value: object, field: str) -> int:
    if not 0 <= length_us <= DUE_MAX_US:
        raise InvalidArgument(
            f"{field} must not be negative or beyond what fits, not {value!r}",
            field=field,
            limit=DUE_MAX_US,
        )
    return length_us


def moment_us(value: Any, field: str = "at") -> int:
    """A moment in microseconds: an aware `datetime`, or whole microseconds since the epoch."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise InvalidArgument(
                f"{field} must be an aware datetime: {value!r} has no time zone, so it "
                "does not name one moment (write datetime.now(UTC), or use zoneinfo)",
                field=field,
            )
        return _bounded((value - _EPOCH) // _MICROSECOND, value, field)
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded(value, value, field)
    raise InvalidArgument(
        f"{field} must be an aware datetime or microseconds, not {value!r}", field=field
    )


def optional_moment_us(value: Any, field: str = "at") -> int | None:
    """The same; None stays None."""
    return None if value is None else moment_us(value, field)


def aware_us(value: Any, field: str = "at") -> int:
    """A moment that may only be given as an aware `datetime`."""
    if not isinstance(value, datetime):
        raise InvalidArgument(
            f"{field} must be an aware datetime, not {value!r}; microseconds go into due=",
            field=field,
        )
    return moment_us(value, field)


def check_one_moment(at: Any, delay: Any, due: Any) -> None:
    """Refuses two of the names for when a message is due."""
    given = [
        name for name, value in (("at", at), ("delay", delay), ("due", due)) if value is not None
    ]
    if len(given) > 1:
        raise InvalidArgument(
            f"either {' or '.join(given)}, not {'both' if len(given) == 2 else 'all'}: "
            "they are names for one thing",
            field=given[0],
        )


def as_datetime(at_us: int) -> datetime:
    """A moment as an aware `datetime` in UTC; the last one there is for what lies beyond."""
    try:
        return _EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
