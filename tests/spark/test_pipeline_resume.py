"""Killed anywhere, the pipeline goes on where it was: no row is lost and none comes twice."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.pipeline import silver_stage
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Workflow, run
from fasti.pipeline.stages import BRONZE, SILVER
from fasti.pipeline.tables import Table
from tests.spark.killed_pipeline import PLACES, break_at
from tests.spark.plain_delta import (
    as_the_broker_says,
    assert_every_version_is_true,
    assert_tables_are_true,
    states,
)
from tests.spark.test_pipeline_bronze import feed, in_lake
from tests.spark.test_pipeline_silver import assert_equal

pytestmark = pytest.mark.timeout(900)
STEP = 60


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture
def client(queue: BrokerProcess) -> Iterator[Client]:
    with fasti.connect(queue.address) as connected:
        connected.create_topic("mail", partitions=2)
        yield connected


def happen(client: Client, round: int) -> None:
    """Some messages more; some that are there already go on."""
    producer, mail = client.producer("mail"), client.messages("mail")
    for number in range(10):
        producer.send(b"x", key=f"{round}-{number}", delay="0s" if number % 2 else "1h")
    producer.flush()
    mail.move(key=f"{round}-0", delay="2h")
    if round:
        mail.cancel(key=f"{round - 1}-2")
    # Closed before we go on: what it held and didn't start goes back then.
    with client.consumer("mail", name=f"w{round}", timeout="60s") as consumer:
        for taken, message in enumerate(consumer, 1):
            message.ack() if taken % 2 else message.release(delay="1ms")
            if taken == 4:
                break


def assert_whole(lake: Lake, client: Client, spark: SparkSession) -> None:
    """Tables equal to the truth, row by row, and nothing lies about."""
    truth = feed(client)
    assert in_lake(lake) == truth
    assert_equal(lake.silver(spark), truth)
    assert_tables_are_true(lake)
    assert_every_version_is_true(lake)
    assert states(lake) == as_the_broker_says(client)
    for table in (lake.bronze, lake.messages, lake.topics):
        assert not list((table.path / "_staged").glob("*"))
    counted = {table.path / each.path for table in (lake.bronze,) for each in table.files()}
    assert set(lake.bronze.path.rglob("*.parquet")) - set(_log(lake.bronze)) == counted


def _log(table: Table) -> Iterator[Path]:
    return (table.path / "_delta_log").rglob("*.parquet")


class Killed(BaseException):
    """As if the process was gone: nobody catches it, nothing is tidied up."""


@pytest.mark.one_shard
@pytest.mark.parametrize("few", [False, True])
def test_an_end_at_every_place_one_after_the_other(
    tmp_path: Path,
    few: bool,
    client: Client,
    queue: BrokerProcess,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end() -> None:
        raise Killed

    if not few:
        # Open messages stay in their files until something happens to them.
        monkeypatch.setattr(silver_stage, "divide", lambda files, _: ([], files))

    places = [(table, place) for table in ("transitions", "topics", "messages") for place in PLACES]
    for round, (table, place) in enumerate(places):
        happen(client, round)
        # A process of its own knows nothing of the one before.
        lake = Lake(tmp_path / "lake")
        with monkeypatch.context() as patched:
            for name in ("staging", "adopt", "replace"):
                patched.setattr(Table, name, getattr(Table, name))
            if table == "topics":
                client.create_topic(f"another-{round}")
            break_at(table, place, end)
            with pytest.raises(Killed):
                run(Workflow(lake, [BRONZE, SILVER], queue.address), spark)
    lake = Lake(tmp_path / "lake")
    run(Workflow(lake, [BRONZE, SILVER], queue.address), spark)
    assert_whole(lake, client, spark)


@pytest.mark.long
@pytest.mark.parametrize("table", ["transitions", "messages"])
@pytest.mark.parametrize("place", PLACES)
def test_a_driver_is_killed(
    table: str,
    place: str,
    tmp_path: Path,
    client: Client,
    queue: BrokerProcess,
    spark: SparkSession,
) -> None:
    lake = Lake(tmp_path / "lake")
    happen(client, 0)
    told = {
        "lake": str(lake.root),
        "address": queue.address,
        "table": table,
        "place": place,
        "step_rows": str(STEP),
    }
    program = [sys.executable, "-m", "tests.spark.killed_pipeline", json.dumps(told)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(program, cwd=root, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    happen(client, 1)
    run(Workflow(lake, [BRONZE, SILVER], queue.address), spark)
    assert_whole(lake, client, spark)


@pytest.mark.one_shard
def test_a_signal_ends_it_between_two_steps(
    tmp_path: Path, client: Client, queue: BrokerProcess, spark: SparkSession
) -> None:
    lake = Lake(tmp_path / "lake")
    for round in range(3):
        happen(client, round)
    pipeline = Workflow(lake, [BRONZE], queue.address, options={"step_rows": 10})
    before = signal.getsignal(signal.SIGTERM)
    # One is enough: a second one would end this process.
    waiting = [signal.SIGTERM]
    done = run(
        pipeline,
        spark,
        once=False,
        interval=3600,
        progress=lambda told: signal.raise_signal(waiting.pop()) if told.done and waiting else None,
    )
    assert done.stopped
    assert signal.getsignal(signal.SIGTERM) is before
    assert 0 < len(in_lake(lake)) < len(feed(client))
    assert in_lake(lake) == feed(client)[: len(in_lake(lake))]
    run(Workflow(lake, [BRONZE, SILVER], queue.address), spark)
    assert_whole(lake, client, spark)
