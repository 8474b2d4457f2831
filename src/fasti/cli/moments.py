"""Times and lengths of time as people write them on a command line, and as they are shown.

Times are read in ISO 8601 with a zone, lengths as `5m` or `1h30m`; both become microseconds. They
are shown in local time with its zone, and in JSON in UTC.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import typer

from fasti.client.durations import duration_us, moment_us
from fasti.errors import InvalidArgument
from fasti.model import DAY_US, HOUR_US, MINUTE_US, SECOND_US

_UNITS_US = {"d": DAY_US, "h": HOUR_US, "m": MINUTE_US, "s": SECOND_US, "ms": 1_000, "us": 1}
_NUMBER = re.compile(r"\d+(\.\d+)?")
# A time in ISO 8601 has a dash behind its year.
_LENGTH = re.compile(r"[\d.]+\s*([a-z]|$)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Of an aware datetime, since the epoch.
microseconds = moment_us


def length_us(text: str) -> int:
    """`5m`, `1h30m`, `50ms`, or seconds without a unit."""
    written = text.strip()
    try:
        return duration_us(written + "s" if _NUMBER.fullmatch(written) else written)
    except InvalidArgument:
        raise typer.BadParameter(
            f"{text!r} is not a length of time: write 50ms, 30s, 5m, 1h30m or 7d"
        ) from None


def length(text: str) -> timedelta:
    """The same, as the SDK takes it."""
    return timedelta(microseconds=length_us(text))


def moment(text: str) -> datetime:
    """A time in ISO 8601 that says its zone."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time in ISO 8601: write it like 2026-12-24T18:00+01:00"
        ) from None
    if at.tzinfo is None:
        local = at.astimezone().isoformat(timespec="minutes")
        raise typer.BadParameter(
            f"{text!r} doesn't say in which zone: write {local} for the local time here,"
            f" or {at.isoformat(timespec='minutes')}Z for UTC"
        )
    return at


def moment_or_distance(text: str) -> datetime:
    """A time as above, or how far it is from now: `+2h`, `-1d`."""
    written = text.strip()
    if written[:1] in ("+", "-"):
        away = length(written[1:])
        try:
            return datetime.now(UTC) + (away if written[0] == "+" else -away)
        except OverflowError:
            raise typer.BadParameter(f"{text!r} lies beyond the calendar (1 to 9999)") from None
    if written == "now":
        return datetime.now(UTC)
    return moment(text)


def log_place(text: str, option: str) -> str | int | datetime:
    """`earliest`, `latest` (or `end`), an offset, or a time as above."""
    written = text.strip()
    if written in ("earliest", "start"):
        return "earliest"
    if written in ("latest", "end"):
        return "latest"
    if written.isdecimal():
        return int(written)
    try:
        return moment_or_distance(written)
    except typer.BadParameter as error:
        raise typer.BadParameter(
            f"{text!r} is not a place in a log: write earliest, latest, an offset such as 1000, or a "
            f"time such as 2026-12-24T18:00+01:00 or -1h ({error.message})",
            param_hint=option,
        ) from None


def expiry(text: str) -> tuple[str, int]:
    """By when a message must be begun, a time or a length of time: the wire's column, its value."""
    if _LENGTH.match(text.strip()):
        return "expires_after_us", max(1, length_us(text))
    return "expires_us", microseconds(moment(text))


def shown_length(us: int) -> str:
    """As one would write it: `30s`, `1h30m`, `50ms`."""
    if us == 0:
        return "0s"
    text, left = "-" if us < 0 else "", abs(us)
    for unit, size_us in _UNITS_US.items():
        count, left = divmod(left, size_us)
        text += f"{count}{unit}" if count else ""
    return text


def shown_moment(at_us: int, *, digits: int = 3) -> str:
    """Local time with its zone; a time beyond the calendar as the number that it is."""
    try:
        local = (_EPOCH + timedelta(microseconds=at_us)).astimezone()
    except OverflowError:
        return f"{at_us} us"
    text = local.strftime("%Y-%m-%d %H:%M:%S")
    fraction = f"{local.microsecond:06}"[:digits]
    return f"{text}{'.' + fraction if digits else ''} {local.strftime('%Z')}"


def iso(at_us: int) -> str:
    """UTC in ISO 8601, for programs."""
    try:
        at = _EPOCH + timedelta(microseconds=at_us)
    except OverflowError:
        return str(at_us)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now_us() -> int:
    """By the clock of this machine: for showing only, the broker's clock is what counts."""
    return time.time_ns() // 1_000
