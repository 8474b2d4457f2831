"""Spark on a broker of four shards: reads, writes, streams over restarts, and the whole pipeline."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

import fasti
import fasti.spark
from fasti.broker.launch import BrokerProcess
from fasti.broker.ports import reserve
from fasti.client.client import Client
from fasti.pipeline import runner
from fasti.pipeline.bronze import shards
from fasti.pipeline.lake import Lake
from fasti.pipeline.stages import pipeline
from fasti.pipeline.state import LakeState
from fasti.settings.values import Address
from fasti.spark.errors import SparkFastiError
from fasti.spark.source import FastiSource
from fasti.spark.streams import OffsetStream
from tests.spark.plain_delta import as_the_broker_says, states

SHARDS = 4
SMALL = {"segment_size": "1MiB", "memory": "128MiB"}
PLACE = ["shard", "position", "row", "op", "id"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("shards") / "data"
    with BrokerProcess(data, shards=SHARDS, processes=2, settings=SMALL) as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with fasti.connect(broker.address) as connected:
        yield connected


class Addressed(Protocol):
    """Something that clients can reach."""

    @property
    def address(self) -> str: ...


def read(spark: SparkSession, broker: Addressed, **options: str) -> DataFrame:
    return spark.read.format("fasti").options(address=broker.address, **options).load()


def write(rows: DataFrame, broker: Addressed, **options: str) -> None:
    rows.write.format("fasti").options(address=broker.address, **options).mode("append").save()


def numbered(spark: SparkSession, first: int, count: int) -> DataFrame:
    """Rows in several tasks, every second one with a key."""
    return spark.range(first, first + count, 1, 4).select(
        F.concat(F.lit("row "), F.col("id")).alias("payload"),
        F.when(F.col("id") % 2 == 1, F.concat(F.lit("k"), F.col("id"))).alias("key"),
        F.expr("timestamp'2100-01-01 00:00:00Z'").alias("due"),
    )


def payloads(table: pa.Table) -> list[int]:
    return sorted(int(payload.removeprefix(b"row ")) for payload in table["payload"].to_pylist())


def test_rows_are_written_to_their_shards_and_read_from_all(
    spark: SparkSession, broker: BrokerProcess, client: Client
) -> None:
    client.create_topic("orders", partitions=8)
    rows = numbered(spark, 0, 1000)
    transaction = {"txnAppId": "orders import", "txnVersion": "1"}
    write(rows, broker, topic="orders", **transaction)
    write(rows, broker, topic="orders", **transaction)
    found = read(spark, broker, topic="orders").toArrow()
    assert payloads(found) == list(range(1000))
    assert len(set(found["shard"].to_pylist())) == SHARDS
    assert set(found["partition"].to_pylist()) == set(range(8))
    # Keys name the shard: only that one is asked, and it has the message.
    one = read(spark, broker, topic="orders", key="k7").toArrow()
    assert payloads(one) == [7]
    history = read(spark, broker, view="changes", topic="orders", op="staged").toArrow()
    assert len(history) == 1000
    assert len(set(history["shard"].to_pylist())) == SHARDS


def test_changes_of_rows_reach_them_wherever_they_are(
    spark: SparkSession, broker: BrokerProcess, client: Client
) -> None:
    client.create_topic("changed", partitions=4)
    write(numbered(spark, 0, 100), broker, topic="changed")
    keyed = numbered(spark, 0, 60).where("key is not null")
    write(keyed.select("key"), broker, topic="changed", operation="cancel")
    assert sum(client.topic("changed").counts[state] for state in ("scheduled", "ready")) == 70
    left = read(spark, broker, topic="changed", columns="id,key")
    outcomes = fasti.spark.apply(left, "changed", "move", shift="1h", address=broker.address)
    assert Counter(row.status for row in outcomes.collect()) == {"ok": 70}
    client.create_topic("entries", kind="kv")
    puts = keyed.select("key", F.col("payload").alias("value"))
    write(puts, broker, topic="entries", operation="put")
    entries = read(spark, broker, topic="entries", view="kv").toArrow()
    assert sorted(entries["key"].to_pylist()) == sorted(f"k{n}" for n in range(1, 60, 2))
    assert len(set(entries["shard"].to_pylist())) == SHARDS


def streamed(spark: SparkSession, broker: Addressed, **options: str) -> DataFrame:
    return spark.readStream.format("fasti").options(address=broker.address, **options).load()


def run(rows: DataFrame, place: Path) -> StreamingQuery:
    writer = rows.writeStream.format("parquet").option("path", str(place / "rows"))
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def truth(client: Client, topic: str) -> list[tuple[Any, ...]]:
    table = pa.concat_tables(client.changes(topic=topic)).select(PLACE)
    return sorted(tuple(row.values()) for row in table.to_pylist())


def kept(spark: SparkSession, place: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.parquet(str(place / "rows")).select(*PLACE).toArrow()
    return sorted(tuple(row.values()) for row in rows.to_pylist())


@pytest.mark.long
def test_a_stream_of_changes_goes_on_over_restarts_of_query_and_broker(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("streamed", partitions=4)
    for number in range(3):
        write(numbered(spark, 300 * number, 300), broker, topic="streamed")
        query = run(
            streamed(spark, broker, view="changes", topic="streamed", maxOffsetsPerTrigger="200"),
            tmp_path,
        )
        broker.kill()
        broker.start()
    assert kept(spark, tmp_path) == truth(client, "streamed")
    offsets = json.loads(query.lastProgress["sources"][0]["endOffset"])
    assert [name.split(".")[0] for name in sorted(offsets)] == list(map(str, range(SHARDS)))
    assert len(query.recentProgress) > 1


def test_a_stream_of_a_log_has_every_partition_once(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("events", kind="log", partitions=6)
    for number in range(2):
        rows = numbered(spark, 200 * number, 200).select("payload", "key")
        write(rows, broker, topic="events")
        run(streamed(spark, broker, view="log", topic="events"), tmp_path)
    found = spark.read.parquet(str(tmp_path / "rows")).toArrow()
    assert payloads(found) == list(range(400))
    places = list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
    ends = {part.partition: part.end for part in client.log("events").describe()}
    assert sorted(places) == [(n, at) for n, end in sorted(ends.items()) for at in range(end)]
    batch = read(spark, broker, view="log", topic="events", minPartitions="8").toArrow()
    assert payloads(batch) == list(range(400))


def test_rows_of_a_stream_are_written_once_on_every_shard(
    spark: SparkSession, broker: BrokerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_topic("copies", partitions=4)
    client.create_topic("source", kind="log", partitions=2)
    for number in range(2):
        rows = numbered(spark, 100 * number, 100).select("payload")
        write(rows, broker, topic="source")
        source = streamed(spark, broker, view="log", topic="source").select("payload")
        writer = source.writeStream.format("fasti").option("address", broker.address)
        writer = writer.option("topic", "copies").option("checkpointLocation", str(tmp_path / "c"))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert payloads(client.messages("copies").list(payload=True)) == list(range(200))


# Without a session


def stream(broker: BrokerProcess, **options: str) -> OffsetStream:
    source = FastiSource({"address": broker.address, "view": "changes", **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, OffsetStream)
    return reader


def put(client: Client, topic: str, batch: int, count: int) -> None:
    sink = client.sink(topic, topic)
    with sink.stage(batch, 0, 0) as stage:
        due_us = [4_000_000_000_000_000] * count
        contents = [b"%d %d" % (batch, n) for n in range(count)]
        stage.write(pa.record_batch({"payload": contents, "due_us": due_us}))
    sink.publish(batch, [stage.staged.name])


def rows_of(reader: OffsetStream, begin: Any, end: Any) -> list[dict[str, Any]]:
    parts = reader.partitions(begin, end)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_limit_of_rows_is_shared_and_what_one_shard_leaves_others_have(
    broker: BrokerProcess, client: Client
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    client.create_topic("limited", partitions=4)
    put(client, "limited", 0, 400)
    # One partition: on one shard alone.
    client.create_topic("alone", partitions=1)
    put(client, "alone", 0, 400)
    for topic in ("limited", "alone"):
        reader = stream(broker, topic=topic, maxOffsetsPerTrigger="100")
        begin = reader.initialOffset()
        found, rounds = [], 0
        while (end := reader.latestOffset(begin, ReadMaxRows(100))) != begin and rounds < 50:
            found += rows_of(reader, begin, end)
            begin, rounds = end, rounds + 1
        assert len(found) == len(truth(client, topic))
        assert rounds > 1
    whole = stream(broker, topic="limited")
    end = whole.latestOffset(whole.initialOffset(), ReadAllAvailable())
    assert sorted(end) == sorted(client.feed().last.frames)
    # The same two offsets again, by another process that has taken over: the same rows.
    first = rows_of(whole, whole.initialOffset(), end)
    again = rows_of(stream(broker, topic="limited"), whole.initialOffset(), end)
    places = [
        [(row["shard"], row["position"], row["row"]) for row in rows] for rows in (first, again)
    ]
    assert sorted(places[0]) == sorted(places[1])


def test_offsets_name_every_shard(broker: BrokerProcess, client: Client) -> None:
    last = client.feed().last.frames
    said = stream(broker, startingOffsets=json.dumps(last)).initialOffset()
    assert said == last
    one = dict(list(last.items())[:1])
    with pytest.raises(SparkFastiError, match=r"invalid_argument\] startingOffsets of this"):
        stream(broker, startingOffsets=json.dumps(one)).initialOffset()
    with pytest.raises(SparkFastiError, match=r"invalid_argument\].*each of its 4 shards"):
        stream(broker).partitions(one, last)
    lost = {**last}
    name = next(feed for feed in last if feed.startswith("2."))
    lost["2.0123456789abcdef"] = lost.pop(name)
    with pytest.raises(SparkFastiError, match=r"FASTI.gone\].*has another one.*restored"):
        stream(broker).partitions(lost, last)


# The pipeline


@pytest.mark.long
def test_the_audit_of_every_shard_is_clean_and_agrees_with_its_counts(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "data", shards=SHARDS, processes=2, settings=SMALL) as mine:
        with fasti.connect(mine.address) as client:
            client.create_topic("mail", partitions=8, max_attempts=2)
            client.create_topic("bills", kind="priority")
            lake = Lake(tmp_path / "lake")
            for number in range(2):
                put(client, "mail", number, 500)
                put(client, "bills", number, 50)
                ids = client.messages("mail").list(limit=60)["id"].to_numpy()
                client.messages("mail").cancel(id=ids[::2])
                client.messages("mail").move(id=ids[1::2], delay="3h")
                result = runner.run(pipeline(lake, mine.address), spark, signals=False)
                assert result.rows["audit"] == 0
                state = LakeState.of(lake)
                # Exactly compared, shard by shard.
                assert sorted(state.compared) == ["bills", "mail"]
                assert len(state.compared["mail"]) == SHARDS
                mine.kill()
                mine.start()
            assert lake.gold("audit").rows() == 0
            assert sorted(name.split(".")[0] for name in shards(lake)) == ["0", "1", "2", "3"]
            assert states(lake) == as_the_broker_says(client)
            feeds = client.feed().last.frames
            assert {
                name: frame <= feeds[name] for name, frame in state.audit.items()
            } == dict.fromkeys(feeds, True)
            total = sum(len(table) for table in client.changes(start="earliest"))
            assert lake.bronze.rows() == total


def test_a_stream_goes_on_when_the_broker_comes_back_at_another_address(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Ports that are kept for the second life of the broker.
    kept_ports = reserve(Address("127.0.0.1", 0), 2)
    later = str(Address("127.0.0.1", kept_ports[0].getsockname()[1]))
    options = {"view": "changes", "topic": "moving"}
    with BrokerProcess(tmp_path / "data", shards=SHARDS, processes=2, settings=SMALL) as first:
        with fasti.connect(first.address) as client:
            client.create_topic("moving", partitions=4)
            put(client, "moving", 0, 200)
        both = f"{first.host}:{first.port},{later}"
        rows = spark.readStream.format("fasti").options(address=both, **options).load()
        run(rows, tmp_path)
    with BrokerProcess(tmp_path / "data", listen=later, processes=2, settings=SMALL) as second:
        with fasti.connect(second.address) as client:
            put(client, "moving", 1, 200)
            run(rows, tmp_path)
            assert kept(spark, tmp_path) == truth(client, "moving")
    for port in kept_ports:
        port.close()
