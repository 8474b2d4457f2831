"""`df.write` and `df.writeStream`: rows that go live once, even if processes die in between.

Tasks *stage* their rows: durable in the broker, not visible yet. The driver's commit *publishes* what
the tasks that counted have staged, by one decision of the broker, which remembers (sink id, batch)
for ever: the same batch again, from a driver that was killed and came back, changes nothing. So a
task may fail half-way, run twice, or come out with other rows the second time.

A stage belongs to one attempt of one task and has a random part in its name: an attempt in a driver
that came back must not add to what one of its former life has left. What is not published is dropped by the
task or the driver, else by the broker after the topic's `stage_age`.

Who runs where: writers are made in the driver, for streams anew for every micro-batch and again for
its commit, so what a commit must know comes with the tasks' messages. `write` runs in tasks; `commit`
may run twice for a batch; `abort` may run while tasks are still dying, and after a commit that
failed.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from fasti.client.sinks import Sink, StageWriter
from fasti.errors import FastiError, InvalidArgument
from fasti.spark.connection import client_of
from fasti.spark.errors import as_spark_errors
from fasti.spark.options import Options
from fasti.spark.patience import patiently
from fasti.spark.rows import RowShape, TaskRows

# Where Spark tells a task of the query and of the micro-batch that it works for.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass(frozen=True)
class Write:
    """What is written where. Values only: goes to the tasks."""

    address: str
    token: str | None
    owner: str
    # None: a column says it.
    topic: str | None
    operation: str
    on_conflict: str
    timeout_s: float
    shape: RowShape

    @classmethod
    def of(cls, options: Options, schema: StructType, overwrite: bool) -> Write:
        """Checks everything that can be checked before a task runs."""
        if overwrite:
            raise InvalidArgument(
                "messages can only be appended: write with mode('append'), streams with "
                "outputMode('append')",
                field="mode",
            )
        operation, topic = options["operation"], options["topic"]
        shape = RowShape.of(schema, operation, topic is not None)
        write = cls(
            options["address"],
            options["token"],
            options["owner"] or "",
            topic,
            operation,
            options["onConflict"],
            options["timeout"],
            shape,
        )
        if topic is not None:
            write.check_topic(topic)
        return write

    def check_topic(self, topic: str) -> tuple[str, ...]:
        """Which columns it has no use for; see `RowShape.check_kind`. Raises `not_found`."""
        client = client_of(self.address, self.token)
        settings = patiently(lambda: client.topic(topic).settings, self.timeout_s)
        return self.shape.check_kind(topic, settings.kind)

    def sink(self, sink_id: str, topic: str = "") -> Sink:
        """What stages for one topic, and publishes for all."""
        sink = client_of(self.address, self.token).sink(
            topic, sink_id, self.operation, self.on_conflict, owner=self.owner
        )
        sink.patience_s = self.timeout_s
        return sink


@dataclass
class TaskStages(WriterCommitMessage):
    """What a task tells the driver: under which name and number it has staged what."""

    sink_id: str
    batch: int
    stages: list[str]
    rows: int


class Stages:
    """The stages of one attempt of a task, one for each topic that it has rows for."""

    def __init__(self, write: Write, sink_id: str, batch: int) -> None:
        self._write, self._sink_id, self._batch = write, sink_id, batch
        self._attempt = secrets.randbits(62)
        self._number = _task().partitionId()
        self._open: dict[str, StageWriter] = {}
        self._spare: dict[str, tuple[str, ...]] = {}

    def take(self, batches: Iterator[pa.RecordBatch]) -> TaskStages:
        """Stages all rows. If anything goes wrong, what was staged is dropped."""
        if self._published():
            return TaskStages(self._sink_id, self._batch, [], 0)
        rows = TaskRows(self._write.shape, f"Spark partition {self._number}")
        try:
            for batch in batches:
                for topic, mine in _by_topic(rows.made_of(batch), self._write.topic):
                    self._writer(topic).write(_without(mine, self._spare[topic]))
            staged = [writer.close() for writer in self._open.values()]
        except BaseException:
            self._drop()
            raise
        names = [stage.name for stage in staged if stage.rows]
        return TaskStages(self._sink_id, self._batch, names, sum(stage.rows for stage in staged))

    def _published(self) -> bool:
        """Whether this batch happened in a former life of the driver, and must not happen again."""
        last = patiently(self._write.sink(self._sink_id).last_batch, self._write.timeout_s)
        return last is not None and last >= self._batch

    def _writer(self, topic: str) -> StageWriter:
        writer = self._open.get(topic)
        if writer is None:
            self._spare[topic] = self._write.check_topic(topic)
            sink = self._write.sink(self._sink_id, topic)
            writer = sink.stage(self._batch, self._number, self._attempt)
            self._open[topic] = writer
        return writer

    def _drop(self) -> None:
        for writer in self._open.values():
            writer.abort()
        with suppress(FastiError):
            names = [writer.stage_name for writer in self._open.values()]
            self._write.sink(self._sink_id).drop(names)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "writes run in tasks"
    return task


def _without(batch: pa.RecordBatch, spare: tuple[str, ...]) -> pa.RecordBatch:
    return batch.drop_columns(list(spare)) if spare else batch


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    if topic is not None:
        yield topic, batch
        return
    topics = batch.column("topic")
    rest = batch.drop_columns(["topic"])
    names = pc.unique(topics).to_pylist()
    for name in names:
        yield name, rest if len(names) == 1 else rest.filter(pc.equal(topics, name))


def _staged_rows(messages: Sequence[WriterCommitMessage | None]) -> tuple[str | None, list[str]]:
    """The sink, and all stages of the tasks that counted. A task that failed has no message."""
    staged = [message for message in messages if isinstance(message, TaskStages)]
    names = [name for message in staged for name in message.stages]
    return staged[0].sink_id if staged else None, names


def publish(write: Write, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    """Makes live what the tasks staged, at once in all topics. In the driver."""
    sink_id, names = _staged_rows(messages)
    if sink_id is not None:
        # A batch without rows has happened, too.
        write.sink(sink_id).publish(batch, names)


def drop(write: Write, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drops what the tasks staged; those that failed have done so themselves. In the driver."""
    sink_id, names = _staged_rows(messages)
    if sink_id is not None and names:
        # The error that led here is the one to be told; what stays is dropped with time.
        with suppress(FastiError):
            write.sink(sink_id).drop(names)


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. Made once in the driver; copies of it go to the tasks and to the commit."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._write = Write.of(options, schema, overwrite)
        # Without a name of its own a write is one that was never done before, and never will be.
        self._once = not options.given("txnAppId")
        self._sink_id = f"spark-{uuid.uuid4()}" if self._once else options["txnAppId"]
        self._batch = options["txnVersion"] if options.given("txnVersion") else 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stages its rows."""
        with as_spark_errors():
            return Stages(self._write, self._sink_id, self._batch).take(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when all tasks are through."""
        with as_spark_errors():
            publish(self._write, messages, self._batch)
        if self._once:
            with suppress(FastiError):
                self._write.sink(self._sink_id).forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, when a task failed for good, or the commit did.

        Tasks that have not told of their stages yet may still be dying: a sink of this write alone
        is forgotten with all of them. What one stages even later expires.
        """
        drop(self._write, messages)
        if self._once:
            with suppress(FastiError):
                self._write.sink(self._sink_id).forget()


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._write = Write.of(options, schema, overwrite)
        self._sink_id: str | None = options["sinkId"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stages its rows."""
        with as_spark_errors():
            query, batch = _task().getLocalProperty(_QUERY), _task().getLocalProperty(_BATCH)
            assert query is not None, "a stream's tasks are told of it"
            assert batch is not None, "and of the batch"
            return Stages(self._write, self._sink_id or query, int(batch)).take(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when all tasks of a micro-batch are through; again after a kill."""
        with as_spark_errors():
            publish(self._write, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver, when a micro-batch failed. It may be tried again."""
        drop(self._write, messages)
