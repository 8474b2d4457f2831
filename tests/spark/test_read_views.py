"""Topics of every kind as DataFrames: what is in them, in how many tasks, by which columns."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.client.durations import as_datetime
from tests.spark.reading import Reading, why

MakeTopic = Callable[..., str]
FAR = datetime(2100, 1, 1, tzinfo=UTC)
FAR_US = int(FAR.timestamp()) * 1_000_000


@pytest.fixture(scope="module")
def read(spark: SparkSession, broker: BrokerProcess) -> Reading:
    return Reading(spark, broker)


@pytest.mark.one_shard
def test_messages_with_everything_that_they_have(
    read: Reading, client: Client, topic: MakeTopic
) -> None:
    name = topic(kind="priority", partitions=2)
    receipt = client.producer(name, owner="billing").send(
        b"hello",
        at=FAR,
        key="user-7",
        priority=3,
        headers={"lang": "en"},
        content_type="text/plain",
    )
    id_ = receipt.result(timeout=10).id
    (row,) = read(name).collect()
    created = row["created"]
    assert timedelta(0) <= datetime.now(UTC) - created.replace(tzinfo=UTC) < timedelta(minutes=5)
    assert row["shard"] == client.feed().last.shard
    assert row["snapshot_position"] <= client.feed().last.frame
    told = {n: row[n] for n in row.__fields__ if n not in ("created", "shard", "snapshot_position")}
    assert told == {
        "id": id_,
        "partition": id_ >> 51,
        "state": "scheduled",
        "due": FAR.replace(tzinfo=None),
        "version": 1,
        "attempts": 0,
        "owner": "billing",
        "consumer": None,
        "reason": None,
        "priority": 3,
        "leased": None,
        "lease_until": None,
        "died": None,
        "expires": None,
        "key": "user-7",
        "headers": {"lang": "en"},
        "content_type": "text/plain",
        "subject": None,
        "payload": b"hello",
    }


@pytest.mark.one_shard
def test_one_partition_is_read_by_several_tasks_and_many_by_few(
    read: Reading, client: Client, topic: MakeTopic
) -> None:
    one, many = topic(), topic(partitions=16)
    for name in (one, many):
        client.producer(name).send_batch([b"x"] * 40_000, due=[FAR_US] * 40_000)
    whole = read(one, columns="id")
    assert whole.rdd.getNumPartitions() == 2
    assert whole.distinct().count() == 40_000
    assert read(one, columns="id", minPartitions=5).rdd.getNumPartitions() == 5
    sizes = read(one, columns="id", minPartitions=5).rdd.glom().map(len).collect()
    assert sum(sizes) == 40_000
    assert max(sizes) <= 2 * min(sizes)
    spread = read(many, columns="id")
    assert spread.rdd.getNumPartitions() == 2
    assert spread.distinct().count() == 40_000


def test_an_empty_topic_is_an_empty_dataframe(
    read: Reading, client: Client, topic: MakeTopic
) -> None:
    for kind, view in (("timeline", "messages"), ("log", "log"), ("kv", "kv")):
        assert read(topic(kind=kind), view=view).collect() == []
    nowhere = read(view="changes", startingOffsets="latest", endingOffsets="latest")
    assert nowhere.collect() == []


def test_messages_by_options(read: Reading, client: Client, topic: MakeTopic) -> None:
    name = topic()
    producer = client.producer(name, owner="billing")
    producer.send_batch([b"a"] * 5, due=[FAR_US + n * 1_000_000 for n in range(5)])
    client.producer(name, owner="shop").send(b"b", at=FAR, key="user-7").result(timeout=10)
    client.producer(name).send(b"c").result(timeout=10)

    def count(**options: Any) -> int:
        return read(name, columns="id", **options).count()

    assert count(state="scheduled") == 6
    assert count(state="ready") == 1
    assert count(state="ready, dead") == 1
    assert count(owner="shop") == 1
    assert count(key="user-7") == 1
    assert count(key="nobody") == 0
    assert count(dueFrom="2100-01-01T00:00:02Z") == 3
    assert count(dueFrom="2100-01-01T00:00:01Z", dueTo="2100-01-01T00:00:03+00:00") == 2
    assert count(owner="billing", dueTo="2100-01-01T00:00:01Z") == 1


def test_a_log_by_offsets_and_by_times(read: Reading, client: Client, topic: MakeTopic) -> None:
    name = topic(kind="log", partitions=2)
    producer = client.producer(name)
    for partition in (0, 1):
        producer.send_batch([b"early"] * 100, partition=partition)
    producer.flush()
    # By the broker's clock: the client knows it only within bounds, and waits for the lower one.
    with client.reader(name, start="earliest", follow=False) as reader:
        middle_us = max(row.created_us for row in reader) + 1
    while client.transport.clock.now_us() <= middle_us:
        time.sleep(0.001)
    middle = as_datetime(middle_us)
    producer.send_batch([b"late"] * 50, partition=1)
    producer.flush()

    def offsets(**options: Any) -> dict[int, list[int]]:
        rows = read(name, view="log", columns="partition,offset", **options).collect()
        found: dict[int, list[int]] = {}
        for row in sorted(rows):
            found.setdefault(row["partition"], []).append(row["offset"])
        return found

    assert offsets() == {0: list(range(100)), 1: list(range(150))}
    assert offsets(startingOffsets='{"0": 90, "1": "latest"}') == {0: list(range(90, 100))}
    assert offsets(endingOffsets='{"0": 0, "1": 3}') == {1: [0, 1, 2]}
    assert offsets(startingTimestamp=middle.isoformat()) == {1: list(range(100, 150))}
    early = offsets(endingTimestamp=middle.isoformat())
    assert early == {0: list(range(100)), 1: list(range(100))}
    assert read(name, view="log", minPartitions=4).rdd.getNumPartitions() >= 4


@pytest.mark.one_shard
def test_entries_of_one_moment(read: Reading, client: Client, topic: MakeTopic) -> None:
    name = topic(kind="kv", partitions=3)
    entries = client.kv(name)
    for number in range(20):
        entries.put(f"user-{number}", b"%d" % number)
    entries.put("order-1", b"o", clustering="line-1", ttl="1h")
    entries.put("user-3", b"three")
    entries.delete("user-4")
    rows = {(row["key"], row["clustering"]): row for row in read(name, view="kv").collect()}
    assert len(rows) == 20
    assert rows["user-3", None]["value"] == b"three"
    assert rows["user-3", None]["version"] == 2
    assert rows["user-5", None]["expires"] is None
    assert rows["order-1", "line-1"]["expires"] > datetime.now(UTC).replace(tzinfo=None)
    assert len({row["snapshot_position"] for row in rows.values()}) == 1
    assert read(name, view="kv", prefix="user-1").count() == 11
    assert [row["value"] for row in read(name, view="kv", key="order-1").collect()] == [b"o"]


@pytest.mark.one_shard
def test_changes_between_positions_and_times(
    read: Reading, client: Client, topic: MakeTopic
) -> None:
    name = topic()
    client.producer(name).send_batch([b"x"] * 10, due=[FAR_US] * 10)
    between = client.feed().last
    messages = client.messages(name)
    messages.cancel(id=[1, 2, 3])

    def ops(**options: Any) -> list[str]:
        rows = read(name, view="changes", columns="op,position,row", **options).collect()
        return [row["op"] for row in sorted(rows, key=lambda row: (row["position"], row["row"]))]

    assert ops() == ["topic_created", *["produced"] * 10, *["cancelled"] * 3]
    place = f'{{"{between.shard}": {between.frame}}}'
    assert ops(startingOffsets=place) == ["cancelled"] * 3
    assert ops(endingOffsets=place) == ["topic_created", *["produced"] * 10]
    assert ops(op="cancelled, topic_created") == ["topic_created", *["cancelled"] * 3]
    payloads = read(name, view="changes", payload="true", op="produced").select("payload")
    assert {row[0] for row in payloads.collect()} == {b"x"}
    assert ops(startingTimestamp="2100-01-01T00:00:00Z") == []


def test_columns_by_option_and_by_schema(
    spark: SparkSession, broker: BrokerProcess, read: Reading, client: Client, topic: MakeTopic
) -> None:
    name = topic()
    client.producer(name).send(b"hello", at=FAR, key="k").result(timeout=10)
    assert read(name, columns="payload, key").columns == ["payload", "key"]
    assert "headers" not in read(name, includeHeaders="false").columns
    reader = spark.read.format("fasti").options(address=broker.address, topic=name)
    (row,) = reader.schema("key string, due timestamp").load().collect()
    assert row.asDict() == {"key": "k", "due": FAR.replace(tzinfo=None)}
    for schema, told in (
        ("key string, due string", "column 'due' of the schema is string: expected timestamp"),
        ("nme string", "has no column 'nme'"),
        ("key string not null", "column 'key' of the schema may not be null"),
    ):
        with pytest.raises(Exception, match=r"\[FASTI\.") as info:
            reader.schema(schema).load().collect()
        assert told in why(info.value)
