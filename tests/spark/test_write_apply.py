"""Rows carried out with an answer each. Most of it is tested without a session, as a task does it."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import fasti.spark
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import InvalidArgument
from fasti.spark.answers import ApplyOptions, shift_us
from fasti.spark.apply import ApplyTask
from fasti.spark.errors import SparkFastiError
from fasti.spark.rows import RowShape

MOMENT = pa.timestamp("us", tz="UTC")
START = datetime(2100, 1, 1, tzinfo=UTC)
_KINDS = {pa.string(): "string", pa.binary(): "binary", pa.int64(): "long", MOMENT: "timestamp"}
_KINDS |= {pa.int32(): "integer", pa.duration("us"): "interval day to second"}

Apply = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def carried_out(broker: BrokerProcess) -> Apply:
    """What a task does with columns: the outcomes as rows."""

    def run(
        topic: str | None, operation: str, columns: dict[str, pa.Array], **asked: Any
    ) -> list[dict[str, Any]]:
        fields = [
            {"name": name, "type": _KINDS[array.type], "nullable": True, "metadata": {}}
            for name, array in columns.items()
        ]
        schema = StructType.fromJson({"type": "struct", "fields": fields})
        shift = asked.pop("shift", None)
        shape = RowShape.of(schema, operation, topic is not None, shift is not None)
        given: dict[str, Any] = {"owner": "", "on_conflict": "reject", "dry_run": False, **asked}
        told = ApplyOptions(
            operation,
            broker.address,
            None,
            given["owner"],
            given["on_conflict"],
            given["dry_run"],
            None if shift is None else shift_us(shift),
            30.0,
        )
        batches: Iterator[pa.RecordBatch] = iter([pa.RecordBatch.from_pydict(columns)])
        apply = ApplyTask(told, shape, topic)
        return [row for batch in apply(batches) for row in batch.to_pylist()]

    return run


def statuses(rows: list[dict[str, Any]]) -> list[str]:
    return [row["status"] for row in rows]


def keys(*names: str) -> pa.Array:
    return pa.array(names, pa.string())


def payloads(count: int) -> pa.Array:
    return pa.array([b"x"] * count, pa.binary())


def due_of(client: Client, topic: str, key: str) -> datetime:
    found = client.messages(topic).get(key=key)["due_us"]
    return datetime.fromtimestamp(found / 1_000_000, UTC)


@pytest.fixture
def pending(client: Client, topic: Callable[..., str]) -> Callable[..., str]:
    """A topic with messages of these keys."""

    def make(*names: str, **settings: Any) -> str:
        name = topic(**settings)
        client.producer(name).send_batch([b"old"] * len(names), key=list(names), due=START_US)
        return name

    return make


START_US = int(START.timestamp()) * 1_000_000


def test_new_messages_answer_with_their_ids(
    carried_out: Apply, client: Client, topic: Callable[..., str]
) -> None:
    name = topic()
    columns = {"payload": payloads(3), "key": keys("a", "b", "a")}
    rows = carried_out(name, "produce", columns)
    assert statuses(rows) == ["ok", "ok", "conflict"]
    assert [row["key"] for row in rows] == ["a", "b", "a"]
    assert rows[2]["id"] == rows[0]["id"]
    assert client.messages(name).get(key="b")["id"] == rows[1]["id"]
    assert statuses(carried_out(name, "produce", columns, on_conflict="keep")) == ["duplicate"] * 3


def test_every_row_that_cant_be_changed_says_why(
    carried_out: Apply, client: Client, pending: Callable[..., str]
) -> None:
    name = pending("a", "b", "moved", "gone", lookahead=0)
    client.producer(name, owner="billing").send(b"", key="theirs", at=START).result()
    client.messages(name).cancel(key="gone")
    client.messages(name).move(key="moved", at=START)
    client.producer(name).send(b"", key="held").result()
    consumer = client.consumer(name, name="worker-1", prefetch=1)
    held = next(iter(consumer))
    columns = {
        "key": keys("a", "gone", "held", "theirs", "moved", "never"),
        "version": pa.array([1, None, None, None, 1, None], pa.int64()),
    }
    expected = ["ok", "cancelled", "leased", "not_owner", "conflict", "not_found"]
    for operation, more in {
        "cancel": {},
        "move": {"due": pa.array([START] * 6, MOMENT)},
        "update": {"payload": payloads(6)},
    }.items():
        would = carried_out(name, operation, {**columns, **more}, dry_run=True)
        assert statuses(would) == expected, operation
    assert client.messages(name).get(key="a")["version"] == 1
    rows = carried_out(name, "cancel", columns)
    assert statuses(rows) == expected
    assert rows[2]["by"] == "worker-1"
    assert rows[2]["at"] > datetime.now(UTC)
    assert rows[4]["version"] == 2
    assert statuses(carried_out(name, "cancel", {"key": keys("theirs")}, owner="billing")) == ["ok"]
    held.ack()
    consumer.close()
    assert client.messages(name).count()["scheduled"] == 2


def test_a_dry_run_tells_what_a_produce_would_meet(
    carried_out: Apply, client: Client, pending: Callable[..., str]
) -> None:
    name = pending("a", "done")
    client.messages(name).cancel(key="done")
    columns = {"payload": payloads(4), "key": keys("a", "done", "new", "new")}
    columns["key"] = pa.array(["a", "done", "new", "new"])
    expected = ["conflict", "ok", "ok", "conflict"]
    assert statuses(carried_out(name, "produce", columns, dry_run=True)) == expected
    assert client.messages(name).count()["scheduled"] == 1
    assert statuses(carried_out(name, "produce", columns)) == expected


def test_moves_by_a_length_of_time(
    carried_out: Apply, client: Client, pending: Callable[..., str]
) -> None:
    name = pending("a", "b", partitions=2)
    ids = [client.messages(name).get(key=key)["id"] for key in ("a", "b")]
    would = carried_out(name, "move", {"key": keys("a", "never")}, shift="90m", dry_run=True)
    assert statuses(would) == ["ok", "not_found"]
    assert due_of(client, name, "a") == START
    rows = carried_out(name, "move", {"key": keys("a", "never")}, shift="90m")
    assert statuses(rows) == ["ok", "not_found"]
    assert due_of(client, name, "a") == START + timedelta(minutes=90)
    rows = carried_out(name, "move", {"id": pa.array(ids), "key": keys("a", "b")}, shift="-1h")
    assert statuses(rows) == ["ok", "ok"]
    assert due_of(client, name, "a") == START + timedelta(minutes=30)
    assert due_of(client, name, "b") == START - timedelta(hours=1)


def test_a_shift_of_what_was_read_is_not_made_twice(
    carried_out: Apply, client: Client, pending: Callable[..., str]
) -> None:
    name = pending("a")
    columns = {"key": keys("a"), "due": pa.array([START], MOMENT)}
    for _ in range(2):
        assert statuses(carried_out(name, "move", columns, shift="1h")) == ["ok"]
        assert due_of(client, name, "a") == START + timedelta(hours=1)
    versions = {"key": keys("a"), "version": pa.array([1])}
    assert statuses(carried_out(name, "move", versions, shift="1h")) == ["conflict"]
    assert due_of(client, name, "a") == START + timedelta(hours=1)


def test_priorities_and_payloads_change(
    carried_out: Apply, client: Client, topic: Callable[..., str]
) -> None:
    name = topic(kind="priority")
    columns = {"payload": payloads(2), "key": keys("a", "b")}
    columns |= {"priority": pa.array([5, 6], pa.int32()), "due": pa.array([START] * 2, MOMENT)}
    assert statuses(carried_out(name, "produce", columns)) == ["ok", "ok"]
    change = {"key": keys("b"), "priority": pa.array([1], pa.int32())}
    assert statuses(carried_out(name, "update", change)) == ["ok"]
    assert client.messages(name).get(key="b")["priority"] == 1
    change = {
        "key": keys("a"),
        "payload": pa.array(["ü"]),
        "content_type": pa.array(["text/plain"]),
    }
    assert statuses(carried_out(name, "update", change)) == ["ok"]
    found = client.messages(name).get(key="a")
    assert (found["payload"], found["content_type"]) == ("ü".encode(), "text/plain")


def test_entries_are_put_and_those_without_a_value_deleted(
    carried_out: Apply, client: Client, topic: Callable[..., str]
) -> None:
    name = topic(kind="kv")
    entries = {
        "key": keys("a", "a", "b", "b", "none"),
        "clustering": pa.array([None, "x", None, None, None], pa.string()),
        "value": pa.array([b"1", b"2", b"3", None, None], pa.binary()),
        "ttl": pa.array([None, timedelta(days=1), None, None, None], pa.duration("us")),
    }
    rows = carried_out(name, "put", entries)
    assert statuses(rows) == ["ok", "ok", "ok", "ok", "not_found"]
    assert [row["clustering"] for row in rows[:2]] == [None, "x"]
    kv = client.kv(name)
    assert kv.count() == 2
    found = kv.get("a", clustering="x")
    assert found is not None
    assert (found.value, found.expires is not None) == (b"2", True)
    compare = {
        "key": keys("a", "a", "b", "none"),
        "value": pa.array([b"new", b"new", b"new", None], pa.binary()),
        "version": pa.array([1, 5, 0, None], pa.int64()),
    }
    expected = ["ok", "conflict", "ok", "not_found"]
    assert statuses(carried_out(name, "put", compare, dry_run=True)) == expected
    assert kv.count() == 2
    rows = carried_out(name, "put", compare)
    assert statuses(rows) == expected


def test_a_column_names_the_topic_and_order_stays(
    carried_out: Apply, client: Client, topic: Callable[..., str]
) -> None:
    timeline, log = topic(), topic(kind="log", partitions=2)
    names = [timeline, log, timeline, log, log]
    columns = {"payload": payloads(5), "key": keys(*"abcde"), "topic": pa.array(names)}
    rows = carried_out(None, "produce", columns)
    assert [row["topic"] for row in rows] == names
    assert [row["key"] for row in rows] == list("abcde")
    assert client.messages(timeline).count()["ready"] == 2
    assert sum(each.end for each in client.log(log).describe()) == 3
    columns = {"payload": payloads(5), "partition": pa.array([1, 0, None, 1, 1], pa.int32())}
    rows = carried_out(log, "produce", columns)
    assert statuses(rows) == ["ok"] * 5
    assert [rows[place]["id"] >> 51 for place in (0, 1, 3, 4)] == [1, 0, 1, 1]


def test_what_a_topic_cant_do_is_an_error(carried_out: Apply, topic: Callable[..., str]) -> None:
    with pytest.raises(SparkFastiError, match=r"^\[FASTI.invalid_argument\] .* kind 'kv'"):
        carried_out(topic(kind="kv"), "cancel", {"key": keys("a")})
    with pytest.raises(SparkFastiError, match=r"^\[FASTI.not_found\] .*nowhere"):
        carried_out("nowhere", "cancel", {"key": keys("a")})


@pytest.mark.parametrize(
    ("shift", "length_us"),
    [("1h", 3_600_000_000), ("-90s", -90_000_000), (timedelta(seconds=-2), -2_000_000), (1.5, 1_500_000)],
)  # fmt: skip
def test_lengths_of_shifts(shift: Any, length_us: int) -> None:
    assert shift_us(shift) == length_us


def test_lengths_that_are_none() -> None:
    with pytest.raises(InvalidArgument, match="shift"):
        shift_us("soon")


@pytest.mark.timeout(300)
def test_a_dataframe_is_carried_out_once_however_often_it_is_looked_at(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Callable[..., str]
) -> None:
    name = topic()
    rows = spark.range(1000).selectExpr(
        "concat('k', id) AS key", "cast(id AS string) AS payload", "timestamp'2100-01-01' AS due"
    )
    made = fasti.spark.apply(rows, name, "produce", address=broker.address)
    for _ in range(2):
        assert made.groupBy("status").count().collect() == [("ok", 1000)]
    assert client.messages(name).count()["scheduled"] == 1000
    ids = {row["key"]: row["id"] for row in made.collect()}
    assert ids["k7"] == client.messages(name).get(key="k7")["id"]

    read = spark.read.format("fasti").options(address=broker.address, topic=name).load()
    some = read.filter("id <= 100")
    would = fasti.spark.apply(some, name, "cancel", dry_run=True, address=broker.address)
    assert would.groupBy("status").count().collect() == [("ok", 100)]
    assert client.messages(name).count()["cancelled"] == 0
    read = spark.read.format("fasti").options(address=broker.address, topic=name).load()
    done = fasti.spark.apply(read.filter("id <= 100"), name, "cancel", address=broker.address)
    assert done.groupBy("status").count().collect() == [("ok", 100)]
    assert client.messages(name).count()["cancelled"] == 100


@pytest.mark.timeout(300)
def test_errors_come_through_spark_with_their_code(
    spark: SparkSession, broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    name = topic()
    rows = spark.range(3).selectExpr("concat('k', id) AS key")
    with pytest.raises(
        SparkFastiError, match=r"^\[FASTI.invalid_argument\] operation 'move' needs"
    ):
        fasti.spark.apply(rows, name, "move", address=broker.address)
    with pytest.raises(SparkFastiError, match=r"^\[FASTI.invalid_argument\] shift is for"):
        fasti.spark.apply(rows, name, "cancel", shift="1h", address=broker.address)
    with pytest.raises(Exception, match=r"\[FASTI.not_found\] there is no topic 'nowhere'"):
        fasti.spark.apply(rows, "nowhere", "cancel", address=broker.address)
    holed = rows.selectExpr("nullif(key, 'k1') AS key")
    with pytest.raises(Exception, match=r"\[FASTI.invalid_argument\] column 'key' is null in row"):
        fasti.spark.apply(holed, name, "cancel", address=broker.address)
