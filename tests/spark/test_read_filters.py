"""Filters that the broker does give the rows that Spark's own give: a table of them."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from tests.spark.reading import Reading

MakeTopic = Callable[..., str]
DAY = datetime(2100, 1, 1, tzinfo=UTC)
DAY_US = int(DAY.timestamp()) * 1_000_000

# What is asked, and whether Spark still has to look.
FILTERS: dict[str, list[tuple[str, bool]]] = {
    "messages": [
        ("due > timestamp'2100-01-01 00:00:05'", False),
        ("due >= timestamp'2100-01-01 00:00:05.000001' and due < timestamp'2100-01-01 00:01'", False),
        ("due = timestamp'2100-01-01 00:00:07'", False),
        ("due <= timestamp'2100-01-01 00:00:07' and due is not null", False),
        ("due between date'2100-01-01' and date'2100-01-02'", False),
        ("due in (timestamp'2100-01-01 00:00:07', timestamp'2100-01-01 00:00:09')", True),
        ("state = 'ready'", False),
        ("state in ('dead', 'leased', 'nowhere')", False),
        ("state = 'ready' and state = 'dead'", False),
        ("state <> 'scheduled'", True),
        ("id > 5 and id <= 2251799813685253", False),
        ("id in (3, 4, 2251799813685250)", True),
        ("partition = 1", False),
        ("partition in (0, 1) and id < 4", True),
        ("owner = 'shop'", True),
        ("owner is null", True),
        ("key = 'user-7' or key = 'user-8'", True),
        ("key in ('user-7', 'nobody') and state = 'scheduled'", False),
        ("version = 2 and due > timestamp'2100-01-01 00:00:05'", True),
    ],
    "log": [
        ("offset >= 3 and offset < 7", False),
        ("offset = 5 and partition = 1", False),
        ("offset in (1, 8)", True),
        ("created > timestamp'2000-01-01'", True),
        ("created < timestamp'2000-01-01'", True),
        ("partition > 0 and payload = cast('log 4' as binary)", True),
    ],
    "kv": [
        ("key = 'user-7'", False),
        ("key like 'user-1%'", False),
        ("key in ('user-7', 'order-1')", False),
        ("key like 'user-1%' and key in ('user-11', 'user-2')", False),
        ("version = 1", True),
    ],
    "changes": [
        ("op = 'cancelled'", False),
        ("op in ('acked', 'rejected')", False),
        ("position > {middle}", False),
        ("position <= {middle} and op <> 'produced'", True),
        ("at > timestamp'2000-01-01'", True),
        ("at < timestamp'2000-01-01'", True),
        ("topic = '{topic}' and op = 'produced'", True),
    ],
}  # fmt: skip
KEYS = {
    "messages": ["id"],
    "log": ["partition", "offset"],
    "kv": ["key", "clustering"],
    "changes": ["position", "row"],
}


class Topics:
    """Topics of all kinds with all sorts of rows."""

    def __init__(self, client: Client) -> None:
        # Nothing that happens by itself while the tests run.
        client.create_topic("filters-messages", partitions=2, lease="1h")
        producer = client.producer("filters-messages")
        for partition in (0, 1):
            due = [DAY_US + n * 1_000_000 for n in range(12)]
            producer.send_batch([b"far"] * 12, due=due, partition=partition)
        shop = client.producer("filters-messages", owner="shop")
        for number in (7, 8):
            shop.send(b"named", key=f"user-{number}", at=DAY).result(timeout=10)
        self.middle = client.feed().last.frame
        producer.send_batch([b"now"] * 8, partition=0)
        producer.flush()
        client.messages("filters-messages").cancel(id=[2, 3])
        self._consume(client)
        messages = client.messages("filters-messages", owner="shop")
        assert messages.move(key="user-7", at=DAY.replace(minute=1)).status == "ok"
        client.create_topic("filters-log", kind="log", partitions=2)
        log = client.producer("filters-log")
        for partition in (0, 1):
            log.send_batch([b"log %d" % n for n in range(10)], partition=partition)
        log.flush()
        client.create_topic("filters-kv", kind="kv", partitions=2)
        entries = client.kv("filters-kv")
        for number in range(15):
            entries.put(f"user-{number}", b"v")
        entries.put("order-1", b"v", clustering="a")
        entries.put("user-7", b"again")

    def _consume(self, client: Client) -> None:
        """One is dead, one done; the consumer stays, has four others, and leaves two."""
        self.consumer = client.consumer("filters-messages", prefetch=4, timeout=10)
        found = [next(iter(self.consumer)) for _ in range(2)]
        found[0].reject("no")
        found[1].ack()
        self.consumer.flush()
        # It takes others for those that are finished when it comes to it.
        while client.messages("filters-messages").count()["leased"] < 4:
            time.sleep(0.01)


@pytest.fixture(scope="module")
def topics(broker: BrokerProcess) -> Iterator[Topics]:
    with fasti.connect(broker.address) as client:
        made = Topics(client)
        yield made


@pytest.fixture(scope="module")
def read(spark: SparkSession, broker: BrokerProcess) -> Reading:
    return Reading(spark, broker)


@pytest.fixture(scope="module")
def wholes(spark: SparkSession, read: Reading, topics: Topics) -> dict[str, DataFrame]:
    """All rows of each view, which Spark filters by itself."""
    found = {}
    for view in FILTERS:
        frame = loaded(read, view)
        found[view] = spark.createDataFrame(frame.collect(), frame.schema)
    return found


def loaded(read: Reading, view: str, **options: Any) -> DataFrame:
    topic = f"filters-{'messages' if view == 'changes' else view}"
    return read(topic if view != "changes" else None, view=view, **options)


@pytest.mark.one_shard
@pytest.mark.parametrize("view", FILTERS)
def test_filters_give_what_spark_gives(
    read: Reading, topics: Topics, wholes: dict[str, DataFrame], view: str
) -> None:
    # Later tests add to the feed; nothing of it is in what was read before.
    options: dict[str, Any] = {"pushDownPredicate": "true"}
    if view == "changes":
        last = wholes[view].agg({"position": "max"}).collect()[0][0]
        shard = wholes[view].first()["shard"]  # type: ignore[index]
        options["endingOffsets"] = f'{{"{shard}": {last}}}'
    asked = [
        text.format(middle=topics.middle, topic="filters-messages") for text, _ in FILTERS[view]
    ]
    expected = found_by_spark(wholes[view], view, asked)
    assert sum(map(bool, expected.values())) > len(asked) // 2, "most of them find something"
    for condition, (_, looks) in zip(asked, FILTERS[view], strict=True):
        pushed = loaded(read, view, **options).filter(condition).select(*KEYS[view])
        assert sorted(map(tuple, pushed.collect()), key=str) == expected[condition], condition
        plan = pushed._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
        assert ("Filter " in plan) == looks, (condition, plan)


def found_by_spark(
    whole: DataFrame, view: str, conditions: list[str]
) -> dict[str, list[tuple[Any, ...]]]:
    """The names of the rows that fit each condition, in one job."""
    fits = [F.expr(each).alias(f"fits_{n}") for n, each in enumerate(conditions)]
    rows = whole.select(*KEYS[view], *fits).collect()
    return {
        each: sorted(
            (tuple(row[key] for key in KEYS[view]) for row in rows if row[f"fits_{n}"]), key=str
        )
        for n, each in enumerate(conditions)
    }


@pytest.mark.one_shard
def test_moments_mean_the_same_in_every_time_zone(
    spark: SparkSession, read: Reading, topics: Topics
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert zone == "UTC"
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        later = loaded(read, "messages", pushDownPredicate="true").filter(
            "due > timestamp'2099-12-31 19:00:05'"
        )
        assert later.count() == 13
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.one_shard
def test_without_spark_s_setting_everything_works_unpushed(
    spark: SparkSession, read: Reading, topics: Topics
) -> None:
    name = "spark.sql.python.filterPushdown.enabled"
    try:
        spark.conf.set(name, "false")
        found = loaded(read, "messages", pushDownPredicate="true")
        assert found.filter("due >= timestamp'2100-01-01'").count() == 24
    finally:
        spark.conf.set(name, "true")
