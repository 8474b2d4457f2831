"""DataFrames that are written: which columns an operation takes, and how they go over the wire.

A `RowShape` is made of a schema in the driver, before any task runs, and refuses what can't be: a
column that is unknown, one that is missing, one of another type. It travels to the tasks, which
make the wire's columns of each batch with it, without a look at single rows unless one is wrong;
then the error names it. All are `invalid_argument`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from fasti.core.fields import HEADERS
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, PARTITIONS_MAX, PRIORITY_MAX
from fasti.spark.views import VIEWS


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a DataFrame and what it becomes on the wire."""

    name: str
    wire: str
    kinds: tuple[type[DataType], ...]
    expected: str
    made: pa.DataType
    # The least and the most that it can be.
    bounds: tuple[int, int] | None = None


_TEXT = (StringType,)
_BYTES = (BinaryType, StringType)
_INT64 = (1 << 63) - 1
_FIELDS = (
    Field("payload", "payload", _BYTES, "binary, or string, which goes as UTF-8", pa.binary()),
    Field("value", "payload", _BYTES, "binary, or string, which goes as UTF-8", pa.binary()),
    Field("due", "due_us", (TimestampType,), "timestamp", pa.int64(), (0, DUE_MAX_US)),
    Field("expires", "expires_us", (TimestampType,), "timestamp", pa.int64(), (1, DUE_MAX_US)),
    Field("delay", "delay_us", (DayTimeIntervalType,), "interval day to second", pa.int64(), (0, DUE_MAX_US)),
    Field("ttl", "ttl_us", (DayTimeIntervalType,), "interval day to second", pa.int64(), (1, DUE_MAX_US)),
    Field("key", "key", _TEXT, "string", pa.string()),
    Field("clustering", "clustering", _TEXT, "string", pa.string()),
    Field("content_type", "content_type", _TEXT, "string", pa.string()),
    Field("subject", "subject", _TEXT, "string", pa.string()),
    Field("topic", "topic", _TEXT, "string", pa.string()),
    Field("headers", "headers", (MapType,), "map<string,string>", HEADERS),
    Field("priority", "priority", (IntegralType,), "int", pa.int32(), (0, PRIORITY_MAX)),
    Field("partition", "partition", (IntegralType,), "int", pa.int32(), (0, PARTITIONS_MAX - 1)),
    Field("version", "version", (IntegralType,), "bigint", pa.int64(), (0, _INT64)),
    Field("id", "id", (IntegralType,), "bigint", pa.int64(), (1, _INT64)),
)  # fmt: skip
FIELDS = {field.name: field for field in _FIELDS}

_NAMED = ("id", "key", "version")
# The columns of each operation, and of those the ones of which one must be there.
COLUMNS: dict[str, tuple[str, ...]] = {
    "produce": ("payload", "due", "delay", "expires", "key", "priority", "headers", "content_type", "subject", "partition"),
    "update": (*_NAMED, "payload", "headers", "content_type", "priority"),
    "move": (*_NAMED, "due", "delay", "expires"),
    "cancel": _NAMED,
    "put": ("key", "clustering", "value", "payload", "ttl", "expires", "version", "headers", "content_type"),
}  # fmt: skip
_NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "produce": (("payload",),),
    "update": (("id", "key"), ("payload", "priority")),
    "move": (("id", "key"), ("due", "delay")),
    "cancel": (("id", "key"),),
    "put": (("key",), ("value", "payload")),
}
_EITHER = (("due", "delay"), ("ttl", "expires"), ("value", "payload"))
# Of a row that changes something, these say which one and how; none may be null.
_NAMING = ("id", "key", "due", "delay", "priority")
# What a read of messages has besides: where messages are changed by what was read, it is in the way
# of nobody.
_READ = frozenset(column.name for column in VIEWS["messages"])
_CHANGES = ("update", "move", "cancel")

# How to come by what is wanted, where it isn't plain.
_HINTS = {
    "payload": "; to_json(struct(...)) or a cast makes one",
    "value": "; to_json(struct(...)) or a cast makes one",
    "due": "; cast it, or to_timestamp",
    "expires": "; cast it, or to_timestamp",
    "delay": "; interval '1' hour, or make_dt_interval(0, hours, minutes, seconds)",
    "ttl": "; interval '1' hour, or make_dt_interval(0, hours, minutes, seconds)",
}

# Which operations a kind of topic takes.
OF_KIND = {
    "timeline": ("produce", *_CHANGES),
    "priority": ("produce", *_CHANGES),
    "log": ("produce",),
    "kv": ("put",),
    "cron": (),
}
# Columns that rows of a kind have not.
_NOT_IN = {
    "log": ("due", "delay", "priority", "expires"),
    "timeline": ("priority", "partition"),
    "priority": ("partition",),
}


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns of one DataFrame that an operation uses. Values only: goes to the tasks."""

    operation: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType, operation: str, topic: bool, shift: bool = False) -> RowShape:
        """Of a DataFrame. `topic`: whether one is given for all rows. Raises `invalid_argument`."""
        allowed = COLUMNS[operation]
        names = [field.name for field in schema.fields]
        _check_topic(names, topic)
        for field in schema.fields:
            _check_known(field.name, allowed, operation, names)
        used = [name for name in allowed if name in names]
        if "id" in used and "key" in used:
            used.remove("key")
        for choice in _NEEDED[operation]:
            if not any(name in used for name in choice) and not (shift and "due" in choice):
                raise InvalidArgument(
                    f"operation {operation!r} needs a column {' or '.join(map(repr, choice))}; "
                    f"there are {', '.join(names) or 'none'}",
                    field=choice[0],
                )
        used = _without_spare(used, operation)
        if "topic" in names:
            used.append("topic")
        for name in used:
            _check_type(FIELDS[name], schema[name].dataType)
        return cls(operation, tuple(used))

    def check_kind(self, topic: str, kind: str) -> tuple[str, ...]:
        """Which of the wire's columns that kind of topic has no use for, because they were read.

        Raises `invalid_argument` if it can't take this.
        """
        if self.operation not in OF_KIND[kind]:
            can = " or ".join(map(repr, OF_KIND[kind])) or "no write at all"
            raise InvalidArgument(
                f"topic {topic!r} is of kind {kind!r}: operation {self.operation!r} is not for it, "
                f"but {can}",
                field="operation",
            )
        wrong = [name for name in _NOT_IN.get(kind, ()) if name in self.columns]
        if self.operation == "update" and "payload" in self.columns:
            # A read of messages has all columns, of every topic.
            return tuple(FIELDS[name].wire for name in wrong)
        if wrong:
            raise InvalidArgument(
                f"topic {topic!r} is of kind {kind!r}, whose rows have no {wrong[0]!r}: "
                "leave the column out",
                field=wrong[0],
            )
        return ()


def _check_topic(names: list[str], topic: bool) -> None:
    if topic and "topic" in names:
        raise InvalidArgument(
            "there are an option 'topic' and a column 'topic': give one of them", field="topic"
        )
    if not topic and "topic" not in names:
        raise InvalidArgument(
            "the option 'topic' is missing, and there is no column 'topic'", field="topic"
        )


def _check_known(name: str, allowed: tuple[str, ...], operation: str, names: list[str]) -> None:
    if names.count(name) > 1:
        raise InvalidArgument(f"there are two columns {name!r}", field=name)
    if name in allowed or name == "topic" or (operation in _CHANGES and name in _READ):
        return
    near = difflib.get_close_matches(name.lower(), allowed, n=1)
    hint = f": did you mean {near[0]!r}?" if near else f", but {', '.join(allowed)} and topic"
    raise InvalidArgument(f"operation {operation!r} has no column {name!r}{hint}", field=name)


def _without_spare(used: list[str], operation: str) -> list[str]:
    """One column of those that mean the same; both of due and delay only where rows are new."""
    for first, second in _EITHER:
        if first in used and second in used and (first, operation) != ("due", "produce"):
            raise InvalidArgument(
                f"operation {operation!r} takes a column {first!r} or {second!r}, not both",
                field=second,
            )
    return used


def _check_type(field: Field, kind: DataType) -> None:
    fits = isinstance(kind, field.kinds)
    if isinstance(kind, MapType) and fits:
        fits = isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    if fits:
        return
    hint = _HINTS.get(field.name, "")
    if isinstance(kind, TimestampNTZType):
        hint = ": without a time zone it does not name one moment; cast it to timestamp"
    raise InvalidArgument(
        f"column {field.name!r} must be {field.expected}, not {kind.simpleString()}{hint}",
        field=field.name,
    )


class TaskRows:
    """Makes the wire's columns of a task's batches; one for each task."""

    def __init__(self, shape: RowShape, task: str) -> None:
        self._shape, self._task = shape, task
        self._before = 0

    def made_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns as they travel, among them `topic` where rows have one."""
        columns: dict[str, pa.Array] = {}
        for name in self._shape.columns:
            field = FIELDS[name]
            columns[field.wire] = self._converted(batch, field)
        self._check(batch, columns)
        self._before += batch.num_rows
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _converted(self, batch: pa.RecordBatch, field: Field) -> pa.Array:
        array = batch.column(field.name)
        if pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type):
            array = array.view(pa.int64())
        if array.null_count and self._needs(field.name):
            row = pc.index(array.is_null(), True).as_py()
            self._refuse(batch, row, field, "is null")
        if field.bounds is not None:
            self._check_bounds(batch, field, array)
        if field.made == HEADERS:
            self._check_headers(batch, field, array)
        return array if array.type == field.made else array.cast(field.made)

    def _check_headers(self, batch: pa.RecordBatch, field: Field, array: pa.Array) -> None:
        if not array.items.null_count:
            return
        pairs = array.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
        empty = pc.list_flatten(pairs).field("value").is_null()
        place = pc.index(empty, True).as_py()
        if place >= 0:
            row = pc.list_parent_indices(pairs)[place].as_py()
            self._refuse(batch, row, field, "has a null among its values")

    def _needs(self, name: str) -> bool:
        """Whether every row must have it."""
        if name in ("payload", "value"):
            # Without a value an entry is deleted.
            return self._shape.operation != "put"
        return name == "topic" or (self._shape.operation != "produce" and name in _NAMING)

    def _check_bounds(self, batch: pa.RecordBatch, field: Field, array: pa.Array) -> None:
        assert field.bounds is not None
        least, most = field.bounds
        bounds = pc.min_max(array)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low is None or (low >= least and high <= most):
            return
        out = pc.or_(pc.less(array, least), pc.greater(array, most))
        row = pc.index(out, True).as_py()
        value = batch.column(field.name)[row]
        if field.wire == "due_us":
            self._refuse(batch, row, field, f"is before 1970 or too far away: {_excerpt(value)}")
        self._refuse(batch, row, field, f"is {_excerpt(value)}, not {least} to {most}")

    def _check(self, batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> None:
        if "due_us" in columns and "delay_us" in columns:
            both = pc.and_(columns["due_us"].is_valid(), columns["delay_us"].is_valid())
            row = pc.index(both, True).as_py()
            if row >= 0:
                self._refuse(batch, row, FIELDS["due"], "and 'delay' are both given")

    def _refuse(self, batch: pa.RecordBatch, row: int, field: Field, problem: str) -> None:
        where = f"row {self._before + row} of {self._task}"
        for name in ("key", "id"):
            if name in batch.schema.names and name != field.name:
                where += f" ({name} {batch.column(name)[row].as_py()!r})"
        raise InvalidArgument(f"column {field.name!r} {problem} in {where}", field=field.name)


def _excerpt(value: pa.Scalar) -> str:
    """A value that may be outside of what Python has dates for."""
    try:
        return str(value.as_py())
    except (ValueError, OverflowError):
        return f"{value.value} microseconds since 1970"
