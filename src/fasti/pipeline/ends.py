"""Where the steps of a pipeline read and write: topics and tables, each said in one word.

    changes("orders")                   a stream of every transition
    log("events")                       a stream of rows; as a sink: appends
    messages("orders", state="dead")    what is there now
    kv("profiles")                      the latest value of each key; as a sink: puts
    table("archive/events")             a Delta table; as a sink: appends
    topic("reminders")                  a sink: produces, or updates, moves and cancels by key

Options are those of `format("fasti")`, by the same names: `log("events", maxOffsetsPerTrigger=10_000)`.
A source may also be any function from a SparkSession to a DataFrame.

Every write carries a transaction: the name of a sink and a number that grows. A sink that has that
number already changes nothing, so a write that is done again counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fasti.errors import InvalidArgument
from fasti.pipeline.tables import Table, Transaction
from fasti.spark.options import STREAMED, Options

FrameOf = Callable[[SparkSession], DataFrame]


@dataclass(frozen=True)
class Place:
    """Where a run takes place: its broker, and the directory of tables with relative paths."""

    address: str
    token: str | None
    directory: Path
    tls_ca: str | None = None
    tls_client_cert: str | None = None

    def options(self) -> dict[str, str]:
        """For `format("fasti")`."""
        given = {"address": self.address, "token": self.token, "tlsCa": self.tls_ca}
        given["tlsClientCert"] = self.tls_client_cert
        return {name: value for name, value in given.items() if value is not None}


class Source:
    """What a step reads. `streamed` sources are read on from where the last run ended."""

    streamed = False

    def read(self, spark: SparkSession, place: Place) -> DataFrame:
        """A DataFrame, a streaming one if it is `streamed`. Called in the driver."""
        raise NotImplementedError


class Sink:
    """What a step writes."""

    def write(self, rows: DataFrame, place: Place, transaction: Transaction) -> None:
        """Writes rows, once for each transaction. Called in the driver.

        `place` has `address`, `token` and `directory`. `transaction` is a name, that of the step and
        sink, and a number, that of the micro-batch or run, which grows: one that is not above the
        last that was written is there already.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class TopicSource(Source):
    """A view of a topic."""

    view: str
    topic: str | None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def streamed(self) -> bool:  # type: ignore[override]
        """Transitions and logs go on; the rest is as it is."""
        return self.view in ("changes", "log")

    def read(self, spark: SparkSession, place: Place) -> DataFrame:
        reader: Any = spark.readStream if self.streamed else spark.read
        reader = reader.format("fasti").options(**place.options()).option("view", self.view)
        if self.topic is not None:
            reader = reader.option("topic", self.topic)
        return reader.options(**texts(self.options)).load()


@dataclass(frozen=True)
class TopicSink(Sink):
    """Writes into a topic."""

    topic: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, rows: DataFrame, place: Place, transaction: Transaction) -> None:
        """By the connector: staged by tasks, published at once."""
        name, number = transaction
        writer = rows.write.format("fasti").options(**place.options()).option("topic", self.topic)
        writer = writer.options(**texts(self.options)).option("txnAppId", name)
        writer.option("txnVersion", str(number)).mode("append").save()


@dataclass(frozen=True)
class LogEnd(TopicSource, Sink):
    """A log: rows are read on, or appended."""

    def write(self, rows: DataFrame, place: Place, transaction: Transaction) -> None:
        TopicSink(_named(self.topic), self.options).write(rows, place, transaction)


@dataclass(frozen=True)
class KvEnd(TopicSource, Sink):
    """A key-value topic: entries are read, or put."""

    def write(self, rows: DataFrame, place: Place, transaction: Transaction) -> None:
        options = {"operation": "put", **self.options}
        TopicSink(_named(self.topic), options).write(rows, place, transaction)


@dataclass(frozen=True)
class TableEnd(Source, Sink):
    """A table of the lake: its rows as they are, or rows that are added."""

    path: str
    partition_by: tuple[str, ...] = ()
    overwrite: bool = False

    def at(self, place: Place) -> Table:
        """The table itself. Relative paths begin at the run's directory."""
        return Table(place.directory / self.path, self.partition_by)

    def read(self, spark: SparkSession, place: Place) -> DataFrame:
        return self.at(place).read(spark)

    def write(self, rows: DataFrame, place: Place, transaction: Transaction) -> None:
        """Adds rows, or puts them in the place of all that were there."""
        table = self.at(place)
        if self.overwrite:
            table.overwrite(rows, txn=transaction)
        else:
            table.append(rows, txn=transaction)


@dataclass(frozen=True)
class FunctionSource(Source):
    """Any DataFrame that a function makes."""

    function: FrameOf

    def read(self, spark: SparkSession, place: Place) -> DataFrame:
        return self.function(spark)


def changes(topic: str | None = None, **options: Any) -> TopicSource:
    """Every transition of every message of a topic, or of all: a stream."""
    return TopicSource("changes", topic, _for_reading("changes", topic, options))


def messages(topic: str, **options: Any) -> TopicSource:
    """The messages of a topic as they are when a run, or a micro-batch, begins."""
    return TopicSource("messages", topic, _for_reading("messages", topic, options))


def log(topic: str, **options: Any) -> LogEnd:
    """The rows of a log: a stream. As a sink: appends `payload` with `key` and `headers`."""
    return LogEnd("log", topic, _for_either("log", topic, options))


def kv(topic: str, **options: Any) -> KvEnd:
    """The entries of a key-value topic as they are. As a sink: puts `value` under `key`."""
    return KvEnd("kv", topic, _for_either("kv", topic, options))


def topic(name: str, operation: str = "produce", **options: Any) -> TopicSink:
    """A sink: each row is produced, or changes the message of its `key`.

    `operation` is `produce`, `update`, `move`, `cancel` or `put`; `onConflict="skip"` leaves out
    rows whose key is taken, `"fail"` (the default) refuses the whole write.
    """
    return TopicSink(name, _for_writing(name, {"operation": operation, **options}))


def table(path: str | Path, partition_by: Sequence[str] = (), overwrite: bool = False) -> TableEnd:
    """A table at a path, below the run's directory if it is relative.

    As a sink rows are added; with `overwrite` they take the place of all that were there.
    """
    return TableEnd(str(path), tuple(partition_by), overwrite)


def source_of(given: Any, name: str) -> Source:
    """Checks what the caller gave as a source. Raises `invalid_argument`."""
    if isinstance(given, Source):
        return given
    if isinstance(given, Sink) or not callable(given):
        raise InvalidArgument(
            f"source {name!r} is {given!r}, which is not a source: use changes(), log(), "
            "messages(), kv(), table(), or a function from a SparkSession to a DataFrame",
            field=name,
        )
    return FunctionSource(given)


def _named(name: str | None) -> str:
    if not name:
        raise InvalidArgument("a sink needs the name of a topic", field="topic")
    return name


# Options are looked at where they are written, not when the first rows have come.


def _for_reading(view: str, topic: str | None, options: dict[str, Any]) -> dict[str, Any]:
    given = {"view": view, **({} if topic is None else {"topic": topic}), **texts(options)}
    Options.reading(given, stream=view in STREAMED)
    return options


def _for_writing(topic: str, options: dict[str, Any]) -> dict[str, Any]:
    Options.writing({"topic": topic, **texts(options)})
    return options


def _for_either(view: str, topic: str, options: dict[str, Any]) -> dict[str, Any]:
    """It is not known yet whether it will be read or written."""
    try:
        return _for_reading(view, topic, options)
    except InvalidArgument as error:
        try:
            return _for_writing(topic, options)
        except InvalidArgument:
            raise error from None


def texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark takes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
