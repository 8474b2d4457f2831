"""Journal frames as rows: one for each thing that happened to each message, in order.

This is what the change feed shows. A row says what its event says and no more; what a message was
before stands in the rows before it. Columns that an event doesn't have are null.
Rows of one frame happened together; `position` is the frame and `row` the place in it, so that the
pair names a row for ever.

Pure: frames and names in, batches out. No clock, no files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.catalogue.events import CatalogueFollowed, EntryChanged, EntryDropped
from fasti.core.cron import events as cron
from fasti.core.fields import FIELDS
from fasti.core.journaled import EVENTS
from fasti.core.keys import Rows
from fasti.core.kv.events import KvProduced, Removed
from fasti.core.lifecycle import Verb
from fasti.core.log import group_events as groups
from fasti.core.log.events import LogAppended, LogTrimmed
from fasti.core.log.group_events import GroupDied, GroupReturned
from fasti.core.numbered.events import CallAnswered, RowsAnswered
from fasti.core.priority.events import PriorityProduced, PriorityReplaced, Reprioritised
from fasti.core.sinks import events as sinks
from fasti.core.sinks.commands import PARCELS
from fasti.model import DUE_MAX_US, SEQUENCE_BITS
from fasti.storage.event_codec import decode, read_head, topic_of
from fasti.storage.frames import StoredFrame

Int64s = NDArray[np.int64]

_NUMBERS = {
    "partition": pa.int32(),
    "id": pa.int64(),
    "offset": pa.int64(),
    "version": pa.int64(),
    "due_us": pa.int64(),
    "started_us": pa.int64(),
    "token": pa.int64(),
    "lease_us": pa.int64(),
    "priority": pa.int32(),
}
_WORDS = ("op", "topic", "owner", "consumer", "group", "reason", "stage", "details")
_CONTENTS = ("key", "headers", "content_type", "subject")

TRANSITIONS = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        *(pa.field(name, kind) for name, kind in _NUMBERS.items()),
        *(pa.field(name, pa.string()) for name in _WORDS[2:]),
        *(FIELDS[name] for name in _CONTENTS),
    ]
)
WITH_PAYLOADS = TRANSITIONS.append(FIELDS["payload"].with_nullable(True))


Show = Callable[["_Table", Any, Rows | None], None]


class Names(Protocol):
    """What numbers in events stand for."""

    def topic(self, number: int) -> str: ...
    def group(self, topic: int, number: int, frame: int) -> str: ...


@dataclass(slots=True)
class _Contents:
    """Rows of a frame that some of our rows have as their contents."""

    begin: int
    batch: pa.RecordBatch
    rows: Int64s


@dataclass(slots=True)
class _Choice:
    """Words of a column that are not the same for all rows: which of them each has."""

    words: list[str]
    which: NDArray[np.intp]


@dataclass(slots=True)
class _Table:
    """Columns that grow by events; what an event doesn't set stays null."""

    names: Names
    # The ops that are wanted; None: all.
    ops: frozenset[str] | None = None
    # The frame that is being shown, and the next row's place in it.
    frame: int = 0
    row: int = 0
    size: int = 0
    # Whether what is shown just now is only counted.
    muted: bool = False
    skipped: bool = False
    # For each event: its frame, the place of its first row, when it was decided, how many rows.
    places: list[tuple[int, int, int, int]] = field(default_factory=list)
    numbers: dict[str, list[tuple[int, int, Any]]] = field(default_factory=dict)
    words: dict[str, list[tuple[int, int, str | _Choice]]] = field(default_factory=dict)
    contents: list[_Contents] = field(default_factory=list)

    def add(self, event: ev.Event, op: str, count: int, **columns: Any) -> None:
        """So many rows of an event. A column is a value for all of them, or an array.

        Rows that are not wanted have their places too: a row's place is always the same.
        """
        first, self.row = self.row, self.row + count
        self.skipped = self.muted or (self.ops is not None and op not in self.ops)
        if self.skipped or not count:
            return
        begin, self.size = self.size, self.size + count
        self.places.append((self.frame, first, event.at_us, count))
        columns["op"] = op
        for name, value in columns.items():
            if name in _NUMBERS:
                self.numbers.setdefault(name, []).append((begin, count, value))
            elif value:
                self.words.setdefault(name, []).append((begin, count, value))

    def bring(self, rows: Rows | None, which: Int64s) -> None:
        """The last `len(which)` rows have these contents."""
        if rows is not None and not self.skipped and len(which):
            self.contents.append(_Contents(self.size - len(which), rows.batch, which))

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """All of it, by these columns."""
        arrays = [self._array(schema_field) for schema_field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(self, wanted: pa.Field) -> pa.Array:
        name = wanted.name
        if name in ("position", "row", "at_us"):
            return pa.array(self._place(name))
        if name in _NUMBERS:
            return self._number(name)
        return self._word(name) if name in _WORDS else self._content(wanted)

    def _place(self, name: str) -> NDArray[Any]:
        frames, firsts, moments, counts = (
            np.array(self.places, dtype=np.int64).reshape(-1, 4).T.copy()
        )
        if name == "row":
            ends = np.cumsum(counts)
            shift = np.repeat(firsts - (ends - counts), counts)
            return (np.arange(self.size) + shift).astype(np.int32)
        return np.repeat(frames if name == "position" else moments, counts)

    def _number(self, name: str) -> pa.Array:
        kind = _NUMBERS[name]
        pieces = self.numbers.get(name)
        if pieces is None:
            return pa.nulls(self.size, kind)
        values = np.zeros(self.size, dtype=np.int64)
        missing = np.ones(self.size, dtype=np.bool_)
        for begin, count, value in pieces:
            values[begin : begin + count] = value
            missing[begin : begin + count] = False
        if name == "due_us":
            # Entries that stay for ever.
            missing |= values == DUE_MAX_US
        return pa.array(values, mask=missing).cast(kind)

    def _word(self, name: str) -> pa.Array:
        pieces = self.words.get(name)
        if pieces is None:
            return pa.nulls(self.size, pa.string())
        known: dict[str, int] = {}
        codes = np.zeros(self.size, dtype=np.int32)
        missing = np.ones(self.size, dtype=np.bool_)
        for begin, count, value in pieces:
            if isinstance(value, _Choice):
                numbers = [known.setdefault(word, len(known)) for word in value.words]
                codes[begin : begin + count] = np.array(numbers)[value.which]
            else:
                codes[begin : begin + count] = known.setdefault(value, len(known))
            missing[begin : begin + count] = False
        indices = pa.array(codes, mask=missing)
        return pa.DictionaryArray.from_arrays(indices, pa.array(list(known))).dictionary_decode()

    def _content(self, wanted: pa.Field) -> pa.Array:
        pieces, at = [], 0
        for contents in self.contents:
            if wanted.name not in contents.batch.schema.names:
                continue
            if contents.begin > at:
                pieces.append(pa.nulls(contents.begin - at, wanted.type))
            column = contents.batch.column(wanted.name)
            if not _is_range(contents.rows, len(column)):
                column = column.take(pa.array(contents.rows))
            pieces.append(column)
            at = contents.begin + len(contents.rows)
        if at < self.size or not pieces:
            pieces.append(pa.nulls(self.size - at, wanted.type))
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _is_range(rows: Int64s, count: int) -> bool:
    return len(rows) == count and bool((rows == np.arange(count)).all())


# How each event is shown


def _place(table: _Table, event: Any, sequences: Int64s) -> dict[str, Any]:
    """The columns that say which messages an event is about."""
    ids = sequences | event.partition << SEQUENCE_BITS
    return {"topic": table.names.topic(event.topic), "partition": event.partition, "id": ids}


def _messages(op: str, **columns: str) -> Show:
    """A row per message of the event; `columns` name further fields of it."""

    def show(table: _Table, event: Any, rows: Rows | None) -> None:
        values = {name: getattr(event, source) for name, source in columns.items()}
        place = _place(table, event, event.sequence)
        table.add(event, op, len(event.sequence), **place, **values)
        if "row" in type(event).__dataclass_fields__:
            table.bring(rows, event.row)

    return show


def _produced(table: _Table, event: Any, rows: Rows | None) -> None:
    count = len(event.due_us)
    sequences = np.arange(event.first_sequence, event.first_sequence + count)
    values = {"due_us": event.due_us, "owner": event.owner, "stage": event.stage}
    if isinstance(event, PriorityProduced):
        values["priority"] = event.priority
    if isinstance(event, KvProduced):
        op, values["version"] = "put", event.version
    else:
        op, values["version"] = "staged" if event.stage else "produced", 1
    table.add(event, op, count, **_place(table, event, sequences), **values)
    table.bring(rows, event.row)


def _landed(table: _Table, event: sinks.StageLanded, rows: Rows | None) -> None:
    _of_stage(table, event, "published", event.sequence, version=1)
    _of_stage(table, event, "stage_dropped", event.skipped, reason="skipped")


def _dropped(table: _Table, event: sinks.StageRowsDropped, rows: Rows | None) -> None:
    _of_stage(table, event, "stage_dropped", event.sequence, reason="dropped")


def _of_stage(table: _Table, event: Any, op: str, sequences: Int64s, **columns: Any) -> None:
    place = _place(table, event, sequences)
    table.add(event, op, len(sequences), **place, stage=event.stage, **columns)


def _removed(table: _Table, event: Removed, rows: Rows | None) -> None:
    _messages("expired_entry" if event.expired else "deleted")(table, event, rows)


def _died(table: _Table, event: ev.Died, rows: Rows | None) -> None:
    op = "exhausted" if event.exhausted else "rejected"
    _messages(op, reason="reason", started_us="started_us")(table, event, rows)


def _appended(table: _Table, event: LogAppended, rows: Rows | None) -> None:
    offsets = np.arange(event.first_offset, event.first_offset + len(event.row))
    _log_rows(table, event, "appended", offsets)
    table.bring(rows, event.row)


def _log_rows(table: _Table, event: Any, op: str, offsets: Any, **columns: Any) -> None:
    place = _place(table, event, offsets + 1)
    table.add(event, op, len(offsets), **place, offset=offsets, **columns)


def _of_group(op: str, **columns: str) -> Show:
    def show(table: _Table, event: Any, rows: Rows | None) -> None:
        values = {name: getattr(event, source) for name, source in columns.items()}
        group = table.names.group(event.topic, event.group, table.frame)
        _log_rows(table, event, op, event.offset, group=group, **values)

    return show


def _returned(table: _Table, event: GroupReturned, rows: Rows | None) -> None:
    op = {Verb.RELEASE: "released", Verb.NACK: "nacked", Verb.EXPIRE: "expired"}[Verb(event.verb)]
    _of_group(op, reason="reason", due_us="due_us", started_us="started_us")(table, event, rows)


def _group_died(table: _Table, event: GroupDied, rows: Rows | None) -> None:
    op = "exhausted" if event.exhausted else "rejected"
    _of_group(op, reason="reason", started_us="started_us")(table, event, rows)


def _renewed(table: _Table, event: Any, rows: Rows | None) -> None:
    group = ""
    if hasattr(event, "group"):
        group = table.names.group(event.topic, event.group, table.frame)
    topic = table.names.topic(event.topic)
    table.add(event, "renewed", 1, topic=topic, consumer=event.consumer, group=group)


def _once(op: str, *details: str) -> Show:
    """One row for the event; its `details` as JSON."""

    def show(table: _Table, event: Any, rows: Rows | None) -> None:
        values = {name: _plain(getattr(event, name)) for name in details}
        columns: dict[str, Any] = {}
        for name in ("partition", "version", "stage"):
            if name in type(event).__dataclass_fields__:
                columns[name] = getattr(event, name)
        if "topic" in type(event).__dataclass_fields__:
            columns["topic"] = getattr(event, "name", "") or table.names.topic(event.topic)
        table.add(event, op, 1, **columns, details=json.dumps(values) if values else "")

    return show


def _paused(table: _Table, event: ev.TopicPaused, rows: Rows | None) -> None:
    _once("topic_paused" if event.paused else "topic_resumed")(table, event, rows)


def _expiry_set(table: _Table, event: ev.ExpirySet, rows: Rows | None) -> None:
    """A row per message. Each may have a moment of its own."""
    moments, which = np.unique(event.expires_us, return_inverse=True)
    words = [json.dumps({"expires_us": moment or None}) for moment in moments.tolist()]
    place = _place(table, event, event.sequence)
    table.add(event, "expiry_set", len(which), **place, details=_Choice(words, which))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _hidden(table: _Table, event: Any, rows: Rows | None) -> None:
    """Bookkeeping that tells of no message."""


_SHOWN: dict[type[ev.Event], Show] = {
    ev.TopicCreated: _once("topic_created", "settings"),
    ev.TopicChanged: _once("topic_changed", "settings"),
    ev.TopicDeleted: _once("topic_deleted"),
    ev.BindingsChanged: _once("bindings_changed", "bindings"),
    ev.TopicPaused: _paused,
    EntryChanged: _hidden,
    EntryDropped: _hidden,
    CatalogueFollowed: _hidden,
    ev.Produced: _produced,
    PriorityProduced: _produced,
    KvProduced: _produced,
    ev.Replaced: _messages("replaced", version="version", due_us="due_us"),
    PriorityReplaced: _messages(
        "replaced", version="version", due_us="due_us", priority="priority"
    ),
    ev.Updated: _messages("updated", version="version"),
    Reprioritised: _messages("reprioritised", version="version", priority="priority"),
    ev.Moved: _messages("moved", version="version", due_us="due_us"),
    ev.Cancelled: _messages("cancelled"),
    ev.ExpirySet: _expiry_set,
    ev.Leased: _messages("leased", token="token", consumer="consumer", lease_us="length_us"),
    ev.Resumed: _messages("resumed", token="token"),
    ev.Extended: _messages("extended", lease_us="length_us"),
    ev.Renewed: _renewed,
    ev.Released: _messages("released", due_us="due_us", started_us="started_us"),
    ev.Nacked: _messages("nacked", reason="reason", due_us="due_us", started_us="started_us"),
    ev.Expired: _messages("expired"),
    ev.Unopened: _messages("released", reason="reason", due_us="due_us"),
    ev.Acked: _messages("acked", started_us="started_us"),
    ev.Died: _died,
    ev.Redriven: _messages("redriven", version="version", due_us="due_us"),
    ev.Purged: _messages("purged"),
    ev.Lapsed: _messages("lapsed", reason="reason"),
    ev.Published: _once("stage_published", "skipped"),
    ev.StageDropped: _hidden,
    ev.ProducerAdvanced: _hidden,
    ev.ProducerEnded: _hidden,
    CallAnswered: _hidden,
    RowsAnswered: _hidden,
    ev.StageOpened: _hidden,
    sinks.SinkPublished: _once("sink_published", "sink", "batch", "operation", "stages"),
    sinks.SinkStageOpened: _hidden,
    sinks.StageLanded: _landed,
    sinks.StageRowsDropped: _dropped,
    sinks.SinkCarried: _hidden,
    sinks.SinkForgotten: _once("sink_forgotten", "sink"),
    LogAppended: _appended,
    LogTrimmed: _once("log_trimmed", "first_offset", "why"),
    groups.GroupMade: _once("group_made", "group", "ordered", "offsets"),
    groups.GroupDropped: _once("group_dropped", "number"),
    groups.GroupLeased: _of_group(
        "leased", token="token", consumer="consumer", lease_us="length_us"
    ),
    groups.GroupResumed: _of_group("resumed", token="token"),
    groups.GroupExtended: _of_group("extended", lease_us="length_us"),
    groups.GroupRenewed: _renewed,
    groups.GroupAcked: _of_group("acked", started_us="started_us"),
    GroupReturned: _returned,
    GroupDied: _group_died,
    groups.GroupSet: _once("group_set", "group", "offset"),
    groups.GroupRevived: _of_group("redriven", due_us="due_us"),
    groups.GroupPurged: _of_group("purged"),
    Removed: _removed,
    cron.SchedulePut: _once("schedule_put", "name", "definition"),
    cron.ScheduleDeleted: _once("schedule_deleted", "number"),
    cron.SchedulePaused: _once("schedule_paused", "number", "paused"),
    cron.Fired: _hidden,
    cron.Unfired: _hidden,
    cron.Passed: _hidden,
}


def transitions(
    frames: Iterable[StoredFrame],
    names: Names,
    seed: tuple[int, int],
    payloads: bool = False,
    topics: frozenset[int] | None = None,
    ops: frozenset[str] | None = None,
    columns: Sequence[str] = (),
) -> pa.RecordBatch:
    """What these frames tell, of all topics or some of them (by number), of all ops or some.

    With `columns` only these, in this order.
    """
    table = _Table(names, ops)
    for frame in frames:
        if topics is not None and not count_rows(frame.body, topics):
            continue
        events, rows = decode(frame.body, seed)
        table.frame, table.row = frame.sequence, 0
        for event in events:
            topic = getattr(event, "topic", None)
            table.muted = topics is not None and topic not in topics
            # What sinks keep for themselves is no user's message.
            table.muted |= topic is not None and names.topic(topic) == PARCELS
            _SHOWN[type(event)](table, event, rows)
    return table.batch(schema_of(payloads, columns))


def schema_of(payloads: bool, columns: Sequence[str] = ()) -> pa.Schema:
    """All columns, with payloads or without, or those that are named."""
    if not columns:
        return WITH_PAYLOADS if payloads else TRANSITIONS
    return pa.schema([WITH_PAYLOADS.field(name) for name in columns])


def count_rows(body: memoryview, topics: frozenset[int] | None = None) -> int:
    """About how many rows a frame has in the feed, by its head alone; of some topics, or all."""
    return sum(
        max((described[1] for described in packed), default=1)
        for code, values, packed in read_head(body)["events"]
        if _SHOWN[EVENTS[code]] is not _hidden
        and (topics is None or topic_of(code, values) in topics)
    )
