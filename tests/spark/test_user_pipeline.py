"""Pipelines of users: run for real, interrupted between a write and its checkpoint, run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import DataDirLocked
from fasti.pipeline import Pipeline, Sink, StepRun, kv, log, messages, table
from fasti.pipeline import topic as to_topic
from fasti.pipeline.ends import Place
from fasti.pipeline.lake import Lake
from fasti.pipeline.tables import Table, Transaction

MakeTopic = Callable[..., str]


class Stumbling(Sink):
    """Writes, and then fails as often as it is told: a driver that dies before its checkpoint."""

    def __init__(self, sink: Sink, failures: int) -> None:
        self.sink, self.failures = sink, failures
        self.written: list[Transaction] = []

    def write(self, rows: DataFrame, place: Place, transaction: Transaction) -> None:
        self.sink.write(rows, place, transaction)
        self.written.append(transaction)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("stumbled")


def payloads(client: Client, name: str) -> list[str]:
    found = client.messages(name).list(payload=True).column("payload").to_pylist()
    return sorted(each.decode() for each in found)


@pytest.fixture
def pipeline(broker: BrokerProcess, tmp_path: Path) -> Pipeline:
    return Pipeline("tested", address=broker.address, directory=tmp_path)


def append(client: Client, name: str, *rows: str) -> None:
    client.producer(name).send_batch([row.encode() for row in rows], key=list(rows))


def test_a_stream_is_written_once_though_its_driver_fails_after_the_write(
    spark: SparkSession, client: Client, topic: MakeTopic, pipeline: Pipeline
) -> None:
    source, target = topic(kind="log"), topic()
    sink = Stumbling(to_topic(target), failures=1)

    @pipeline.step(sink, rows=log(source))
    def copy(rows: DataFrame) -> DataFrame:
        return rows.select("payload", F.expr("interval 1 hour").alias("delay"))

    append(client, source, "a", "b", "c")
    with pytest.raises(Exception, match="stumbled"):
        pipeline.run(spark, once=True)
    assert payloads(client, target) == ["a", "b", "c"]
    append(client, source, "d")
    told: list[StepRun] = []
    (done,) = pipeline.run(spark, once=True, progress=told.append)
    assert payloads(client, target) == ["a", "b", "c", "d"]
    # The micro-batch that failed was done again under its number.
    assert [number for _, number in sink.written] == [0, 0, 1]
    assert len({name for name, _ in sink.written}) == 1
    assert (done.step, done.batches, done.rows) == ("copy", 2, 4)
    assert told[-1] == done
    assert pipeline.run(spark, once=True)[0].batches == 0


def test_a_run_of_a_batch_step_happens_once_and_the_next_is_new(
    spark: SparkSession, client: Client, topic: MakeTopic, pipeline: Pipeline
) -> None:
    source, target = topic(kind="kv"), topic(kind="log")
    client.kv(source).put("k", b"one")
    sink = Stumbling(log(target), failures=1)

    @pipeline.step(sink, entries=kv(source))
    def copy(entries: DataFrame) -> DataFrame:
        return entries.select("key", F.col("value").alias("payload"))

    with pytest.raises(RuntimeError, match="stumbled"):
        pipeline.run(spark, once=True)
    client.kv(source).put("k", b"two")
    # The first run had happened; it is not done again with what came later.
    pipeline.run(spark, once=True)
    assert [each.payload for each in client.reader(target)] == [b"one"]
    pipeline.run(spark, once=True)
    assert [each.payload for each in client.reader(target)] == [b"one", b"two"]


def test_static_sources_are_read_anew_and_sinks_see_the_same_rows(
    spark: SparkSession, client: Client, topic: MakeTopic, pipeline: Pipeline, tmp_path: Path
) -> None:
    source, names, seen = topic(kind="log"), topic(kind="kv"), topic()
    client.kv(names).put("a", b"Anna")

    @pipeline.step(
        {"out": to_topic(seen, onConflict="skip"), "all": table("all")},
        rows=log(source),
        entries=kv(names),
        there=messages(seen),
    )
    def joined(rows: DataFrame, entries: DataFrame, there: DataFrame) -> dict[str, DataFrame]:
        named = rows.select("key").join(entries.select("key", "value"), "key", "left")
        count = there.agg(F.count("*").alias("there"))
        made = named.crossJoin(count).select("key", F.col("value").alias("payload"), "there")
        return {"out": made.drop("there").na.drop(), "all": made}

    append(client, source, "a", "b")
    pipeline.run(spark, once=True)
    client.kv(names).put("b", b"Ben")
    append(client, source, "b")
    pipeline.run(spark, once=True)
    rows = Table(tmp_path / "all").read(spark).collect()
    found = sorted((r.key, (r.payload or b"-").decode(), r.there) for r in rows)
    # `there` is counted before the first sink has written, also for the second one.
    assert found == [("a", "Anna", 0), ("b", "-", 0), ("b", "Ben", 1)]
    assert payloads(client, seen) == ["Anna", "Ben"]


def test_state_is_kept_between_runs(
    spark: SparkSession, client: Client, topic: MakeTopic, pipeline: Pipeline
) -> None:
    source, target = topic(kind="log", partitions=2), topic(kind="kv")

    @pipeline.step(kv(target), rows=log(source), stateful=True, output="update")
    def counted(rows: DataFrame) -> DataFrame:
        return rows.groupBy("key").agg(F.count("*").cast("string").alias("value"))

    append(client, source, "a", "b", "a")
    pipeline.run(spark, once=True)
    append(client, source, "a")
    pipeline.run(spark, once=True)
    entries = client.kv(target).range().to_pylist()
    assert {each["key"]: each["value"] for each in entries} == {"a": b"3", "b": b"1"}


def test_two_streams_are_joined(
    spark: SparkSession, client: Client, topic: MakeTopic, pipeline: Pipeline, tmp_path: Path
) -> None:
    left, right = topic(kind="log"), topic(kind="log")

    @pipeline.step(table("pairs"), orders=log(left), payments=log(right), stateful=True)
    def pairs(orders: DataFrame, payments: DataFrame) -> DataFrame:
        paid = payments.select(F.col("key").alias("paid"))
        return orders.select("key").join(paid, F.expr("key = paid"))

    append(client, left, "1", "2")
    pipeline.run(spark, once=True)
    append(client, right, "2", "3")
    pipeline.run(spark, once=True)
    rows = Table(tmp_path / "pairs").read(spark).collect()
    assert [row.key for row in rows] == ["2"]


def test_steps_run_in_their_order_and_one_process_at_a_time(
    spark: SparkSession, client: Client, topic: MakeTopic, pipeline: Pipeline, tmp_path: Path
) -> None:
    first, second, third = topic(kind="log"), topic(kind="log"), topic(kind="log")

    @pipeline.step(log(second), rows=log(first))
    def one(rows: DataFrame) -> DataFrame:
        return rows.select("key", F.concat("payload", F.lit(b"!")).alias("payload"))

    @pipeline.step(log(third), rows=log(second))
    def two(rows: DataFrame) -> DataFrame:
        return rows.select("key", F.concat("payload", F.lit(b"?")).alias("payload"))

    append(client, first, "a")
    pipeline.run(spark, once=True)
    assert [each.payload for each in client.reader(third)] == [b"a!?"]
    with Lake(tmp_path / "tested").lock(), pytest.raises(DataDirLocked):
        pipeline.run(spark, once=True)


def test_it_runs_on_until_it_fails(
    spark: SparkSession, client: Client, topic: MakeTopic, pipeline: Pipeline
) -> None:
    source, target, other = topic(kind="log"), topic(kind="log"), topic(kind="log")
    seen = threading.Event()

    @pipeline.step(log(target), every="50ms", rows=log(source))
    def copy(rows: DataFrame) -> DataFrame:
        if rows.where("key = 'end'").count():
            raise RuntimeError("enough")
        return rows.select("payload", "key")

    @pipeline.step(log(other), every="1h", entries=lambda spark: spark.range(1))
    def batch(entries: DataFrame) -> DataFrame:
        return entries.select(F.lit("once").alias("payload"))

    append(client, source, "a")
    failed: list[BaseException] = []

    def tell(done: StepRun) -> None:
        if done.step == "copy" and done.rows >= 1:
            seen.set()

    def run() -> None:
        try:
            pipeline.run(spark, progress=tell)
        except BaseException as error:
            failed.append(error)
            seen.set()

    running = threading.Thread(target=run)
    running.start()
    assert seen.wait(120)
    assert not failed, str(failed[0])
    assert [each.payload for each in client.reader(target)] == [b"a"]
    append(client, source, "end")
    running.join(120)
    assert "enough" in str(failed[0])
    assert not spark.streams.active
    assert [each.payload for each in client.reader(other)] == [b"once"]


KILLED = """
import os, signal, sys
import fasti.spark
from fasti.pipeline import Pipeline, log, Sink, topic, table
from pyspark.sql import functions as F

address, directory, source, target, moment = sys.argv[1:]
spark = fasti.spark.session("local[2]", **{"spark.sql.shuffle.partitions": "2"})
pipeline = Pipeline("killed", address=address, directory=directory)
sink = topic(target)

class Killed(Sink):
    def write(self, rows, place, transaction):
        if moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        sink.write(rows, place, transaction)
        if moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)

@pipeline.step({"first": table("kept"), "then": Killed()}, rows=log(source))
def copy(rows):
    made = rows.select("payload", F.expr("interval 1 hour").alias("delay"))
    return {"first": rows.select("offset"), "then": made}

pipeline.run(spark, once=True)
"""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_drivers_that_are_killed_leave_every_row_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: MakeTopic, tmp_path: Path
) -> None:
    source, target = topic(kind="log"), topic()
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(KILLED))
    expected: list[str] = []
    for number, moment in enumerate(("before", "after", "never")):
        rows = [f"{number}-{each}" for each in range(50)]
        append(client, source, *rows)
        expected += rows
        command = [sys.executable, str(script), broker.address, str(tmp_path / "state")]
        done = subprocess.run(
            [*command, source, target, moment],
            capture_output=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        assert done.returncode == (0 if moment == "never" else -signal.SIGKILL), done.stderr
    assert payloads(client, target) == sorted(expected)
    kept = Table(tmp_path / "state" / "kept").read(spark).collect()
    assert sorted(row.offset for row in kept) == list(range(len(expected)))
