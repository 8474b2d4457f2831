"""Streams in Spark, with brokers and drivers that are killed: compared row by row with the truth."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import fasti
import fasti.spark
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import FastiError

Topic = Callable[..., str]
COLUMNS = ["position", "row", "op", "id", "version"]
SMALL = {"segment_size": "64KiB", "feed_size": "0B", "checkpoint_size": "64KiB"}
ROOT = Path(__file__).parents[2]


def changes(spark: SparkSession, broker: BrokerProcess, **options: str) -> DataFrame:
    given = {"address": broker.address, "view": "changes", **options}
    return spark.readStream.format("fasti").options(**given).load()


def started(rows: DataFrame, place: Path, **trigger: Any) -> StreamingQuery:
    writer = rows.writeStream.format("parquet").option("path", str(place / "rows"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    return writer.trigger(**trigger).start() if trigger else writer.start()


def run(rows: DataFrame, place: Path) -> StreamingQuery:
    query = started(rows, place, availableNow=True)
    query.awaitTermination()
    return query


def kept(spark: SparkSession, place: Path) -> list[tuple[Any, ...]]:
    """What the files have, in order. Spark reads those that were committed."""
    rows = spark.read.parquet(str(place / "rows")).select(*COLUMNS).toArrow()
    return sorted(in_order(rows))


def truth(client: Client, topic: str | None = None) -> list[tuple[Any, ...]]:
    # Of several shards each has its own positions.
    return sorted(in_order(pa.concat_tables(client.changes(topic=topic)).select(COLUMNS)))


def in_order(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))


def test_run_by_run_everything_comes_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    for _ in range(2):
        client.producer(name).send_batch([b"x"] * 500, delay="1h")
        query = run(changes(spark, broker, topic=name, maxOffsetsPerTrigger="400"), tmp_path)
    assert kept(spark, tmp_path) == truth(client, name)
    while fasti.spark.behind(query):
        # The feed is the whole broker's: what others leave behind may come in the middle of a run.
        query = run(changes(spark, broker, topic=name), tmp_path)
    assert fasti.spark.behind(query) == 0
    assert kept(spark, tmp_path) == truth(client, name)


def test_two_queries_of_one_frame_have_places_of_their_own(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic, tmp_path: Path
) -> None:
    name = topic(kind="log", partitions=2)
    rows = (
        spark.readStream.format("fasti")
        .options(address=broker.address, view="log", topic=name)
        .load()
    )
    client.producer(name).send_batch([b"1"] * 10)
    run(rows, tmp_path / "one")
    client.producer(name).send_batch([b"2"] * 10)
    for place in ("one", "two"):
        run(rows, tmp_path / place)
        found = spark.read.parquet(str(tmp_path / place / "rows"))
        assert found.count() == found.select("partition", "offset").distinct().count() == 20


@pytest.mark.one_shard
def test_what_is_gone_fails_the_query_or_is_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        BrokerProcess(tmp_path / "data", settings=SMALL) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("t")
        run(changes(spark, broker), tmp_path)
        before = kept(spark, tmp_path)
        for _ in range(20):
            client.producer("t").send_batch([bytes(1000)] * 30, delay="1h")
        client.checkpoint()
        with pytest.raises(StreamingQueryException) as caught:
            run(changes(spark, broker), tmp_path)
        assert "[FASTI.gone] What happened after position" in str(caught.value)
        assert "feed_age" in str(caught.value)
        assert "feed_size" in str(caught.value)
        run(changes(spark, broker, failOnDataLoss="false"), tmp_path)
        assert kept(spark, tmp_path) == before + truth(client)


def work(address: str, half: threading.Event) -> None:
    """Somebody sends, moves and cancels, also while the broker is away."""
    with fasti.connect(address) as client:
        producer, messages = client.producer("t"), client.messages("t")
        for turn in range(20):
            with contextlib.suppress(FastiError):
                found = producer.send_batch([b"x"] * 50, delay="1h")
                messages.cancel(id=found.ids[:10].tolist())
                messages.move(id=found.ids[10:20].tolist(), delay="2h")
            if turn == 10:
                half.set()


def test_a_broker_is_killed_under_a_running_stream(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t", partitions=2)
        query = started(changes(spark, broker, maxOffsetsPerTrigger="500"), tmp_path)
        for _ in range(2):
            half = threading.Event()
            worker = threading.Thread(target=work, args=(broker.address, half))
            worker.start()
            assert half.wait(60)
            broker.kill()
            broker.start()
            worker.join()
        query.processAllAvailable()
        query.stop()
        with fasti.connect(broker.address) as client:
            expected = truth(client)
        assert kept(spark, tmp_path) == expected
        assert len(expected) > 1000


@pytest.mark.timeout(300)
def test_a_driver_is_killed_under_a_running_stream(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    producer = client.producer(name)
    for _ in range(10):
        producer.send_batch([b"x"] * 100, delay="1h")
    driver = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.spark.drive", broker.address, name),
            *(str(tmp_path / "rows"), str(tmp_path / "checkpoint")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        # With the Java process, so that both die at once.
        start_new_session=True,
    )
    try:
        assert driver.stdout is not None
        assert [int(driver.stdout.readline()) for _ in range(3)]
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
    producer.send_batch([b"x"] * 100, delay="1h")
    run(changes(spark, broker, topic=name, maxOffsetsPerTrigger="200"), tmp_path)
    assert kept(spark, tmp_path) == truth(client, name)


def test_a_stream_that_asks_too_long_says_why(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t")
        # As long as it takes a busy broker to answer.
        query = started(changes(spark, broker, timeout="5s"), tmp_path)
        query.processAllAvailable()
        broker.kill()
        with pytest.raises(StreamingQueryException, match=r"\[FASTI.unavailable\]"):
            query.awaitTermination()
        broker.start()
        run(changes(spark, broker), tmp_path)
        with fasti.connect(broker.address) as client:
            assert kept(spark, tmp_path) == truth(client)
