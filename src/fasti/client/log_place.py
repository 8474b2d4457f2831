"""Where in a log something begins, as people say it: the earliest row, the end, an offset, a moment."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fasti.client.durations import moment_us
from fasti.client.transport import Header
from fasti.errors import InvalidArgument

EARLIEST, LATEST = -1, -2
STARTS = {"earliest": EARLIEST, "latest": LATEST}

Start = Any
"""`"earliest"`, `"latest"`, an offset, a dict of offsets by partition, or an aware datetime."""


def place_header(start: Start, partition: int | None, field: str = "start") -> Header:
    """The fields that say it to the broker."""
    header: Header = {} if partition is None else {"partition": checked_offset(partition, field)}
    if isinstance(start, str):
        if start not in STARTS:
            raise InvalidArgument(
                f"{field} must be earliest, latest, an offset or a moment, not {start!r}",
                field=field,
            )
        return header | {"start": start}
    if isinstance(start, datetime):
        return header | {"time_us": moment_us(start, field)}
    if isinstance(start, Mapping):
        if partition is not None:
            raise InvalidArgument("offsets by partition name their partitions", field="partition")
        offsets = {checked_offset(n, field): checked_offset(at, field) for n, at in start.items()}
        return {"offsets": {str(number): offset for number, offset in offsets.items()}}
    return header | {"offset": checked_offset(start, field)}


def checked_offset(value: Any, field: str) -> int:
    """A whole number from 0 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgument(
            f"{field} must be a whole number that is not negative, not {value!r}", field=field
        )
    return value
