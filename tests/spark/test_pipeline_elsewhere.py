"""The pipeline on a cluster of two workers and through Spark Connect: the same tables as of a run here."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.cli.exits import ERROR_EXITS
from fasti.client.client import Client
from fasti.pipeline import runner, shared
from fasti.pipeline.lake import Lake
from fasti.pipeline.stages import pipeline
from fasti.pipeline.state import LakeState
from tests.spark.clusters import ALL_WORKERS, INTERPRETED, connect, standalone
from tests.spark.plain_delta import as_the_broker_says, assert_tables_are_true, states
from tests.spark.test_pipeline_bronze import feed, in_lake
from tests.spark.test_pipeline_silver import assert_equal
from tests.spark.test_pipeline_whole import consume, produce, rows_of

pytestmark = pytest.mark.timeout(900)

SMALL = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    **ALL_WORKERS,
}
GOLD = ("lateness", "throughput", "consumers", "retries", "attempts", "backlog")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Client]]:
    with BrokerProcess(tmp_path / "data") as process, fasti.connect(process.address) as client:
        yield process, client


def once(
    lake: Path | str, broker: BrokerProcess, master: str, cwd: Path, **conf: str
) -> subprocess.CompletedProcess[str]:
    """The command, as a user gives it."""
    command = [sys.executable, "-m", "fasti", "pipeline", "once", "--json", "--lake", str(lake)]
    command += ["--address", broker.address, "--master", master]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def worked(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-8000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def in_two_rounds(
    queue: tuple[BrokerProcess, Client], spark: SparkSession, cwd: Path, master: str, **conf: str
) -> None:
    """Traffic, once, more traffic and the end of a topic, once; then against a run on this machine."""
    broker, client = queue
    produce(client, 2_000)
    client.create_topic("gone")
    client.create_topic("events", kind="log")
    client.producer("gone").send_batch([b"g"] * 10, delay="1h")
    client.producer("events").send_batch([b"e"] * 10)
    lake = Lake(cwd / "lake")
    first = worked(once(lake.root, broker, master, cwd, **conf))
    assert first["rows"]["bronze"] == first["rows"]["silver"] > 2_000
    consume(client, 0.8)
    client.delete_topic("gone")
    second = worked(once(lake.root, broker, master, cwd, **conf))
    assert second["rows"]["bronze"] == second["rows"]["silver"] > 1_000
    assert (second["findings"], second["lost"], second["early"]) == (0, 0, 0)
    assert set(LakeState.of(lake).compared) == {"mail", "bills"}
    # Nothing that was only there for a look.
    assert not (lake.root / shared._FOLDER).exists()
    truth = feed(client)
    assert in_lake(lake) == truth
    # Rows of logs are no messages.
    assert_equal(lake.silver(spark), [row for row in truth if row["topic"] != "events"])
    assert_tables_are_true(lake)
    counted = states(lake)
    assert counted.pop(("gone", "purged")) == 10
    told = as_the_broker_says(client)
    assert told.pop(("events", "pending")) == 10
    assert counted == told
    here = Lake(cwd / "here")
    runner.run(pipeline(here, broker.address, audit=False), spark)
    for name in GOLD:
        assert rows_of(lake, name) == rows_of(here, name)
        assert rows_of(lake, name)


@pytest.mark.long
@pytest.mark.spark
def test_on_a_cluster_of_two_workers(
    queue: tuple[BrokerProcess, Client], spark: SparkSession, tmp_path: Path
) -> None:
    with standalone(tmp_path / "workers") as master:
        in_two_rounds(queue, spark, tmp_path, master, **SMALL, **INTERPRETED)


@pytest.mark.long
@pytest.mark.spark
def test_through_connect(
    queue: tuple[BrokerProcess, Client], spark: SparkSession, tmp_path: Path
) -> None:
    with connect("local[2]") as master:
        in_two_rounds(queue, spark, tmp_path, master, **INTERPRETED)
        # A directory that is another one in each process: that in which it was started.
        alone = "/proc/self/cwd/alone"
        refused = once(alone, queue[0], master, tmp_path)
    assert refused.returncode == ERROR_EXITS["invalid_argument"]
    last = refused.stderr.splitlines()[-1]
    assert f"can't work on the lake {alone} (No such file or directory" in last
    # It was told before anything else was done.
    assert {each.name for each in (tmp_path / "alone").iterdir()} == {".lock", "logs"}


@pytest.mark.long
def test_through_connect_on_a_cluster(
    queue: tuple[BrokerProcess, Client], spark: SparkSession, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(standalone(tmp_path / "workers"))
        address = stack.enter_context(connect(master))
        in_two_rounds(queue, spark, tmp_path, address, **INTERPRETED)
