"""Entries as people have them (mappings, lists, Arrow), as the protocol's columns.

Whatever is wrong is an `invalid_argument` that names the column, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from fasti.client import columns as messages
from fasti.client.columns import as_headers, lengths, moments
from fasti.errors import InvalidArgument
from fasti.model import Limits
from fasti.protocol.schemas import PRODUCE_TYPES

# Pieces in which a large batch travels.
_PIECE_ROWS, _PIECE_BYTES = 50_000, 16 << 20

_TYPES: dict[str, pa.DataType] = {
    "key": pa.string(),
    "clustering": pa.string(),
    "value": pa.binary(),
    "version": pa.int64(),
    "ttl_us": pa.int64(),
    "expires_us": pa.int64(),
    "headers": PRODUCE_TYPES["headers"],
    "content_type": pa.string(),
}
_NAMES = (*_TYPES, "ttl", "expires")


def put_batch(keys: Any, values: Any, **given: Any) -> pa.RecordBatch:
    """The part of a put. `keys` may be a mapping, or a whole table."""
    if isinstance(keys, (pa.Table, pa.RecordBatch)):
        columns = {name: keys.column(name) for name in keys.schema.names}
    elif isinstance(keys, Mapping):
        if values is not None:
            raise InvalidArgument("a mapping has its values in it", field="values")
        columns = {"key": list(keys.keys()), "value": list(keys.values())}
    else:
        columns = {"key": keys}
    columns |= {name: value for name, value in given.items() if value is not None}
    if values is not None:
        columns["value"] = values
    for needed in ("key", "value"):
        if needed not in columns:
            raise InvalidArgument(f"a put needs a column {needed}", field=needed)
    return _batch(columns)


def names_batch(keys: Any, clustering: Any, version: Any) -> pa.RecordBatch:
    """The part that names entries."""
    if isinstance(keys, (pa.Table, pa.RecordBatch)):
        columns = {name: keys.column(name) for name in keys.schema.names}
    else:
        columns = {"key": keys}
    given = {"clustering": clustering, "version": version}
    return _batch(columns | {name: value for name, value in given.items() if value is not None})


def _batch(columns: dict[str, Any]) -> pa.RecordBatch:
    unknown = sorted(set(columns) - set(_NAMES))
    if unknown:
        raise InvalidArgument(
            f"an entry has no column {unknown[0]!r}, but {', '.join(_NAMES)}", field=unknown[0]
        )
    keys = columns.pop("key")
    if isinstance(keys, str):
        raise InvalidArgument("keys must be a column, not a single string", field="key")
    arrays = {"key": messages.column("key", keys, pa.string())}
    rows = len(arrays["key"])
    for name, values in columns.items():
        wire, array = _converted(name, values, rows)
        if wire in arrays:
            raise InvalidArgument(f"{name} is given twice", field=name)
        arrays[wire] = array
    for name, array in arrays.items():
        if len(array) != rows:
            raise InvalidArgument(f"{name} has {len(array)} rows and key {rows}", field=name)
        if name in ("key", "value") and array.null_count:
            raise InvalidArgument(f"a {name} may not be missing", field=name)
    names = [name for name in _TYPES if name in arrays]
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names)


def _converted(name: str, values: Any, rows: int) -> tuple[str, pa.Array]:
    if name in ("ttl", "ttl_us"):
        return "ttl_us", lengths(values, rows, "delay" if name == "ttl" else name)
    if name in ("expires", "expires_us"):
        if name == "expires" and isinstance(values, int):
            raise InvalidArgument("expires must be an aware datetime; see expires_us", field=name)
        if isinstance(values, datetime):
            values = [values] * rows
        return "expires_us", moments(values, rows, name)
    if isinstance(values, (str, int, Mapping)):
        values = [values] * rows
    if name == "headers" and not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = [None if headers is None else as_headers(headers) for headers in values]
    if name == "value" and isinstance(values, (bytes, bytearray, memoryview)):
        raise InvalidArgument("values must be a column, not a single value", field=name)
    return name, messages.column(name, values, _TYPES[name])


def pieces(batch: pa.RecordBatch, limits: Limits) -> list[pa.RecordBatch]:
    """The batch in pieces that each fit a request."""
    rows_max = min(limits.batch_rows_max, _PIECE_ROWS)
    return messages.pieces(batch, rows_max, min(limits.batch_bytes_max, _PIECE_BYTES))
