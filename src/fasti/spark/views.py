"""What each view looks like in Spark, and how the broker's batches become it.

Moments are `timestamp` (microseconds, UTC) and named without the unit: `due`, `at`, `started`.
Everything may be null, because Spark's rows are checked against the schema to the letter.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

# Of which moment all rows of a read are: the position of the change feed behind which everything
# that isn't in them happened.
_SNAPSHOT = (Column("shard", pa.string()), Column("snapshot_position", pa.int64()))
# The same in all rows of a task; the tasks know it, the wire doesn't carry it.
CONSTANT = {
    "messages": ("shard", "snapshot_position"),
    "log": (),
    "kv": ("shard", "snapshot_position"),
    "changes": ("shard",),
}
# By these a read that was interrupted is gone on with, so they travel in any case.
_PLACES = {"log": "offset", "changes": "position"}

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
        *_SNAPSHOT,
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
        *_SNAPSHOT,
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
            left_out = {"payload"} if not payload else set()
            left_out |= {"headers"} if not headers else set()
            columns = [each for each in known if each not in left_out]
        for each in columns:
            if each not in known:
                raise InvalidArgument(_unknown(name, each), field="columns")
        if len(set(columns)) != len(columns) or not columns:
            raise InvalidArgument("columns names each column once", field="columns")
        self.columns = [known[each] for each in columns]

    @property
    def schema(self) -> pa.Schema:
        """As Arrow has it."""
        return pa.schema([pa.field(column.name, column.kind) for column in self.columns])

    @property
    def wire(self) -> list[str]:
        """The columns that travel; at least one, so that rows can be counted."""
        found = [each.source for each in self.columns if each.name not in CONSTANT[self.name]]
        place = _PLACES.get(self.name, "version")
        return found if place in found or (found and self.name not in _PLACES) else [*found, place]

    def made_of(self, batch: pa.RecordBatch, **constants: Any) -> pa.RecordBatch:
        """The view's columns of a batch that came over the wire."""
        arrays = []
        names = batch.schema.names
        for column in self.columns:
            if column.name in constants:
                array = pa.repeat(pa.scalar(constants[column.name], column.kind), batch.num_rows)
            elif column.source in names:
                array = batch.column(column.source)
            else:
                array = pa.nulls(batch.num_rows, column.kind)
            arrays.append(array if array.type == column.kind else array.cast(column.kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _unknown(view: str, column: str) -> str:
    names = [each.name for each in VIEWS[view]]
    near = difflib.get_close_matches(column.lower(), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    return f"view {view!r} has no column {column!r}: {hint}"
