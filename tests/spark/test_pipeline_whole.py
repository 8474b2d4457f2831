"""From a busy broker to gold: the audit finds nothing, and agrees with the broker's counts exactly."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.pipeline import audit_stage, runner
from fasti.pipeline.figures import figures
from fasti.pipeline.figures_seconds import ROWS_MAX
from fasti.pipeline.lake import Lake
from fasti.pipeline.report import write
from fasti.pipeline.stages import pipeline
from fasti.pipeline.state import LakeState
from tests.spark.plain_delta import as_the_broker_says, assert_tables_are_true, states

BATCH = 50_000
FAR_US = 3_600_000_000


def produce(client: Client, count: int) -> None:
    """Two topics: most of it is due, a part in the next hours, some of that moved or cancelled."""
    client.create_topic("mail", partitions=4, max_attempts=2)
    client.create_topic("bills", kind="priority")
    now_us = time.time_ns() // 1000
    with client.producer("mail") as mail, client.producer("bills") as bills:
        for begin in range(0, count, BATCH):
            rows = min(BATCH, count - begin)
            due = np.full(rows, now_us)
            due[::10] += FAR_US + np.arange(len(due[::10])) * 1_000
            assert mail.send_batch([b"m" * 20] * rows, due=due).all_ok
            if not begin:
                assert bills.send_batch([b"b"] * (rows // 10)).all_ok
    messages = client.messages("mail")
    later = messages.list(due_from=now_us + FAR_US // 2, limit=count // 50)
    ids = later.column("id").to_numpy()
    assert messages.cancel(id=ids[::2]).all_ok
    assert messages.move(id=ids[1::2], delay="3h").all_ok


def consume(client: Client, share: float) -> None:
    """Acks most of what is due, nacks some (which are dead after two), and leaves the rest."""
    left = int(client.topic("mail").counts["ready"] * share)
    with client.consumer("mail", name="anna", prefetch=10_000, timeout="60s") as anna:
        for batch in anna.batches(10_000, wait="20ms"):
            bad = batch.table.column("id").to_numpy() % 50 == 0
            batch.nack(bad, "no <such> mailbox")
            batch.ack(~bad)
            left -= len(bad)
            if left <= 0:
                break
    with client.consumer("bills", name="bert", timeout="60s") as bert:
        for message in bert:
            message.ack()
            if message.id > 20:
                break


@contextmanager
def traffic(address: str, rounds: int) -> Iterator[None]:
    """Goes on producing and consuming while the pipeline runs.

    Not for ever: a pipeline that is slow would have the more to do.
    """
    begun, stop = threading.Event(), threading.Event()

    def go_on() -> None:
        with fasti.connect(address) as client:
            producer = client.producer("mail")
            consumer = client.consumer("mail", name="carl", timeout="50ms")
            for _ in range(rounds):
                if stop.wait(0.02):
                    break
                producer.send_batch([b"t"] * 20)
                for _, message in zip(range(10), consumer, strict=False):
                    message.ack()
                    begun.set()
            consumer.close()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        assert begun.wait(120)
        yield
    finally:
        stop.set()
        thread.join()


def through_the_pipeline(spark: SparkSession, tmp_path: Path, count: int) -> None:
    settings = {"feed_size": "20GiB"}
    with (
        BrokerProcess(tmp_path / "data", settings=settings) as broker,
        fasti.connect(broker.address) as client,
    ):
        produce(client, count)
        consume(client, 0.8)
        lake = Lake(tmp_path / "lake")
        with traffic(broker.address, rounds=count // 20):
            runner.run(pipeline(lake, broker.address), spark)
        state = LakeState.of(lake)
        assert lake.gold("audit").rows() == 0, lake.gold("audit").arrow().to_pylist()[:5]
        assert set(state.compared) == {"mail", "bills"}
        # And when it is quiet, every state of every message, in the second, incremental round.
        runner.run(pipeline(lake, broker.address), spark)
        assert lake.gold("audit").rows() == 0, lake.gold("audit").arrow().to_pylist()[:5]
        assert LakeState.of(lake).compared["mail"] > state.compared["mail"]
        told = as_the_broker_says(client)
        assert states(lake) == told
        assert_tables_are_true(lake)
        figures_agree(lake, told)
        differences_are_found(lake, spark, broker.address)


def figures_agree(lake: Lake, told: dict[tuple[str, str], int]) -> None:
    """Gold adds up to what the broker counts."""
    found = figures(lake)
    for state, name in (("done", "messages_out"), ("cancelled", "cancelled"), ("dead", "dead")):
        assert found.totals[name] == sum(n for (_, s), n in told.items() if s == state)
    assert found.totals["messages_in"] == sum(told.values())
    assert found.pending == sum(n for (_, s), n in told.items() if s == "pending")
    # A day may begin in the middle of it.
    rows = lake.gold("lateness").arrow().sort_by("start").to_pylist()
    days = [row["count"] for row in rows if (row["topic"], row["grain"]) == ("*", "day")]
    assert found.today is not None
    assert sum(days) == found.totals["messages_out"]
    assert found.today[1]["count"] == (sum(days) if found.grain == "second" else days[-1])
    assert (found.early, found.lost) == (0, 0)
    small = lake.bronze.rows() + lake.messages.rows() <= ROWS_MAX
    assert (found.grain == "second") is small
    if small:
        # What a young lake's charts show is read from bronze and silver, and adds up to gold.
        for name in ("messages_in", "messages_out", "failed", "dead", "cancelled"):
            assert sum(row[name] for _, row in found.throughput) == found.totals[name]
        late = lake.gold("lateness").arrow().filter(pc.field("grain") == "day").to_pylist()
        days = [row for row in late if row["topic"] == "*"]
        assert len(days) > 1 or found.today[1] == {name: days[0][name] for name in found.today[1]}
    reasons = {row["reason"] for row in found.reasons if row["op"] in ("nacked", "exhausted")}
    assert reasons == {"no <such> mailbox"}
    assert {row["consumer"] for row in found.consumers} == {"anna", "bert", "carl"}
    assert sum(row["acked"] for row in found.consumers) == found.totals["messages_out"]
    path, _ = write(lake)
    assert "no &lt;such&gt; mailbox" in path.read_text()


def differences_are_found(lake: Lake, spark: SparkSession, address: str) -> None:
    """One message more or less is told."""
    counted = audit_stage.BrokerCounts()
    made = pipeline(lake, address)
    run = runner.StageRun(made, spark, True, threading.Event(), None)
    counted.update(run)
    assert audit_stage.compare(run, counted.counts)[0] == []
    mail = next(each for each in counted.counts if each.topic == "mail")
    mail.states["done"] += 1
    found, _ = audit_stage.compare(run, counted.counts)
    assert [(row[0], row[3]) for row in found] == [("mail", "count")]
    assert f"counts {mail.states['done']} done" in found[0][4]


@pytest.mark.long
@pytest.mark.one_shard
@pytest.mark.timeout(900)
def test_some_thousand_messages(spark: SparkSession, tmp_path: Path) -> None:
    through_the_pipeline(spark, tmp_path, 20_000)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_million_messages(spark: SparkSession, tmp_path: Path) -> None:
    through_the_pipeline(spark, tmp_path, 10_000_000)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_days_that_are_computed_anew_are_as_if_all_were(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A lake that grew in rounds has the same gold as one that was made at once."""
    with (
        BrokerProcess(tmp_path / "data") as broker,
        fasti.connect(broker.address) as client,
    ):
        produce(client, 2_000)
        grown, fresh = Lake(tmp_path / "grown"), Lake(tmp_path / "fresh")
        runner.run(pipeline(grown, broker.address, audit=False), spark)
        consume(client, 0.5)
        runner.run(pipeline(grown, broker.address, audit=False), spark)
        assert_tables_are_true(grown)
        runner.run(pipeline(fresh, broker.address, audit=False), spark)
    for name in ("lateness", "throughput", "consumers", "retries", "attempts", "backlog"):
        assert rows_of(grown, name) == rows_of(fresh, name)
        assert rows_of(grown, name)


def rows_of(lake: Lake, name: str) -> list[Any]:
    table = lake.gold(name).arrow()
    # What depends on when it was asked.
    changing = ("as_of", "overdue", "queued", "day")
    left_out = [column for column in changing if column in table.column_names]
    return sorted(map(str, table.drop_columns(left_out).to_pylist()))
