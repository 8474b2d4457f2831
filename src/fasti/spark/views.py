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

from fasti.core.fields import HEADERS
from fasti.errors import InvalidArgument

MOMENT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view, and the column on the wire that it is made of."""

    name: str
    kind: pa.DataType
    meaning: str
    wire: str = ""

    @property
    def source(self) -> str:
        """The wire's name for it."""
        return self.wire or self.name


def _moment(name: str, meaning: str) -> Column:
    return Column(name, MOMENT, meaning, f"{name}_us")


_HEADERS = Column("headers", HEADERS, "as they were sent; null without any")
_TYPE = Column("content_type", pa.string(), "what the payload is, if its sender said so")
_SUBJECT = Column("subject", pa.string(), "by which it was routed")
_CONTENTS = (
    _moment("created", "when it was produced, or appended to the log"),
    Column("key", pa.string(), "the application's own name for it"),
    _HEADERS,
    _TYPE,
    _SUBJECT,
    Column("payload", pa.binary(), "the message itself"),
)

# Of which moment all rows of a read are: the position of the change feed behind which everything
# that isn't in them happened.
_SNAPSHOT = (
    Column("shard", pa.string(), "what the position belongs to"),
    Column("snapshot_position", pa.int64(), "of which moment all rows are: the change feed goes on behind it"),
)  # fmt: skip
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
        Column("id", pa.int64(), "the broker's name for it, unique in the topic"),
        Column("partition", pa.int32(), "of the topic"),
        Column("state", pa.string(), "`scheduled`, `ready` (due by now), `leased` or `dead`"),
        _moment("due", "when it is to be delivered"),
        Column("version", pa.int64(), "goes up with every change"),
        Column("attempts", pa.int32(), "deliveries so far"),
        Column("owner", pa.string(), "the producer group that may change it; null: anyone"),
        Column("consumer", pa.string(), "who has it leased"),
        Column("reason", pa.string(), "why it is dead, or why it last came back"),
        Column("priority", pa.int32(), "0 but in priority topics"),
        _moment("leased", "when its consumer got it"),
        _moment("lease_until", "until when its consumer has it, if it is not renewed"),
        _moment("died", "when it died"),
        _moment("expires", "by when it must be begun, or is dead; null: no matter"),
        *_CONTENTS,
        *_SNAPSHOT,
    ),
    "log": (
        Column("partition", pa.int32(), "of the log"),
        Column("offset", pa.int64(), "the row's number in its partition, from 0, without holes"),
        *_CONTENTS,
    ),
    "kv": (
        Column("key", pa.string(), "the entry's name"),
        Column("clustering", pa.string(), "the second part of its name, if it has one"),
        Column("version", pa.int64(), "goes up with every put"),
        _moment("expires", "when it goes by itself; null: it stays"),
        _moment("created", "when this value was put"),
        _HEADERS,
        _TYPE,
        Column("value", pa.binary(), "the value"),
        *_SNAPSHOT,
    ),
    "changes": (
        Column("shard", pa.string(), "what the position belongs to"),
        Column("position", pa.int64(), "the place in the feed"),
        Column("row", pa.int32(), "the place within the position; both together name the row for ever"),
        _moment("at", "when it was decided, on the broker's clock"),
        Column("op", pa.string(), "what happened: see [the change feed](../guides/changes.md#columns)"),
        Column("topic", pa.string(), "where"),
        Column("partition", pa.int32(), "where"),
        Column("id", pa.int64(), "the message"),
        Column("offset", pa.int64(), "the row of a log"),
        Column("version", pa.int64(), "the message's version from then on"),
        _moment("due", "when it is due from then on; of an entry, when it expires"),
        _moment("started", "when user code got it, on the broker's clock"),
        Column("token", pa.int64(), "of the lease"),
        Column("lease_us", pa.int64(), "how long the lease lasts, in microseconds"),
        Column("priority", pa.int32(), "of priority topics"),
        Column("owner", pa.string(), "the producer group"),
        Column("consumer", pa.string(), "who has it leased"),
        Column("group", pa.string(), "the group of a log"),
        Column("reason", pa.string(), "why it failed or died"),
        Column("stage", pa.string(), "of staged and published rows"),
        Column("details", pa.string(), "the rest, as JSON: of topics, bindings, groups, schedules"),
        Column("key", pa.string(), "the application's own name for it"),
        _HEADERS,
        _TYPE,
        _SUBJECT,
        Column("payload", pa.binary(), "only with the option `payload`, or when `columns` names it"),
    ),
}  # fmt: skip


class View:
    """The columns that one read has."""

    def __init__(
        self, name: str, columns: Sequence[str] | None, payload: bool = True, headers: bool = True
    ) -> None:
        self.name = name
        by_name = {column.name: column for column in VIEWS[name]}
        if columns is None:
            left_out = {"payload"} if not payload else set()
            left_out |= {"headers"} if not headers else set()
            columns = [column_name for column_name in by_name if column_name not in left_out]
        for column_name in columns:
            if column_name not in by_name:
                raise InvalidArgument(_unknown(name, column_name), field="columns")
        if len(set(columns)) != len(columns) or not columns:
            raise InvalidArgument("columns must name each column once", field="columns")
        self.columns = [by_name[column_name] for column_name in columns]

    @property
    def schema(self) -> pa.Schema:
        """As Arrow has it."""
        return pa.schema([pa.field(column.name, column.kind) for column in self.columns])

    @property
    def wire(self) -> list[str]:
        """The columns that travel; at least one, so that rows can be counted."""
        sources = [
            column.source for column in self.columns if column.name not in CONSTANT[self.name]
        ]
        place = _PLACES.get(self.name, "version")
        return (
            sources
            if place in sources or (sources and self.name not in _PLACES)
            else [*sources, place]
        )

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
    names = [known.name for known in VIEWS[view]]
    near = difflib.get_close_matches(column.lower(), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    return f"view {view!r} has no column {column!r}: {hint}"
