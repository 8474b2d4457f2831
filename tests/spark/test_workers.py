"""Workers in Spark: what is leased is acked, nacked or given back, as the function says."""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import fasti
import fasti.spark
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import InvalidArgument, NotFound, Unavailable
from fasti.spark import workers

Topic = Callable[..., str]
RETRY = fasti.Backoff("1ms", limit="1ms")


def sent(client: Client, topic: str, count: int) -> None:
    payloads = [str(n).encode() for n in range(count)]
    assert client.producer(topic).send_batch(payloads, key=[f"k{n}" for n in range(count)]).all_ok


def counts(client: Client, topic: str) -> dict[str, int]:
    return {name: count for name, count in client.messages(topic).count().items() if count}


def test_batches_come_as_rows_and_are_acked(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(partitions=2)
    client.producer(name).send(b"\x00\x01", key="k", headers={"lang": "en"}).result()
    sent(client, name, 25)
    found: list[Any] = []

    def handle(rows: DataFrame, batch: int) -> None:
        found.extend((batch, row) for row in rows.collect())

    worker = fasti.spark.consume(spark, name, handle, address=broker.address, rows=10, once=True)
    assert not worker.isActive
    assert counts(client, name) == {"done": 26}
    rows = [row.asDict() for _, row in found]
    assert {row["payload"] for row in rows} == {b"\x00\x01"} | {b"%d" % n for n in range(25)}
    (first,) = (row for row in rows if row["key"] == "k")
    assert first["headers"] == {"lang": "en"}
    assert first["attempts"] == 1
    assert first["due"].year >= 2026
    assert {row["id"] >> 51 for row in rows} == {row["partition"] for row in rows} == {0, 1}
    assert [told["batchId"] for told in worker.recentProgress] == sorted({n for n, _ in found})
    assert sum(told["numInputRows"] for told in worker.recentProgress) == 26
    assert max(told["numInputRows"] for told in worker.recentProgress) <= 10


def test_what_a_function_returns_has_failed(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(max_attempts=1)
    sent(client, name, 100)

    def handle(rows: DataFrame, batch: int) -> DataFrame:
        number = rows.payload.cast("string").cast("int")
        bad = rows.where(number % 10 == 0)
        reason = F.when(number == 0, F.lit(None)).otherwise(F.concat(F.lit("ends in 0: "), number))
        return bad.select("id", reason.alias("reason"), "key").union(
            bad.select("id", F.lit("said twice"), "key")
        )

    worker = fasti.spark.consume(spark, name, handle, address=broker.address, once=True)
    assert counts(client, name) == {"done": 90, "dead": 10}
    dead = client.messages(name).list(state="dead", payload=True).to_pylist()
    assert {row["payload"]: row["reason"] for row in dead} == {
        b"%d" % n: f"ends in 0: {n}" if n else "failed" for n in range(0, 100, 10)
    }
    assert sum(told["numFailedRows"] for told in worker.recentProgress) == 10


def test_a_batch_that_fails_is_given_back_and_counts_no_attempt(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic()
    sent(client, name, 5)
    seen: list[list[int]] = []

    def handle(rows: DataFrame, batch: int) -> None:
        seen.append([row.attempts for row in rows.collect()])
        if len(seen) == 1:
            raise RuntimeError("the table is locked")

    worker = fasti.spark.consume(
        spark, name, handle, address=broker.address, once=True, retry_delay="1ms"
    )
    assert counts(client, name) == {"done": 5}
    assert {attempts for batch in seen for attempts in batch} == {1}
    assert "the table is locked" in worker.recentProgress[0]["error"]
    assert worker.exception() is None


def test_a_worker_that_always_fails_ends(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic()
    sent(client, name, 3)
    tries: list[int] = []

    def handle(rows: DataFrame, batch: int) -> None:
        tries.append(batch)
        raise RuntimeError("no such table")

    worker = fasti.spark.consume(
        spark, name, handle, address=broker.address, retry_delay="1ms", max_failures=2
    )
    with pytest.raises(RuntimeError, match="no such table"):
        worker.awaitTermination("120s")
    assert len(tries) == 2
    assert not worker.isActive
    assert isinstance(worker.exception(), RuntimeError)
    assert "leased" not in counts(client, name)
    assert sum(counts(client, name).values()) == 3


def test_failures_can_count_until_messages_are_dead(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(max_attempts=2, retry=RETRY)
    sent(client, name, 3)

    def handle(rows: DataFrame, batch: int) -> None:
        raise RuntimeError("bad rows" + "!" * 10_000)

    fasti.spark.consume(
        spark,
        name,
        handle,
        address=broker.address,
        once=True,
        on_error="nack",
        max_failures=None,
    )
    assert counts(client, name) == {"dead": 3}
    (reason,) = {row["reason"] for row in client.messages(name).list(state="dead").to_pylist()}
    assert reason.startswith("RuntimeError: bad rows!")


def test_groups_of_logs(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic(kind="log", partitions=2)
    client.producer(name).send_batch([b"x"] * 30, key=[str(n) for n in range(30)])
    found: set[tuple[int, int]] = set()

    def handle(rows: DataFrame, batch: int) -> None:
        found.update((row.partition, row.offset) for row in rows.collect())

    fasti.spark.consume(spark, name, handle, address=broker.address, group="g", once=True)
    ends = {each.partition: each.end for each in client.log(name).describe()}
    assert found == {(number, n) for number, end in ends.items() for n in range(end)}
    assert client.groups(name).lag("g") == 0


class Quiet:
    """Stands for a consumer and a broker: what comes, and what is left when it is asked."""

    topic, name, group = "t", "w", ""

    def __init__(self, comes: list[list[str]], left: list[int | Exception]) -> None:
        self.comes, self.left = comes, left

    def batches(self) -> Iterator[Any]:
        return iter(self.comes.pop(0))

    def asked(self, *_: Any) -> int:
        found = self.left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def all_due(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.setattr(workers, "open_count", self.asked)
        anything = cast(Any, self)
        worker = workers.Worker(anything, anything, anything, anything, anything)
        return cast(list[str], list(worker.all_due(self.batches)))


def test_once_ends_when_the_broker_has_nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Unavailable("away")
    quiet = Quiet([[], [], ["a", "b"], [], ["c"], []], [2, away, 2, 1, 0, 0])
    assert quiet.all_due(monkeypatch) == ["a", "b", "c"]
    assert (quiet.comes, quiet.left) == ([], [])


def test_once_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "_LEFT_S", -1.0)
    assert Quiet([[], ["not looked for"]], [7]).all_due(monkeypatch) == []
    assert "are due, and none came" in caplog.text


def test_what_is_left_for_a_worker(client: Client, topic: Topic) -> None:
    name, log = topic(lookahead=0), topic(kind="log")
    client.producer(name).send(b"later", delay="1h").result()
    assert workers.open_count(client, name, "") == 0
    sent(client, name, 3)
    client.producer(log).send_batch([b"x"] * 5)
    for ordered in (False, True):
        client.groups(log).create(group := f"g-{ordered}", ordered=ordered)
        assert workers.open_count(client, log, group) == 5
        with client.consumer(log, group=group, prefetch=2) as consumer:
            first = next(iter(consumer))
            while client.groups(log).describe(group).leased < 2:
                time.sleep(0.01)
            assert workers.open_count(client, log, group) == (0 if ordered else 3)
            first.ack()
        assert workers.open_count(client, log, group) <= 4
    with client.consumer(name, prefetch=1) as consumer:
        next(iter(consumer))
        assert workers.open_count(client, name, "") == 2


def test_leases_are_renewed_while_a_function_works(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    # Longer than a busy machine stands still.
    name = topic(lease="6s")
    sent(client, name, 3)
    taken: list[int] = []

    def handle(rows: DataFrame, batch: int) -> None:
        taken.extend(row.attempts for row in rows.collect())
        beats = 0
        with client.changes(topic=name, follow=True, timeout="120s") as changes:
            for table in changes:
                beats += table.column("op").to_pylist().count("renewed")
                # A lease has three beats: the fourth comes when it would have ended.
                if beats >= 4:
                    return

    fasti.spark.consume(spark, name, handle, address=broker.address, once=True)
    assert taken == [1, 1, 1]
    assert counts(client, name) == {"done": 3}


def test_stopping_waits_for_the_batch_in_hand(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic()
    sent(client, name, 30)
    begun, go_on = threading.Event(), threading.Event()
    handled: list[int] = []

    def handle(rows: DataFrame, batch: int) -> None:
        begun.set()
        assert go_on.wait(120)
        handled.append(rows.count())

    worker = fasti.spark.consume(spark, name, handle, address=broker.address, rows=10)
    assert begun.wait(120)
    assert worker.isActive
    assert not worker.awaitTermination(0)
    stopping = threading.Thread(target=worker.stop, args=("120s",))
    stopping.start()
    go_on.set()
    stopping.join(120)
    assert not worker.isActive
    assert worker.awaitTermination()
    # A second batch may have begun before it was stopped.
    assert counts(client, name)["done"] == sum(handled)
    assert "leased" not in counts(client, name)


def test_jobs_of_a_batch_are_cancelled_in_the_end(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic()
    sent(client, name, 2)
    begun = threading.Event()

    def handle(rows: DataFrame, batch: int) -> None:
        begun.set()
        # As good as for ever.
        spark.range(1 << 45).selectExpr("sum(hash(id))").collect()

    worker = fasti.spark.consume(spark, name, handle, address=broker.address, max_failures=1)
    assert begun.wait(120)
    worker.stop(timeout=0.5)
    assert not worker.isActive
    assert sum(counts(client, name).values()) == 2
    assert not {"done", "leased"} & set(counts(client, name))


def test_ctrl_c_stops_it(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name = topic()
    sent(client, name, 5)

    def waits() -> bool:
        """Whether the main thread is in the middle of waiting for the worker."""
        stack = sys._current_frames()[threading.main_thread().ident or 0]
        names = [frame.f_code.co_name for frame, _ in traceback.walk_stack(stack)]
        return names[0] == "wait" and "awaitTermination" in names

    def handle(rows: DataFrame, batch: int) -> None:
        if batch:
            return
        # Anywhere else it would end the tests.
        while not waits():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    worker = fasti.spark.consume(spark, name, handle, address=broker.address)
    with pytest.raises(KeyboardInterrupt):
        worker.awaitTermination("120s")
    assert not worker.isActive


@pytest.mark.one_shard
def test_what_is_wrong_is_told(
    spark: SparkSession, broker: BrokerProcess, client: Client, topic: Topic
) -> None:
    name, address = topic(), broker.address
    with pytest.raises(NotFound):
        fasti.spark.consume(spark, "nowhere", lambda rows, batch: None, address=address)
    with pytest.raises(InvalidArgument, match="release or nack"):
        fasti.spark.consume(
            spark,
            name,
            lambda rows, batch: None,
            address=address,
            on_error="ignore",  # type: ignore[arg-type]
        )
    sent(client, name, 2)
    for returned, told in (
        (lambda rows, batch: rows.select("key"), "a column id"),
        (lambda rows, batch: rows.select((rows.id + 100).alias("id")), "has the id 10"),
        (lambda rows, batch: rows.select("id").toPandas(), "a DataFrame of Spark"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            fasti.spark.consume(
                spark,
                name,
                returned,
                address=address,
                once=True,
                max_failures=1,
                retry_delay=0,
            )
    assert "done" not in counts(client, name)
    # As with foreachBatch.
    fasti.spark.consume(spark, name, lambda rows, batch: rows.count(), address=address, once=True)
    assert counts(client, name) == {"done": 2}
