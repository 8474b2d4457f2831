"""`df.write`: every operation on every kind of topic, once or not at all."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from tests.spark import weak_source

pytestmark = pytest.mark.timeout(300)

DUE = "timestamp'2100-01-01 00:00:00'"
DUE_US = 4_102_444_800_000_000
Write = Callable[..., None]


@pytest.fixture
def write(broker: BrokerProcess) -> Write:
    def run(df: DataFrame, mode: str = "append", **options: Any) -> None:
        df.write.format("fasti").options(address=broker.address, **options).mode(mode).save()

    return run


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    """Keys k0 to k99, in two partitions."""
    return spark.range(0, 100, 1, 2).select(
        F.concat(F.lit("k"), "id").alias("key"), F.col("id").cast("string").alias("payload")
    )


def rows_of(client: Client, topic: str) -> dict[str, dict[str, Any]]:
    """The messages by their keys; a key that is there twice would be seen."""
    rows = pa.Table.from_batches(list(client.messages(topic).scan(payload=True))).to_pylist()
    found = {row["key"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def left_behind(client: Client, topic: str) -> tuple[int, int]:
    """Rows that are staged, and stages that the broker has."""
    return client.messages(topic).count()["staged"], sum(each.stages for each in client.sinks())


def test_messages_are_scheduled_with_everything_they_have(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    write(
        numbers.select(
            "key",
            F.encode("payload", "utf-8").alias("payload"),
            F.expr(f"if(key = 'k2', null, {DUE})").alias("due"),
            F.expr("if(key = 'k2', interval '1' day, null)").alias("delay"),
            F.expr("if(key = 'k3', null, map('lang', 'en'))").alias("headers"),
            F.lit("text/plain").alias("content_type"),
            F.expr(f"if(key = 'k7', {DUE} + interval '1' hour, null)").alias("expires"),
        ),
        topic=name,
        owner="billing",
    )
    found = rows_of(client, name)
    assert set(found) == {f"k{number}" for number in range(100)}
    assert {row["payload"] for row in found.values()} == {b"%d" % n for n in range(100)}
    one = found["k7"]
    assert (one["due_us"], one["owner"], one["state"]) == (DUE_US, "billing", "scheduled")
    assert (dict(one["headers"]), one["content_type"]) == ({"lang": "en"}, "text/plain")
    assert not found["k3"]["headers"]
    assert (one["expires_us"], found["k3"]["expires_us"]) == (DUE_US + 3_600_000_000, None)
    day_us = found["k2"]["due_us"] - time.time_ns() // 1000
    assert 23 * 3_600_000_000 < day_us <= 24 * 3_600_000_000
    assert {row["partition"] for row in found.values()} == {0, 1}
    assert left_behind(client, name)[0] == 0


def test_priorities_and_logs(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    urgent, log = topic(kind="priority"), topic(kind="log", partitions=2)
    write(numbers.withColumn("priority", F.expr("cast(payload as bigint)")), topic=urgent)
    assert {row["priority"] for row in rows_of(client, urgent).values()} == set(range(100))
    write(numbers, topic=log)
    with client.reader(log) as reader:
        read = {message.key: bytes(message.payload) for message in reader}
    assert read == {f"k{number}": b"%d" % number for number in range(100)}
    ends = [each.end for each in client.log(log).describe()]
    assert sum(ends) == 100
    write(numbers.select("payload", F.lit(1).alias("partition")), topic=log)
    assert [each.end for each in client.log(log).describe()] == [ends[0], ends[1] + 100]


def test_changes_by_key_and_by_what_was_read(
    spark: SparkSession,
    broker: BrokerProcess,
    write: Write,
    numbers: DataFrame,
    client: Client,
    topic: Callable[..., str],
) -> None:
    name = topic(partitions=2)
    write(numbers.withColumn("due", F.expr(DUE)), topic=name)
    some = numbers.filter("cast(payload AS int) < 10")
    write(some.select("key"), topic=name, operation="cancel")
    later = some.select(F.expr("concat('k', cast(payload AS int) + 10) AS key"))
    write(later.withColumn("due", F.expr(f"{DUE} + interval 1 hour")), topic=name, operation="move")
    client.messages(name).move(key="k25", due=DUE_US + 1)
    read = spark.read.format("fasti").options(address=broker.address, topic=name).load()
    twenties = read.filter("key BETWEEN 'k20' AND 'k29'").withColumn("payload", F.lit("new"))
    # Meanwhile somebody changes one of them: its version is another one then.
    client.messages(name).move(key="k24", due=DUE_US + 1)
    write(
        twenties.withColumn("version", F.expr("if(key = 'k24', 1, version)")),
        topic=name,
        operation="update",
    )
    found = rows_of(client, name)
    assert len(found) == 90
    assert {found[f"k{number}"]["due_us"] for number in range(10, 20)} == {DUE_US + 3_600_000_000}
    updated = {key for key, row in found.items() if row["payload"] == b"new"}
    assert updated == {f"k{number}" for number in range(20, 30)} - {"k24"}


def test_entries_are_put_and_deleted(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    name = topic(kind="kv")
    entries = numbers.select("key", F.col("payload").alias("value"))
    write(entries, topic=name, operation="put")
    write(
        entries.limit(10).select("key", F.lit(None).cast("string").alias("value")),
        topic=name,
        operation="put",
    )
    kv = client.kv(name)
    assert kv.count() == 90
    found = kv.get("k42")
    assert found is not None
    assert found.value == b"42"


def test_a_column_sends_rows_to_several_topics(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    even, odd = topic(), topic()
    chosen = F.expr(f"if(cast(payload AS int) % 2 = 0, '{even}', '{odd}')")
    write(numbers.withColumn("topic", chosen))
    assert set(rows_of(client, even)) == {f"k{number}" for number in range(0, 100, 2)}
    assert set(rows_of(client, odd)) == {f"k{number}" for number in range(1, 100, 2)}
    with pytest.raises(Exception, match=r"\[FASTI.not_found\] there is no topic 'nowhere'"):
        write(numbers.withColumn("topic", F.lit("nowhere")))


def test_only_append_is_taken(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    name = topic()
    with pytest.raises(Exception, match=r"\[FASTI.invalid_argument\] .*mode\('append'\)"):
        write(numbers, "overwrite", topic=name)
    for mode in ("error", "ignore"):
        with pytest.raises(Exception, match='Please use either the "Append"'):
            write(numbers, mode, topic=name)
    assert client.messages(name).count()["ready"] == 0


def test_what_is_wrong_is_told_before_tasks_run(
    write: Write, numbers: DataFrame, topic: Callable[..., str]
) -> None:
    name = topic()
    wrong: list[tuple[DataFrame, dict[str, str], str]] = [
        (numbers.withColumn("due", F.lit("soon")), {"topic": name}, "'due' must be timestamp, not string"),
        (numbers, {"topic": "nowhere"}, r"\[FASTI.not_found\] there is no topic 'nowhere'"),
        (numbers, {"topic": topic(kind="kv")}, "of kind 'kv': operation 'produce' is not for it"),
        (numbers, {"topic": name, "opration": "produce"}, "did you mean 'operation'"),
        (numbers, {}, "option 'topic' is missing"),
    ]  # fmt: skip
    for rows, options, told in wrong:
        with pytest.raises(Exception, match=told):
            write(rows, **options)


def test_a_row_that_is_wrong_fails_all_and_leaves_nothing(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    name = topic()
    holed = numbers.withColumn("payload", F.expr("if(key = 'k77', null, payload)"))
    # One task: another could still be staging while this one's failure ends the job.
    holed = holed.coalesce(1)
    with pytest.raises(
        Exception, match=r"\[FASTI.invalid_argument\] column 'payload' is null in row 77"
    ):
        write(holed, topic=name)
    counts = client.messages(name).count()
    assert (counts["ready"], counts["staged"]) == (0, 0)


def test_taken_keys_fail_all_or_are_left_out(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    name = topic()
    client.producer(name).send_batch([b"mine"] * 2, key=["k3", "k50"], due=DUE_US)
    due = numbers.withColumn("due", F.expr(DUE))
    with pytest.raises(Exception, match=r"\[FASTI.already_exists\]") as refused:
        write(due, topic=name)
    assert "k3" in str(refused.value)
    assert "k50" in str(refused.value)
    assert len(rows_of(client, name)) == 2
    assert client.messages(name).count()["staged"] == 0
    write(due, topic=name, onConflict="skip")
    found = rows_of(client, name)
    assert len(found) == 100
    assert {key for key, row in found.items() if row["payload"] == b"mine"} == {"k3", "k50"}


def test_a_write_that_is_run_again_changes_nothing(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    name = topic()
    new, none = numbers.select("payload"), numbers.select("payload").filter("payload = ''")
    # A batch without rows has happened, too, and doesn't happen again with some.
    for rows, version, expected in (
        (none, 6, 0),
        (new, 6, 0),
        (new, 7, 100),
        (new, 3, 100),
        (new, 8, 200),
    ):
        write(rows, topic=name, txnAppId=f"app-{name}", txnVersion=version)
        assert client.messages(name).count()["ready"] == expected, version
    assert client.messages(name).count()["staged"] == 0
    assert client.sink(name, f"app-{name}").last_batch() == 8


def test_writes_without_a_name_are_not_remembered(
    write: Write, numbers: DataFrame, client: Client, topic: Callable[..., str]
) -> None:
    name = topic()
    before = {each.sink for each in client.sinks()}
    write(numbers.select("payload"), topic=name)
    write(numbers.select("payload"), topic=name)
    assert client.messages(name).count()["ready"] == 200
    # Those of other tests may be forgotten meanwhile.
    assert {each.sink for each in client.sinks()} <= before


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Tasks get their rows in several batches."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "20")
    yield
    spark.conf.set(name, str(before))


@pytest.mark.usefixtures("small_batches")
def test_what_a_dead_task_has_staged_is_dropped_with_time(
    spark: SparkSession,
    broker: BrokerProcess,
    numbers: DataFrame,
    client: Client,
    topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    name = topic()
    weak_source.register(spark)
    weak = {"at": "write", "do": "exit", "once": str(tmp_path / "once")}
    dying = numbers.write.format("fasti-weak").option("weak", json.dumps(weak))
    with pytest.raises(Exception, match="exited unexpectedly"):
        dying.options(address=broker.address, topic=name).mode("append").save()
    # A stage that is open now, and one that a task may still open while the job ends, are too old.
    client.change_topic(name, stage_age="1s")
    while client.messages(name).count()["staged"]:
        time.sleep(0.05)
    assert client.messages(name).count()["ready"] == 0
