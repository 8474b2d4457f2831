"""The columns of a table of messages, as `fasti produce --file` takes them.

`payload` (text or binary) is needed. `key`, `content_type` and `headers` (a map) may be there, and
one of `due` (a time with its zone), `due_us`, `delay` (a length of time) and `delay_us`. Any other
column is refused, so that a misspelt one doesn't go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import typer

from fasti.cli import moments
from fasti.errors import InvalidArgument

NAMES = ("payload", "key", "due", "due_us", "delay", "delay_us", "headers", "content_type")
_TYPES = {
    "payload": pa.binary(),
    "key": pa.string(),
    "due_us": pa.int64(),
    "delay_us": pa.int64(),
    "headers": pa.map_(pa.string(), pa.string()),
    "content_type": pa.string(),
}


def as_messages(table: pa.Table) -> pa.Table:
    """The same rows under the names and types that a producer takes."""
    unknown = [name for name in table.column_names if name not in NAMES]
    if unknown or "payload" not in table.column_names:
        said = f"there is a column {unknown[0]!r}" if unknown else "there is no column 'payload'"
        raise InvalidArgument(f"{said}; messages have {', '.join(NAMES)}", field="file")
    if table.column("payload").null_count:
        raise InvalidArgument("a row has no payload", field="payload")
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name == "due":
            columns["due_us"] = _moments(column)
        elif name == "delay":
            columns["delay_us"] = _lengths(column)
        else:
            columns[name] = _cast(name, column)
    return pa.table(columns)


def _cast(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(_TYPES[name])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(
            f"the column {name!r} is {column.type}, not {_TYPES[name]}: {error}", field=name
        ) from None


def _moments(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise InvalidArgument("the times in 'due' don't say their zone", field="due")
        return column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    return _parsed("due", column, lambda text: moments.microseconds(moments.moment(text)))


def _lengths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_duration(column.type):
        return column.cast(pa.duration("us"), safe=False).cast(pa.int64())
    return _parsed("delay", column, moments.length_us)


def _parsed(name: str, column: pa.ChunkedArray, parse: Callable[[str], int]) -> pa.ChunkedArray:
    texts = pc.cast(column, pa.string()).to_pylist()
    try:
        values = [None if text is None else parse(text) for text in texts]
    except typer.BadParameter as error:
        raise InvalidArgument(error.message, field=name) from None
    return pa.chunked_array([pa.array(values, pa.int64())])
