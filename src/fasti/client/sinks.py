"""Sinks: batches of rows that take effect exactly once, however often they are sent.

A sink has a name and numbers its batches. The rows of a batch are staged, by any number of writers in
any processes, durably and invisibly: a stage belongs to (sink, batch, partition, attempt). Then one
`publish` names the stages that count, and the broker decides by one event that the batch has happened;
stages of the batch that are not named are dropped. The broker remembers the last batch of each sink for
ever: a batch that is published again changes nothing and is answered as it was the first time.

Where a broker has several shards a stage lies on those that its rows belong to, and each shard decides
and remembers its part of the batch: once on every shard, but not at one moment on all of them. A batch
that was published on some of them only is completed by publishing it again.

    sink = client.sink("emails", "nightly-import")
    with sink.stage(batch=7, partition=0, attempt=0) as stage:
        stage.write(record_batch)
    sink.publish(7, [stage.staged.name])

A `Sink` may be used by any thread, a `StageWriter` by one at a time. Rows may be columns of:

| operation | topics | columns |
| --- | --- | --- |
| `produce` | timeline, priority | `payload`; `due_us` or `delay_us`, `key`, `priority`, `headers`, `content_type`, `subject` |
| `append` (or `produce`) | log | `payload`; `key`, `headers`, `content_type`, `subject`, `partition` |
| `update` | timeline, priority | `id` or `key`; `payload`, `headers`, `content_type`, `priority`, `version` |
| `move` | timeline, priority | `id` or `key`; `due_us` or `delay_us`; `version` |
| `cancel` | timeline, priority | `id` or `key`; `version` |
| `put` | kv | `key`, `payload` (null: the entry is deleted); `clustering`, `version`, `ttl_us` or `expires_us`, `headers`, `content_type` |
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa

from fasti.client import sink_shards
from fasti.client.columns import pieces
from fasti.client.durations import Duration, seconds
from fasti.client.pauses import PASSING, Pauses
from fasti.client.transport import Header, Stream, Transport
from fasti.core.layout import Layout
from fasti.errors import (
    AlreadyExists,
    Closed,
    FastiError,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    TimedOut,
)
from fasti.model import Limits
from fasti.protocol.problems import error_from_json

OPERATIONS = ("produce", "append", "update", "move", "cancel", "put")
ON_CONFLICT = ("fail", "skip")

# What may be on its way to the broker without a receipt.
_BATCHES_UNDER_WAY, _BYTES_UNDER_WAY = 16, 32 << 20
_BATCH_BYTES = 8 << 20
_PATIENCE_S = 120.0
# A publish is answered at least so often; until all is carried out it is asked again.
_CALL_S = 60.0


@dataclass(frozen=True, slots=True)
class Staged:
    """A stage that was written to its end. Without rows there is none: the name is empty then."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a batch: how many rows came out ok, how many did not, and each how.

    `repeated`: it had happened before, and this is what it was answered then. `outcomes` counts by
    outcome (`ok`, `conflict`, `not_found`, ...).
    """

    rows: int
    skipped: int
    repeated: bool
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkState:
    """What the broker remembers of a sink."""

    sink: str
    # The last batch that was published; None: none yet.
    batch: int | None
    operation: str
    # Whether the last batch is carried out whole.
    done: bool
    published_us: int | None
    outcomes: dict[str, int]
    # Stages that are not published (yet), and their rows.
    stages: int
    rows: int


class Sink:
    """Made by `client.sink(...)`: cheap, it opens nothing.

    Several sinks of one name, for different topics, share its batches: one `publish` may name stages
    of all of them, and they happen together.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        sink_id: str,
        *,
        operation: str,
        on_conflict: str,
        owner: str,
        limits: Limits,
    ) -> None:
        for name, value, known in (
            ("operation", operation, OPERATIONS),
            ("on_conflict", on_conflict, ON_CONFLICT),
        ):
            if value not in known:
                words = ", ".join(known)
                raise InvalidArgument(f"{name} must be one of {words}, not {value!r}", field=name)
        if not sink_id:
            raise InvalidArgument("a sink needs a name", field="sink")
        self.topic, self.sink_id = topic, sink_id
        self.operation, self.on_conflict, self.owner = operation, on_conflict, owner
        self._transport, self._limits = transport, limits
        # How long a broker that is away, or full, is waited for.
        self.patience_s = _PATIENCE_S

    def stage(self, batch: int, partition: int, attempt: int) -> StageWriter:
        """A writer of one attempt at one partition of a batch, in this process.

        Nothing is sent before the first `write`. An attempt is written once, by one writer: one that
        is tried again is another attempt.
        """
        place = {"batch": batch, "partition": partition, "attempt": attempt}
        for name, value in place.items():
            if value < 0:
                raise InvalidArgument(f"{name} must be a whole number from 0 on", field=name)
        descriptor = {
            "call": "stage",
            "topic": self.topic,
            "sink": self.sink_id,
            **place,
            "operation": self.operation,
            "owner": self.owner,
        }
        kind = StageWriter if self._transport.shard_count == 1 else SpreadStageWriter
        return kind(self._transport, descriptor, self._limits, self.patience_s)

    def publish(
        self, batch: int, stages: Sequence[str], *, timeout: Duration | None = None
    ) -> Published:
        """Has the batch happen: the rows of these stages, and of no others, take effect once.

        Returns when all of it is carried out. Stages of the sink that belong to this batch or an older
        one and are not named are dropped. Empty names (of stages without rows) are passed over; a
        batch without stages is published too. A batch that is older than the last one, or equal to it,
        changes nothing: `repeated` is true, and the counts are those of the last one if it is that.

        With operation `produce`, a key that a live message has, or that stands twice in the batch, is
        a conflict. `on_conflict` `fail`: raises `already_exists`, whose details have `keys` (up to
        100) and `conflicts` (how many), and nothing of the batch happens; the stages stay. `skip`:
        those rows are left out and counted. Other operations count what came out how.

        Raises `not_found` for a stage that is not there (any more), `invalid_argument`, and after
        `timeout` `timed_out`: ask again, a batch that is decided is carried out meanwhile.
        """
        limit_s = seconds(timeout, "timeout")
        until = None if limit_s is None else time.monotonic() + limit_s
        if self._transport.shard_count == 1:
            reply = self._publish(self._transport, batch, [name for name in stages if name], until)
        else:
            reply = self._publish_on_all(batch, stages, until)
        outcomes = {str(word): int(count) for word, count in reply["outcomes"].items()}
        return Published(
            int(reply["rows"]), int(reply["skipped"]), bool(reply["repeated"]), outcomes
        )

    def _publish_on_all(self, batch: int, stages: Sequence[str], until: float | None) -> Header:
        """Has each shard publish its part, also those that have no rows: all remember the batch."""
        names, unknown = sink_shards.by_shard(stages, self._transport.shard_count)
        if unknown:
            raise NotFound(
                f"there is no stage {unknown[0]!r}: it expired, was dropped, or never was",
                details={"stages": unknown[:100]},
            )
        if any(names):
            self._check(batch, names, until)
        replies = sink_shards.on_all(
            self._transport, lambda n, shard: self._publish(shard, batch, names[n], until)
        )
        return sink_shards.merged_answers(replies)

    def _check(self, batch: int, names: list[list[str]], until: float | None) -> None:
        """Raises if any shard would refuse its part, before one has published any, also of none."""

        def check(number: int, shard: Transport) -> list[AlreadyExists | None]:
            try:
                if names[number]:
                    self._publish(shard, batch, names[number], until, dry_run=True)
            except AlreadyExists as error:
                return [error]
            return [None]

        errors = [error for [error] in sink_shards.on_all(self._transport, check) if error]
        if errors:
            raise sink_shards.conflicts_of(errors)

    def _publish(
        self,
        transport: Transport,
        batch: int,
        names: Sequence[str],
        until: float | None,
        dry_run: bool = False,
    ) -> Header:
        """On one shard, until all is carried out; `repeated` is what was answered first."""
        header = {
            "sink": self.sink_id,
            "batch": batch,
            "operation": self.operation,
            "on_conflict": self.on_conflict,
            "stages": names,
            **({"dry_run": True} if dry_run else {}),
        }
        repeated: bool | None = None
        pauses = Pauses(random.random)
        # Until when it is tried again, counted from the first failure in a row.
        patience: float | None = None
        while True:
            try:
                reply, _ = transport.call("publish_batch", header, timeout=_CALL_S)
                patience = None
                repeated = bool(reply["repeated"]) if repeated is None else repeated
                if reply["done"] or dry_run:
                    return {**reply, "repeated": repeated}
            except FastiError as error:
                # Whether it was decided or not: the same call again is right.
                patience = patience or time.monotonic() + self.patience_s
                if error.code not in PASSING or time.monotonic() > patience:
                    raise
                time.sleep(pauses.next_s(error))
            if until is not None and time.monotonic() > until:
                raise TimedOut(f"batch {batch} of {self.sink_id!r} is not carried out yet")

    def drop(self, stages: Sequence[str]) -> int:
        """Drops stages that are not published: how many rows. Those that are not there are fine."""
        names, _ = sink_shards.by_shard(stages, self._transport.shard_count)
        rows = 0
        for number, mine in enumerate(names):
            if mine:
                header = {"sink": self.sink_id, "stages": mine}
                reply, _ = self._transport.shard(number).call("drop_stages", header)
                rows += int(reply["rows"])
        return rows

    def last_batch(self) -> int | None:
        """The last batch that was published, on every shard; None: none yet."""
        state = self.describe()
        return None if state is None else state.batch

    def describe(self) -> SinkState | None:
        """What the broker knows of the sink; None: nothing."""
        states = sinks(self._transport, self.sink_id)
        return states[0] if states else None

    def forget(self) -> bool:
        """Has the broker forget the sink, and drop its stages: False if it knew none.

        From then on its batches would happen again. For sinks that are used once: the broker
        remembers `sinks_max` of them. Raises `illegal_transition` while a batch is carried out.
        """
        if self._transport.shard_count > 1:
            state = self.describe()
            if state is not None and state.rows and not state.done:
                # Before any shard has forgotten it.
                raise IllegalTransition(f"a batch of {self.sink_id!r} is being carried out")
        forgotten = False
        for number in range(self._transport.shard_count):
            shard = self._transport.shard(number)
            reply, _ = shard.call("forget_sink", {"sink": self.sink_id})
            forgotten |= bool(reply["forgotten"])
        return forgotten

    def __repr__(self) -> str:
        return f"<Sink {self.sink_id!r}: {self.operation} into {self.topic!r}>"


def sinks(transport: Transport, name: str = "") -> list[SinkState]:
    """The sinks that a broker knows, by name; or one of them, if it knows it."""
    if transport.shard_count == 1:
        return _known(transport, name)
    shards = [transport.shard(number) for number in range(transport.shard_count)]
    return sink_shards.merged_states([_known(shard, name) for shard in shards])


def _known(transport: Transport, name: str) -> list[SinkState]:
    """Of one shard."""
    states: list[SinkState] = []
    after = ""
    while True:
        header: Header = {"sink": name} if name else {"after": after}
        reply, _ = transport.call("sinks", header)
        states += [_state(state) for state in reply["sinks"]]
        after = reply.get("next_after", "")
        if name or not after:
            return states


def _state(header: dict[str, Any]) -> SinkState:
    return SinkState(**{name: header[name] for name in SinkState.__dataclass_fields__})


@dataclass(slots=True)
class _Sent:
    """A batch that has no receipt yet, and how many rows of the stage come before it."""

    offset: int
    batch: pa.RecordBatch
    size_bytes: int


class StageWriter:
    """Made by `sink.stage(...)`. A context manager: left without an error, it is closed.

    Batches are sent ahead, a bounded number of them; what has no receipt is sent again over lost
    connections and restarts of the broker, and stands in the stage once. An error that doesn't pass
    is raised by the next `write` or by `close`, and the stage is worth nothing from then on.
    """

    def __init__(
        self,
        transport: Transport,
        descriptor: Header,
        limits: Limits,
        patience_s: float = _PATIENCE_S,
        bytes_under_way: int = _BYTES_UNDER_WAY,
    ) -> None:
        self._transport, self._descriptor, self._limits = transport, descriptor, limits
        self._patience_s, self._bytes_under_way = patience_s, bytes_under_way
        place = "/".join(str(descriptor[name]) for name in ("batch", "partition", "attempt"))
        self.name = f"{descriptor['sink']}/{descriptor['topic']}/{place}"
        self._changed = threading.Condition()
        self._waiting: deque[_Sent] = deque()
        self._waiting_bytes = 0
        self._rows = 0
        self._schema: pa.Schema | None = None
        self._stream: Stream | None = None
        # Receipts of a stream that was given up mean nothing.
        self._number = 0
        self._error: FastiError | None = None
        self._staged: Staged | None = None
        self._pauses = Pauses(random.random)

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return self._rows

    @property
    def stage_name(self) -> str:
        """The name of what was staged so far, for `Sink.drop`; empty: nothing."""
        return self.name

    @property
    def staged(self) -> Staged:
        """What `close` returned. Raises `closed` before."""
        if self._staged is None:
            raise Closed("the stage is not written to its end")
        return self._staged

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Sends rows; waits while too much is under way. All batches have the same columns."""
        if self._staged is not None:
            raise Closed("the stage is closed")
        batches = batch.to_batches() if isinstance(batch, pa.Table) else [batch]
        for rows in batches:
            for piece in self._pieces(rows):
                self._push(piece)

    def close(self) -> Staged:
        """Waits until everything is durable. Again: the same answer."""
        if self._staged is None:
            self._wait(lambda: not self._waiting)
            self._end()
            self._staged = Staged(self.name if self._rows else "", self._rows)
        return self._staged

    def abort(self) -> None:
        """Ends it at once; what was staged is dropped by `Sink.drop`, or with time."""
        self._end(cancel=True)
        if self._staged is None:
            self._staged = Staged("", 0)

    def __enter__(self) -> StageWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    # Sending

    def _pieces(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """No more rows and bytes at a time than the broker takes at once."""
        if self._schema is None:
            self._schema = batch.schema.remove_metadata()
        elif batch.schema.names != self._schema.names:
            raise InvalidArgument("all batches of a stage have the same columns", field="batch")
        batch = batch.cast(self._schema) if batch.schema != self._schema else batch
        return pieces(batch, self._limits.batch_rows_max, _BATCH_BYTES)

    def _push(self, batch: pa.RecordBatch) -> None:
        sent = _Sent(self._rows, batch, batch.nbytes)
        self._wait(lambda: self._has_room(sent))
        with self._changed:
            self._waiting.append(sent)
            self._waiting_bytes += sent.size_bytes
            self._rows += batch.num_rows
        try:
            if self._stream is None:
                self._open()
            else:
                self._send(sent)
        except FastiError as error:
            self._fail(self._number, error)

    def _has_room(self, sent: _Sent) -> bool:
        if not self._waiting:
            return True
        room = self._waiting_bytes + sent.size_bytes <= self._bytes_under_way
        return room and len(self._waiting) < _BATCHES_UNDER_WAY

    def _open(self) -> None:
        """A new stream, which begins with the first batch that has no receipt."""
        with self._changed:
            self._number += 1
            number, waiting = self._number, list(self._waiting)
        assert self._schema is not None, "something is to be written"
        self._stream = self._transport.produce(
            self._descriptor,
            self._schema,
            lambda receipt: self._receipt(number, receipt),
            lambda error: self._ended(number, error),
        )
        for sent in waiting:
            self._send(sent)

    def _send(self, sent: _Sent) -> None:
        assert self._stream is not None
        self._stream.send({"offset": sent.offset}, sent.batch)

    # Called by the stream's reading thread

    def _receipt(self, number: int, receipt: Header) -> None:
        if "error" in receipt:
            self._fail(number, error_from_json(receipt["error"]))
            return
        with self._changed:
            if number != self._number or self._error is not None:
                return
            done = self._waiting.popleft()
            self._waiting_bytes -= done.size_bytes
            self._pauses.well()
            self._changed.notify_all()

    def _ended(self, number: int, error: FastiError | None) -> None:
        if error is not None:
            self._fail(number, error)

    def _fail(self, number: int, error: FastiError) -> None:
        """The first error of a stream is what happened; those behind it follow from it."""
        with self._changed:
            if number == self._number and self._error is None:
                self._error = error
                self._changed.notify_all()

    # Waiting

    def _wait(self, done: Any) -> None:
        """Until something is so; what is lost meanwhile is sent again."""
        until, left = 0.0, -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None or done())
                error = self._error
                if error is None:
                    return
            if len(self._waiting) != left:
                # Something has come through since the last failure.
                until, left = time.monotonic() + self._patience_s, len(self._waiting)
            if error.code not in PASSING or time.monotonic() > until:
                self._end(cancel=True)
                raise error
            self._end(cancel=True)
            time.sleep(self._pauses.next_s(error))
            with self._changed:
                self._error = None
            try:
                self._open()
            except FastiError as failed:
                self._fail(self._number, failed)

    def _end(self, cancel: bool = False) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        with self._changed:
            # Whatever still comes of it is not heard.
            self._number += 1
        if cancel:
            stream.cancel()
        else:
            stream.finish()

    def __repr__(self) -> str:
        return f"<StageWriter {self.name!r}: {self._rows} rows>"


class SpreadStageWriter(StageWriter):
    """One attempt over several shards: a stage on each that rows belong to."""

    def __init__(
        self, transport: Transport, descriptor: Header, limits: Limits, patience_s: float
    ) -> None:
        super().__init__(transport, descriptor, limits, patience_s)
        self._layout: Layout | None = None
        self._parts: dict[int, StageWriter] = {}

    @property
    def stage_name(self) -> str:
        """The name of what was staged so far, for `Sink.drop`."""
        return sink_shards.spread_name(self.name, self._parts) if self._parts else ""

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Sends each row to its shard; waits while too much is under way."""
        if self._staged is not None:
            raise Closed("the stage is closed")
        if self._layout is None:
            topic = self._descriptor["topic"]
            # The topic may have been made anew since it was written last.
            self._transport.forget_layout(topic)
            self._layout = self._transport.layout(topic)
        for rows in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
            for shard, mine in sink_shards.split(self._layout, rows):
                self._part(shard, self._layout).write(mine)
            self._rows += rows.num_rows

    def _part(self, shard: int, layout: Layout) -> StageWriter:
        part = self._parts.get(shard)
        if part is None:
            room = max(_BYTES_UNDER_WAY // len(layout.all_shards), _BATCH_BYTES)
            place = (self._transport.shard(shard), self._descriptor, self._limits)
            part = self._parts[shard] = StageWriter(*place, self._patience_s, room)
        return part

    def close(self) -> Staged:
        """Waits until everything is durable on every shard. Again: the same answer."""
        if self._staged is None:
            for part in self._parts.values():
                part.close()
            self._staged = Staged(self.stage_name, self._rows)
        return self._staged

    def abort(self) -> None:
        """Ends it at once, on every shard."""
        for part in self._parts.values():
            part.abort()
        if self._staged is None:
            self._staged = Staged("", 0)
