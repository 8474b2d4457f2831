"""Rows of messages as people have them (lists, numpy, Arrow), as the protocol's columns.

Whatever is wrong is an `invalid_argument` that names the column, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.client.durations import aware_us, check_one_moment, duration_us, moment_us
from fasti.errors import InvalidArgument
from fasti.protocol.schemas import PRODUCE_TYPES

_NAMES = (
    "payload",
    "due",
    "due_us",
    "delay",
    "delay_us",
    "key",
    "headers",
    "content_type",
    "priority",
    "subject",
    "expires",
    "expires_us",
    "expires_after_us",
)


def as_bytes(payload: Any) -> bytes:
    """A payload; text is the caller's to encode."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    raise InvalidArgument(
        f"a payload must be bytes, not {type(payload).__name__}: encode it first", field="payload"
    )


def as_headers(headers: Any) -> list[tuple[str, str]]:
    """Headers as pairs of text."""
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise InvalidArgument(
                f"headers must be pairs of strings, not {pair!r}", field="headers"
            )
    return pairs


def message_batch(
    payloads: Any,
    due: Any = None,
    delay: Any = None,
    key: Any = None,
    headers: Any = None,
    content_type: Any = None,
    priority: Any = None,
    subject: Any = None,
    at: Any = None,
    expires: Any = None,
) -> pa.RecordBatch:
    """Columns, or one value for all rows, as a batch. `payloads` may be a whole table."""
    check_one_moment(at, delay, due)
    if isinstance(payloads, (pa.Table, pa.RecordBatch)):
        columns = {name: payloads.column(name) for name in payloads.schema.names}
    else:
        columns = {"payload": payloads}
    given = {"due": due, "delay": delay, "key": key, "headers": headers}
    given |= {"content_type": content_type, "priority": priority, "subject": subject}
    given["expires"] = expires
    for name, values in given.items():
        if values is not None:
            columns[name] = values
    unknown = sorted(set(columns) - set(_NAMES))
    if unknown:
        raise InvalidArgument(
            f"a message has no column {unknown[0]!r}, but {', '.join(_NAMES)}", field=unknown[0]
        )
    if "payload" not in columns:
        raise InvalidArgument("a batch needs a column payload", field="payload")
    payload = _column("payload", columns.pop("payload"), pa.binary())
    arrays = {"payload": payload}
    if at is not None:
        columns["at"] = at
    for name, values in columns.items():
        wire, array = _converted(name, values, len(payload))
        if wire in arrays:
            raise InvalidArgument(f"{name} is given twice", field=name)
        arrays[wire] = array
    return _checked_batch(arrays)


def _checked_batch(arrays: dict[str, pa.Array]) -> pa.RecordBatch:
    rows = len(arrays["payload"])
    if arrays["payload"].null_count:
        raise InvalidArgument("a payload may be empty but not missing", field="payload")
    for name, array in arrays.items():
        if len(array) != rows:
            raise InvalidArgument(
                f"{name} has {len(array)} rows and payload {rows}", field=name, limit=rows
            )
    names = [name for name in PRODUCE_TYPES if name in arrays]
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names)


def _converted(name: str, values: Any, rows: int) -> tuple[str, pa.Array]:
    if name in ("at", "due", "due_us"):
        return "due_us", _moments(name, values, rows)
    if name in ("delay", "delay_us"):
        return "delay_us", _lengths(name, values, rows)
    if name == "expires":
        return expiry_column(values, rows)
    if name == "expires_us":
        return name, _moments(name, values, rows)
    if name == "expires_after_us":
        return name, _lengths(name, values, rows)
    single = isinstance(values, (str, Mapping)) or (name == "priority" and _is_number(values))
    if single and name == "key" and rows > 1:
        raise InvalidArgument("key must be a column: a key has one message", field="key")
    values = [values] * rows if single else values
    if name == "headers" and not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = [None if pairs is None else as_headers(pairs) for pairs in values]
    return name, _column(name, values, PRODUCE_TYPES[name])


def expiry_column(values: Any, rows: int) -> tuple[str, pa.Array]:
    """By when messages must be begun: moments, or lengths of time from when they are due."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        if pa.types.is_timestamp(values.type):
            return "expires_us", _moments("expires", values, rows)
        if pa.types.is_duration(values.type):
            return "expires_after_us", _lengths("expires", values, rows)
        raise InvalidArgument(
            f"expires must be timestamps or durations, not {values.type}; whole microseconds go "
            "into expires_us or expires_after_us",
            field="expires",
        )
    many = isinstance(values, Sequence) and not isinstance(values, str)
    moments_or_lengths = list(values) if many else [values]
    if any(isinstance(value, datetime) for value in moments_or_lengths):
        return "expires_us", _moments("expires", moments_or_lengths if many else values, rows)
    if not many:
        return "expires_after_us", pa.array(np.full(rows, _after_us(values)))
    return "expires_after_us", _column(
        "expires",
        [None if value is None else _after_us(value) for value in moments_or_lengths],
        pa.int64(),
    )


def expiry_or_expiries(values: Any, rows: int) -> tuple[str, pa.Array | int]:
    """The same; one for all rows as a number."""
    one = isinstance(values, (datetime, str, int, float, timedelta))
    return one_expiry(values) if one else expiry_column(values, rows)


def one_expiry(value: Any) -> tuple[str, int]:
    """The same for one message: the wire's column, and its value."""
    if isinstance(value, datetime):
        return "expires_us", moment_us(value, "expires")
    return "expires_after_us", _after_us(value)


def _after_us(value: Any) -> int:
    length_us = duration_us(value, "expires")
    if length_us < 1:
        raise InvalidArgument("expires must be later than the message is due", field="expires")
    return length_us


def priority_column(values: Any, rows: int) -> pa.Array:
    """Priorities: one for all rows, or a column."""
    return _converted("priority", values, rows)[1]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def moments(values: Any, rows: int, field: str = "due") -> pa.Array:
    """Moments as int64: one for all rows, or a column."""
    return _moments(field, values, rows)


def moment_or_moments(values: Any, rows: int, field: str) -> pa.Array | int:
    """The same; one for all rows as a number."""
    if isinstance(values, (datetime, int)):
        return (aware_us if field == "at" else moment_us)(values, field)
    return _moments(field, values, rows)


def _moments(name: str, values: Any, rows: int) -> pa.Array:
    one = aware_us if name == "at" else moment_us
    if isinstance(values, (datetime, int)):
        return pa.array(np.full(rows, one(values, name)))
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        kind = values.type
        if name == "at" and not pa.types.is_timestamp(kind):
            raise _not_aware(kind)
        if pa.types.is_timestamp(kind):
            if kind.tz is None:
                raise InvalidArgument(
                    f"{name} must be a timestamp with a time zone, such as timestamp('us', 'UTC')",
                    field=name,
                )
            values = values.cast(pa.timestamp("us", "UTC"), safe=False)
        return _column(name, values, pa.int64())
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "M":
            raise InvalidArgument(f"{name}: datetime64 has no time zone", field=name)
        if name == "at":
            raise _not_aware(values.dtype)
        return _column(name, values, pa.int64())
    if not isinstance(values, Sequence) or isinstance(values, str):
        return pa.array([one(values, name)] * rows, type=pa.int64())
    plain = name != "at" and all(type(value) is int for value in values)
    moments_us = values if plain else [None if v is None else one(v, name) for v in values]
    return _column(name, moments_us, pa.int64())


def _not_aware(kind: object) -> InvalidArgument:
    return InvalidArgument(
        f"at must be aware datetimes, not {kind}; microseconds go into due=", field="at"
    )


def lengths(values: Any, rows: int, field: str = "delay") -> pa.Array:
    """Lengths of time as int64 microseconds: one for all rows, or a column."""
    return _lengths(field, values, rows)


def length_or_lengths(values: Any, rows: int) -> pa.Array | int:
    """The same of delays; one for all rows as a number."""
    one = isinstance(values, (str, int, float, timedelta))
    return duration_us(values, "delay") if one else _lengths("delay", values, rows)


def _lengths(name: str, values: Any, rows: int) -> pa.Array:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        if pa.types.is_duration(values.type):
            values = values.cast(pa.duration("us"), safe=False)
        elif name == "delay" and not pa.types.is_null(values.type):
            raise InvalidArgument("delay must be an Arrow duration; use delay_us", field=name)
        return _column(name, values, pa.int64())
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "m":
            values = values.astype("timedelta64[us]").astype(np.int64)
        elif name == "delay":
            values = np.rint(values * 1e6).astype(np.int64)
        return _column(name, values, pa.int64())
    if isinstance(values, Sequence) and not isinstance(values, str):
        if name == "delay":
            values = [None if v is None else duration_us(v, name) for v in values]
        return _column(name, values, pa.int64())
    return pa.array(np.full(rows, duration_us(values, name)))


def column(name: str, values: Any, kind: pa.DataType) -> pa.Array:
    """Values as one Arrow array of a type."""
    return _column(name, values, kind)


def _column(name: str, values: Any, kind: pa.DataType) -> pa.Array:
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks else pa.array([], kind)
        array = values if isinstance(values, pa.Array) else pa.array(values, type=kind)
        return array if array.type == kind else array.cast(kind)
    except (pa.ArrowException, TypeError, UnicodeError, OverflowError) as error:
        raise InvalidArgument(f"{name} must be {kind}: {error}", field=name) from error


def pieces(batch: pa.RecordBatch, rows_max: int, bytes_max: int) -> list[pa.RecordBatch]:
    """The batch in pieces that each fit; one row that alone is too large stays alone."""
    rows = batch.num_rows
    if rows <= rows_max and (batch.nbytes <= bytes_max or rows <= 1):
        return [batch] if rows else []
    if rows > rows_max:
        cuts = [batch.slice(begin, rows_max) for begin in range(0, rows, rows_max)]
    else:
        cuts = [batch.slice(0, rows // 2), batch.slice(rows // 2)]
    return [piece for cut in cuts for piece in pieces(cut, rows_max, bytes_max)]
