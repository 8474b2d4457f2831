"""A schedule's definition: when it happens, and what it sends where.

As plain values it travels in an action's header, lies in the journal (JSON, only what differs from
the defaults, names in order, so that equal definitions are equal texts) and is read back from it.
Whether the expression and the zone mean anything is judged where occurrences are worked out.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from fasti.errors import InvalidArgument
from fasti.model import DAY_US, DUE_MAX_US, SECOND_US, Limits

GAPS = ("shift", "skip")
FOLDS = ("first", "second", "both")
MISFIRES = ("once", "skip", "all")
OVERLAPS = ("allow", "skip", "cancel")

_EVERY_US_MIN = 100_000
_CRON_CHARACTERS_MAX = 256
_ZONE_CHARACTERS_MAX = 64
_MISFIRES_MAX = 10_000
_PRIORITY_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Schedule:
    """One of `cron` and `every_us`; times in UTC microseconds, 0 where there is none."""

    target: str
    cron: str = ""
    every_us: int = 0
    timezone: str = "UTC"
    start_us: int = 0
    end_us: int = 0
    jitter_us: int = 0
    payload: bytes = b""
    # The payload has words in {{ }} that each occurrence fills in.
    template: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = ""
    subject: str = ""
    priority: int = 0
    # How long after it is due a message must be begun; 0: no matter.
    expires_us: int = 0
    # A local time that the clock leaps over, and one that it shows twice.
    gap: str = "shift"
    fold: str = "first"
    # What has been missed by more than the grace, because no broker ran.
    misfire: str = "once"
    misfire_max: int = 100
    misfire_grace_us: int = 10 * SECOND_US
    # The last message is not finished when the next one is due.
    overlap: str = "allow"

    @property
    def timing(self) -> tuple[Any, ...]:
        """What decides when it happens: as long as this stays, occurrences stay the same."""
        return (
            self.cron,
            self.every_us,
            self.timezone,
            self.start_us,
            self.end_us,
            self.gap,
            self.fold,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, only those that differ from the defaults; the payload in base64."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "target" or value != _DEFAULTS[each.name]:
                found[each.name] = value
        if self.payload:
            found["payload"] = base64.b64encode(self.payload).decode()
        return found

    def to_json(self) -> str:
        """The same as a text, equal for equal definitions."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Schedule:
        """Raises `invalid_argument` on a field that there isn't, or of the wrong type."""
        values = dict(given)
        for name, value in values.items():
            _check_type(name, value)
        if "target" not in values:
            raise InvalidArgument("a schedule needs a target topic", field="target")
        if "payload" in values:
            try:
                values["payload"] = base64.b64decode(values["payload"], validate=True)
            except (binascii.Error, ValueError):
                raise InvalidArgument("the payload must be base64", field="payload") from None
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Back from `to_json`."""
        return cls.from_dict(json.loads(text))


_DEFAULTS: dict[str, Any] = {
    each.name: each.default
    if each.default is not MISSING
    else (each.default_factory() if each.default_factory is not MISSING else None)
    for each in fields(Schedule)
}


def _check_type(name: str, value: Any) -> None:
    if name not in _DEFAULTS:
        raise InvalidArgument(f"a schedule has no field {name!r}", field=name)
    default = _DEFAULTS[name]
    if name == "headers":
        texts = isinstance(value, dict) and all(
            isinstance(key, str) and isinstance(item, str) for key, item in value.items()
        )
        if not texts:
            raise InvalidArgument("headers must be strings by name", field=name)
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} must be true or false", field=name)
    elif isinstance(default, int):
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgument(f"{name} must be a whole number", field=name)
    elif not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a string", field=name)


def check_schedule(schedule: Schedule, limits: Limits) -> None:
    """Raises `invalid_argument` that names the field and its bounds."""
    if bool(schedule.cron) == bool(schedule.every_us):
        raise InvalidArgument("a schedule needs either cron or every, and not both", field="cron")
    for name, limit in (("cron", _CRON_CHARACTERS_MAX), ("timezone", _ZONE_CHARACTERS_MAX)):
        if len(getattr(schedule, name)) > limit:
            raise InvalidArgument(
                f"{name} has more than {limit} characters", field=name, limit=limit
            )
    if schedule.every_us:
        _check_range("every", schedule.every_us, _EVERY_US_MIN, DUE_MAX_US)
    _check_range("start", schedule.start_us, 0, DUE_MAX_US)
    _check_range("end", schedule.end_us, 0, DUE_MAX_US)
    if schedule.end_us and schedule.end_us < schedule.start_us:
        raise InvalidArgument("the end lies before the start", field="end")
    _check_range("jitter", schedule.jitter_us, 0, DAY_US)
    _check_range("misfire_max", schedule.misfire_max, 1, _MISFIRES_MAX)
    _check_range("misfire_grace", schedule.misfire_grace_us, 0, DAY_US)
    _check_range("priority", schedule.priority, 0, _PRIORITY_MAX)
    _check_range("expires", schedule.expires_us, 0, DUE_MAX_US)
    for name, words in _CHOICES.items():
        if getattr(schedule, name) not in words:
            raise InvalidArgument(f"{name} must be one of {', '.join(words)}", field=name)
    if not schedule.target:
        raise InvalidArgument("a schedule needs a target topic", field="target")
    if len(schedule.subject.encode()) > limits.name_bytes_max:
        raise InvalidArgument("the subject is too long", field="subject")
    size = len(schedule.to_json().encode())
    if size > limits.schedule_bytes_max:
        raise InvalidArgument(
            f"the schedule has {size} bytes: the limit is {limits.schedule_bytes_max}"
            " (schedule_bytes_max)",
            field="schedule_bytes_max",
            limit=limits.schedule_bytes_max,
        )


_CHOICES = {"gap": GAPS, "fold": FOLDS, "misfire": MISFIRES, "overlap": OVERLAPS}


def _check_range(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        unit = "" if name in ("misfire_max", "priority") else " microseconds"
        raise InvalidArgument(
            f"{name} must lie between {lowest} and {highest}{unit}",
            field=name,
            limit=lowest if value < lowest else highest,
        )
