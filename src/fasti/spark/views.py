"""What each view looks like in Spark, and how the broker's batches become it.

Moments are `timestamp` (microseconds, UTC) and named without the unit: `due`, `at`, `started`.
Everything may be null, because Spark's rows are checked against the schema to the letter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from fasti.core.keys import HEADERS
from fasti.errors import InvalidArgument

MOMENT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view, and the column on the wire that it is made of."""

    name: str
    kind: pa.DataType
    wire: str = ""

    @property
    def source(self) -> str:
        """The wire's name for it."""
        return self.wire or self.name


def _moment(name: str) -> Column:
    return Column(name, MOMENT, f"{name}_us")


_CONTENTS = (
    _moment("created"),
    Column("key", pa.string()),
    Column("headers", HEADERS),
    Column("content_type", pa.string()),
    Column("subject", pa.string()),
    Column("payload", pa.binary()),
)

VIEWS: dict[str, tuple[Column, ...]] = {
    "messages": (
        Column("id", pa.int64()),
        Column("partition", pa.int32()),
        Column("state", pa.string()),
        _moment("due"),
        Column("version", pa.int64()),
        Column("attempts", pa.int32()),
        Column("owner", pa.string()),
        Column("consumer", pa.string()),
        Column("reason", pa.string()),
        Column("priority", pa.int32()),
        *_CONTENTS,
    ),
    "log": (
        Column("partition", pa.int32()),
        Column("offset", pa.int64()),
        *_CONTENTS,
    ),
    "kv": (
        Column("key", pa.string()),
        Column("clustering", pa.string()),
        Column("version", pa.int64()),
        _moment("expires"),
        _moment("created"),
        Column("headers", HEADERS),
        Column("content_type", pa.string()),
        Column("value", pa.binary()),
    ),
    "changes": (
        Column("shard", pa.string()),
        Column("position", pa.int64()),
        Column("row", pa.int32()),
        _moment("at"),
        Column("op", pa.string()),
        Column("topic", pa.string()),
        Column("partition", pa.int32()),
        Column("id", pa.int64()),
        Column("offset", pa.int64()),
        Column("version", pa.int64()),
        _moment("due"),
        _moment("started"),
        Column("token", pa.int64()),
        Column("lease_us", pa.int64()),
        Column("priority", pa.int32()),
        Column("owner", pa.string()),
        Column("consumer", pa.string()),
        Column("group", pa.string()),
        Column("reason", pa.string()),
        Column("stage", pa.string()),
        Column("details", pa.string()),
        Column("key", pa.string()),
        Column("headers", HEADERS),
        Column("content_type", pa.string()),
        Column("subject", pa.string()),
        Column("payload", pa.binary()),
    ),
}


class View:
    """The columns that one read has."""

    def __init__(
        self, name: str, columns: Sequence[str] | None, payload: bool = True, headers: bool = True
    ) -> None:
        self.name = name
        known = {column.name: column for column in VIEWS[name]}
        if columns is None:
            columns = [
                each
                for each in known
                if (each != "payload" or payload) and (each != "headers" or headers)
            ]
        for each in columns:
            if each not in known:
                raise InvalidArgument(
                    f"view {name!r} has no column {each!r}: there are {', '.join(known)}",
                    field="columns",
                )
        if len(set(columns)) != len(columns) or not columns:
            raise InvalidArgument("columns names each column once", field="columns")
        self.columns = [known[each] for each in columns]

    @property
    def schema(self) -> pa.Schema:
        """As Arrow has it."""
        return pa.schema([pa.field(column.name, column.kind) for column in self.columns])

    @property
    def wants_contents(self) -> bool:
        """Whether anything is asked for that lies with the payload."""
        contents = {column.name for column in _CONTENTS}
        return any(column.name in contents for column in self.columns)

    def made_of(self, batch: pa.RecordBatch, **constants: str) -> pa.RecordBatch:
        """The view's columns of a batch that came over the wire."""
        arrays = []
        names = batch.schema.names
        for column in self.columns:
            if column.name in constants:
                array = pa.repeat(pa.scalar(constants[column.name]), batch.num_rows)
            elif column.source in names:
                array = batch.column(column.source)
            else:
                array = pa.nulls(batch.num_rows, column.kind)
            arrays.append(array if array.type == column.kind else array.cast(column.kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
