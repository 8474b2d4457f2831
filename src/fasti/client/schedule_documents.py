"""Schedules as definitions write them: what `put` is given, by name, without what is a default.

Lengths of time are `30s`, moments ISO 8601 in UTC; a payload that is a text stands as one, another
in base64 as `payload_base64`. Two equal schedules have equal documents. Whether a schedule rests is
no part of it: that is left to the callers of `pause` and `resume`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fasti.client.durations import as_datetime, length_text
from fasti.client.schedules import wire_definition
from fasti.core.cron.schedule import Schedule, check_schedule
from fasti.errors import InvalidArgument
from fasti.model import Limits

_MOMENTS = ("start", "end")
_IN_BASE64 = "payload_base64"


def schedule_to_document(schedule: Schedule) -> dict[str, Any]:
    """Its document."""
    document: dict[str, Any] = {}
    for name, value in schedule.to_dict().items():
        plain = name.removesuffix("_us")
        if name == "payload":
            plain, value = _shown(schedule.payload)
        elif plain in _MOMENTS:
            value = as_datetime(value).isoformat().replace("+00:00", "Z")
        elif plain != name:
            value = length_text(value)
        document[plain] = value
    return document


def schedule_of_document(given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The arguments of `put` from a document. Raises `invalid_argument` on what makes no schedule."""
    schedule = Schedule.from_dict(wire_definition(**arguments_of(given)))
    check_schedule(schedule, limits)
    return schedule_to_document(schedule)


def arguments_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What `put` is given to make it."""
    arguments = dict(document)
    if _IN_BASE64 in arguments:
        if "payload" in arguments:
            raise InvalidArgument(f"payload or {_IN_BASE64}, not both", field="payload")
        arguments["payload"] = _decoded(arguments.pop(_IN_BASE64))
    for name in _MOMENTS:
        if isinstance(arguments.get(name), str):
            arguments[name] = _moment(name, arguments[name])
    return arguments


def _shown(payload: bytes) -> tuple[str, str]:
    try:
        return "payload", payload.decode()
    except UnicodeDecodeError:
        return _IN_BASE64, base64.b64encode(payload).decode()


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidArgument(f"{_IN_BASE64} is not base64", field=_IN_BASE64) from None


def _moment(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{name} is not a time in ISO 8601: write it like 2026-12-24T18:00+01:00", field=name
        ) from None
