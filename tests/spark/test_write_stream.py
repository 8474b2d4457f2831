"""`df.writeStream`: batches that are written once, over failures of tasks, drivers and brokers."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from tests.spark import weak_source

pytestmark = pytest.mark.timeout(300)

ROWS = 400
BATCH_ROWS = 200
Start = Callable[..., StreamingQuery]


@pytest.fixture(autouse=True)
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Tasks get their rows in several batches."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "20")
    yield
    spark.conf.set(name, str(before))


def fill(client: Client, log: str, begin: int = 0) -> None:
    rows = range(begin, begin + ROWS)
    payloads = [b"%d" % number for number in rows]
    client.producer(log).send_batch(payloads, key=[f"k{number}" for number in rows])


def stream_of(spark: SparkSession, address: str, log: str) -> DataFrame:
    """The log's rows with a part that is another one whenever it is computed."""
    read = spark.readStream.format("fasti").options(address=address, view="log", topic=log)
    rows = read.option("maxOffsetsPerTrigger", BATCH_ROWS).load()
    return rows.select(
        "key",
        F.expr("concat(payload, ' ', uuid())").alias("payload"),
        F.expr("timestamp'2100-01-01'").alias("due"),
    )


def start(rows: DataFrame, **options: Any) -> StreamingQuery:
    weak = options.pop("weak", None)
    writer = rows.writeStream.format("fasti" if weak is None else "fasti-weak").options(**options)
    if weak is not None:
        writer = writer.option("weak", json.dumps(weak))
    return writer.trigger(availableNow=True).start()


def written(client: Client, topic: str) -> list[int]:
    rows = pa.Table.from_batches(list(client.messages(topic).scan(payload=True))).to_pylist()
    assert all(row["key"] == f"k{row['payload'].split()[0].decode()}" for row in rows)
    return sorted(int(row["key"][1:]) for row in rows)


class Copy:
    """A log, a topic, and a stream between them."""

    def __init__(
        self, spark: SparkSession, client: Client, address: str, log: str, topic: str, path: Path
    ) -> None:
        weak_source.register(spark)
        self.client, self.log, self.topic, self.path = client, log, topic, path
        self.rows = stream_of(spark, address, log)
        self.options = {"address": address, "topic": topic, "checkpointLocation": str(path / "0")}
        fill(client, log)

    def start(self, **options: Any) -> StreamingQuery:
        return start(self.rows, **{**self.options, **options})

    def run(self, **options: Any) -> None:
        query = self.start(**options)
        query.awaitTermination()

    def weak(self, **spot: Any) -> dict[str, Any]:
        return {"weak": {**spot, "once": str(self.path / f"once-{spot['at']}")}}

    def check(self, rows: int = ROWS) -> None:
        assert written(self.client, self.topic) == list(range(rows))
        assert self.client.messages(self.topic).count()["staged"] == 0


@pytest.fixture
def copy(
    spark: SparkSession,
    broker: BrokerProcess,
    client: Client,
    topic: Callable[..., str],
    tmp_path: Path,
) -> Copy:
    log, target = topic(kind="log", partitions=2), topic(partitions=2)
    return Copy(spark, client, broker.address, log, target, tmp_path)


def test_what_comes_is_written_once_and_gone_on_with(copy: Copy) -> None:
    name = f"sink-{copy.topic}"
    copy.run(sinkId=name)
    copy.check()
    fill(copy.client, copy.log, ROWS)
    copy.run(sinkId=name)
    copy.check(2 * ROWS)
    assert copy.client.sink(copy.topic, name).last_batch() == 3
    # A sink of one's own name remembers its batches over checkpoints, too.
    copy.run(sinkId=name, checkpointLocation=str(copy.path / "1"))
    copy.check(2 * ROWS)


def test_commits_that_fail_and_tasks_that_die_are_made_good(copy: Copy) -> None:
    with pytest.raises(Exception, match="a weak spot"):
        copy.run(**copy.weak(at="commit", do="raise", batch=0))
    assert written(copy.client, copy.topic) == []
    assert copy.client.messages(copy.topic).count()["staged"] == 0
    with pytest.raises(Exception, match="exited unexpectedly"):
        copy.run(**copy.weak(at="write", do="exit", batch=0))
    assert written(copy.client, copy.topic) == []
    with pytest.raises(Exception, match="a weak spot"):
        copy.run(**copy.weak(at="published", do="raise", batch=0))
    first = written(copy.client, copy.topic)
    assert 0 < len(first) < ROWS
    copy.run()
    copy.check()


def test_broker_killed_while_tasks_write(spark: SparkSession, tmp_path: Path) -> None:
    there, go = tmp_path / "there", tmp_path / "go"
    with BrokerProcess(tmp_path / "data") as own, fasti.connect(own.address) as client:
        client.create_topic("log", kind="log", partitions=2)
        client.create_topic("target", partitions=2)
        copy = Copy(spark, client, own.address, "log", "target", tmp_path)
        spot = copy.weak(at="write", do="wait", batch=0, there=str(there), go=str(go))
        query = copy.start(**spot)
        deadline = time.monotonic() + 120
        while not there.exists():
            assert time.monotonic() < deadline
            assert query.isActive, query.exception()
            time.sleep(0.05)
        own.kill()
        # Those who write find nobody there; then the broker is back, with what it had promised.
        back = threading.Timer(1.0, own.start)
        back.start()
        go.touch()
        query.awaitTermination()
        back.join()
        copy.check()


def test_what_is_wrong_ends_the_query_with_its_code(
    copy: Copy, client: Client, topic: Callable[..., str]
) -> None:
    wrong = copy.rows.withColumn("due", F.lit("soon"))
    query = start(wrong, **copy.options)
    with pytest.raises(
        Exception, match=r"\[FASTI.invalid_argument\] column 'due' must be timestamp"
    ):
        query.awaitTermination()
    client.producer(copy.topic).send(b"", key="k7", delay="1d").result()
    with pytest.raises(Exception, match=r"\[FASTI.already_exists\].*k7"):
        copy.run()
    assert client.messages(copy.topic).count()["scheduled"] == 1
    assert client.messages(copy.topic).count()["staged"] == 0
    copy.run(onConflict="skip")
    assert client.messages(copy.topic).count()["scheduled"] == ROWS


def test_everything_again_with_every_batch_is_refused_and_updates_go_batch_by_batch(
    copy: Copy, topic: Callable[..., str]
) -> None:
    entries = topic(kind="kv")
    counts = copy.rows.groupBy("key").agg(F.count("*").cast("string").alias("value"))
    options = {"address": copy.options["address"], "topic": entries, "operation": "put"}
    writer = counts.writeStream.option("checkpointLocation", str(copy.path / "0"))
    again = writer.format("fasti").options(**options).outputMode("complete")
    with pytest.raises(
        Exception, match=r"\[FASTI.invalid_argument\] messages can only be appended"
    ):
        again.trigger(availableNow=True).start().awaitTermination()

    def put(rows: DataFrame, batch: int) -> None:
        named = {**options, "txnAppId": f"app-{entries}", "txnVersion": str(batch)}
        rows.write.format("fasti").options(**named).mode("append").save()

    writer = counts.writeStream.option("checkpointLocation", str(copy.path / "1"))
    updates = writer.outputMode("update").foreachBatch(put).trigger(availableNow=True)
    updates.start().awaitTermination()
    assert copy.client.kv(entries).count() == ROWS
