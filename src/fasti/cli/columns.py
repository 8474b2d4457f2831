"""Times that a file has as text, as the microseconds that a producer takes.

A table of messages has the columns that `Producer.send_batch` takes, and it is `send_batch` that
refuses others. Parquet has types for times; CSV and JSON have texts, which are read as on the
command line: `due` in ISO 8601 with its zone, `delay` as `5m`.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import typer

from fasti.cli import moments
from fasti.errors import InvalidArgument


def with_times(table: pa.Table) -> pa.Table:
    """The table with `due_us` and `delay_us` in place of texts."""
    for name, parse in _PARSERS.items():
        if name in table.column_names and pa.types.is_string(table.column(name).type):
            place = table.column_names.index(name)
            values = _parsed(name, table.column(name), parse)
            table = table.set_column(place, f"{name}_us", values)
    return table


def _due_us(text: str) -> int:
    return moments.microseconds(moments.moment(text))


_PARSERS: dict[str, Callable[[str], int]] = {"due": _due_us, "delay": moments.length_us}


def _parsed(name: str, column: pa.ChunkedArray, parse: Callable[[str], int]) -> pa.Array:
    try:
        values = [None if text is None else parse(text) for text in column.to_pylist()]
    except typer.BadParameter as error:
        raise InvalidArgument(f"{name}: {error.message}", field=name) from None
    return pa.array(values, pa.int64())
