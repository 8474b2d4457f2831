"""Bronze and silver of a real broker: equal to its feed, row by row."""

import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import Gone, InvalidArgument
from fasti.pipeline.bronze import SMALL, Writers, part_of, shards, transaction
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Progress, RunResult, Workflow, run
from fasti.pipeline.stages import BRONZE, SILVER
from fasti.spark.views import View
from tests.spark.lives import Row
from tests.spark.test_pipeline_silver import assert_equal

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose whole feed these tests know."""
    with BrokerProcess(tmp_path_factory.mktemp("queue")) as process:
        yield process


@pytest.fixture(scope="module")
def teller(queue: BrokerProcess) -> Iterator[Client]:
    with fasti.connect(queue.address, owner="me") as client:
        tell_stories(client)
        yield client


def tell_stories(client: Client) -> None:
    """A bit of everything that can happen."""
    client.create_topic("mail", partitions=2, retry=fasti.Backoff("10ms"), max_attempts=2)
    client.create_topic("a/b c%", kind="priority")
    client.create_topic("events", kind="log")
    client.create_topic("profiles", kind="kv")
    client.create_topic("gone")
    producer, mail = client.producer("mail"), client.messages("mail")
    for number in range(40):
        producer.send(b"x", key=f"k{number}", delay="0s" if number % 2 else "1h")
    producer.flush()
    mail.move(key=["k0", "k2"], delay="2h")
    mail.update(key=["k2", "k4"], payload=b"y")
    mail.cancel(key=["k4", "k6"])
    producer.send(b"z", key="k8", delay="3h", on_conflict="replace").result()
    with client.consumer("mail", name="w1", timeout="60s") as consumer:
        for number, message in enumerate(consumer):
            what = ("ack", "release", "nack", "reject")[number % 4]
            getattr(message, what)(*(["bad"] if what in ("nack", "reject") else []))
            if number == 30:
                break
    dead = mail.dead().column("id").to_pylist()
    mail.redrive(id=dead[:2])
    mail.purge(id=dead[2:3])
    ranked = client.producer("a/b c%")
    for number in range(5):
        ranked.send(b"p", priority=number)
    ranked.flush()
    client.producer("gone").send(b"x", delay="1h").result()
    client.delete_topic("gone")
    client.create_topic("gone")
    client.producer("gone").send(b"x", delay="1h").result()
    client.producer("events").send(b"e").result()
    with client.consumer("events", group="g", name="w", timeout="60s") as consumer:
        next(iter(consumer)).ack()
    profiles = client.kv("profiles")
    profiles.put("one", b"1")
    profiles.put("one", b"2")


def feed(client: Client) -> list[Row]:
    """The truth, as the SDK reads it, in bronze's words."""
    table = pa.concat_tables(list(client.changes()))
    view = View("changes", None, payload=False)
    shard = client.changes().position.shard
    return [
        row
        for batch in table.combine_chunks().to_batches()
        for row in view.made_of(batch, shard=shard).to_pylist()
    ]


def in_lake(lake: Lake) -> list[Row]:
    names = View("changes", None, payload=False).schema.names
    rows: list[Row] = lake.bronze.arrow(names).to_pylist()
    return sorted(rows, key=lambda row: (row["position"], row["row"]))


def ran(lake: Lake, queue: BrokerProcess, spark: SparkSession, **settings: Any) -> RunResult:
    stages = [BRONZE, SILVER]
    return run(Workflow(lake, stages, queue.address, **settings), spark)


@pytest.mark.one_shard
def test_it_has_the_whole_feed_and_silver_follows(
    tmp_path: Path, queue: BrokerProcess, teller: Client, spark: SparkSession
) -> None:
    lake = Lake(tmp_path)
    done = ran(lake, queue, spark)
    truth = feed(teller)
    assert in_lake(lake) == truth
    assert done.rows == {"bronze": len(truth), "silver": len(truth)}
    assert_equal(lake.silver(spark), messages_alone(truth))
    states = {row.state for row in lake.silver(spark).select("state").distinct().collect()}
    assert states >= {"pending", "done", "cancelled", "dead", "purged"}

    # Again: nothing. Then what is new, in small steps.
    assert ran(lake, queue, spark).rows == {"bronze": 0, "silver": 0}
    teller.producer("mail").send(b"new", delay="1h").result()
    teller.messages("mail").cancel(key="k10")
    assert ran(lake, queue, spark, options={"step_rows": 1}).rows["bronze"] == 2
    truth = feed(teller)
    assert in_lake(lake) == truth
    assert_equal(lake.silver(spark), messages_alone(truth))


def messages_alone(rows: list[Row]) -> list[Row]:
    """Without logs and entries, which silver leaves out."""
    return [row for row in rows if row["topic"] not in ("events", "profiles")]


def test_payloads_if_wanted(
    tmp_path: Path, queue: BrokerProcess, teller: Client, spark: SparkSession
) -> None:
    lake = Lake(tmp_path)
    pipeline = Workflow(lake, [BRONZE], queue.address, options={"payload": True, "tasks": 3})
    run(pipeline, spark)
    payloads = set(lake.bronze.arrow(["payload"]).column("payload").to_pylist())
    assert {b"x", b"y", b"z", None} <= payloads
    teller.producer("mail").send(b"more", delay="1h").result()
    with pytest.raises(InvalidArgument, match="payload"):
        run(Workflow(lake, [BRONZE], queue.address), spark)


@pytest.mark.one_shard
def test_progress_and_an_end_between_steps(
    tmp_path: Path, queue: BrokerProcess, teller: Client, spark: SparkSession
) -> None:
    lake, stop = Lake(tmp_path), threading.Event()
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.done:
            stop.set()

    pipeline = Workflow(lake, [BRONZE, SILVER], queue.address, options={"step_rows": 20})
    done = run(pipeline, spark, once=False, interval=60, progress=watch, stop=stop)
    assert done.stopped
    assert done.rounds == 1
    assert 0 < done.rows["bronze"] < len(feed(teller))
    assert done.rows["silver"] == 0
    assert [each.stage for each in seen] == ["bronze"] * len(seen)
    assert (seen[0].done, seen[-1].ended, seen[-1].seconds > 0) == (0, True, True)
    assert 0 < seen[1].done <= (seen[1].total or 0)
    with pytest.raises(InvalidArgument, match="interval"):
        run(pipeline, spark, once=True, interval=1)


@pytest.mark.one_shard
def test_another_broker_under_the_same_address_is_refused(
    tmp_path: Path, queue: BrokerProcess, teller: Client, spark: SparkSession
) -> None:
    lake = Lake(tmp_path)
    (tmp_path / "shards").write_text("0.00000000000000bb\n")
    with pytest.raises(Gone, match=r"follows shard 0\.00000000000000bb.*another directory"):
        ran(lake, queue, spark)
    assert not lake.bronze.exists()
    ran(lake, queue, spark, on_gap="skip")
    assert in_lake(lake) == feed(teller)
    assert len(shards(lake)) == 2


@pytest.mark.one_shard
def test_a_feed_that_begins_later_by_now(tmp_path: Path, spark: SparkSession) -> None:
    settings = {"segment_size": "64KiB", "feed_size": "0B", "checkpoint_size": "64KiB"}
    with (
        BrokerProcess(tmp_path / "data", settings=settings) as process,
        fasti.connect(process.address) as client,
    ):
        lake = Lake(tmp_path / "lake")
        client.create_topic("t")
        pipeline = Workflow(lake, [BRONZE], process.address)
        run(pipeline, spark)
        before = lake.bronze.position(transaction(shards(lake)[0]))
        for _ in range(20):
            client.producer("t").send_batch([bytes(1000)] * 30, delay="1h")
        client.checkpoint()
        assert client.feed().first.frame > (before or 0)
        with pytest.raises(Gone, match=r"feed_age.*on_gap='skip'.*longer feed_age"):
            run(pipeline, spark)
        run(Workflow(lake, [BRONZE], process.address, on_gap="skip"), spark)
        expected = {row["position"] for row in feed(client)}
        assert {row["position"] for row in in_lake(lake)} >= expected


def batch_of(topics: list[str | None], at: datetime) -> pa.RecordBatch:
    schema = View("changes", None, payload=False).schema
    rows = [{"position": n, "row": 0, "at": at, "topic": t} for n, t in enumerate(topics)]
    return pa.RecordBatch.from_pylist(rows, schema)


def test_many_topics_make_few_files(tmp_path: Path) -> None:
    rng = random.Random(1)
    small = [f"topic {n}" for n in range(3_000)]
    large = ["large"] * 20_000 + ["a/b"] * 18_000
    at = datetime(2026, 11, 16, 12, tzinfo=UTC)
    with Writers(tmp_path, "x") as writers:
        for day in range(3):
            topics: list[str | None] = [*small, *large, None]
            rng.shuffle(topics)
            writers.add(batch_of(topics, at + timedelta(days=day)))
    assert len(writers.paths) == 9
    found = [pq.read_table(tmp_path / path, partitioning=None) for path in writers.paths]
    assert sum(each.num_rows for each in found) == 3 * 41_001
    parts = {path.split("/")[1].removeprefix("part=") for path in writers.paths}
    assert parts == {"large", part_of("a/b"), SMALL}
    for path, table in zip(writers.paths, found, strict=True):
        days = {each.date().isoformat() for each in table.column("at").to_pylist()}
        assert path.startswith(f"day={days.pop()}/")
        assert not days
        positions = table.column("position").to_pylist()
        assert positions == sorted(positions)


def test_names_of_parts_never_meet() -> None:
    assert part_of("mail") == "mail"
    odd = ["a/b", "a-b", "a b", "..", "~small", "_x", "ü", "x" * 300, "x" * 301]
    parts = {part_of(each) for each in odd}
    assert len(parts) == len(odd)
    assert SMALL not in parts
    assert all("/" not in each and len(each) < 150 for each in parts)
