"""A cluster of two workers and Spark Connect, for real: the same work there as here."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from tests.spark.clusters import connect, standalone

ROOT = Path(__file__).parents[2]


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Client]]:
    with (
        BrokerProcess(tmp_path / "data") as process,
        fasti.connect(process.address) as client,
    ):
        client.create_topic("t", partitions=2)
        client.create_topic("out", partitions=2)
        client.create_topic("events", kind="log", partitions=2)
        keys = [str(n) for n in range(1000)]
        client.producer("t").send_batch([b"x"] * 1000, key=keys, delay="1h")
        client.producer("events").send_batch([b"y"] * 1000, key=keys)
        yield process, client


def worked(session: str, broker: BrokerProcess, place: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.spark.elsewhere", session, broker.address, str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-8000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def check(told: dict[str, Any], client: Client, executors: int) -> None:
    counts = {"due": 1000, "executors": executors, "streamed": 1000, "consumed": 2000}
    assert told == counts | {"moved": {"ok": 1000}}
    assert client.messages("out").count()["done"] == 2000


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_through_connect_on_two_executors(
    prepared: tuple[BrokerProcess, Client], tmp_path: Path
) -> None:
    broker, client = prepared
    # A master and workers in the server's own process; executors are processes as in any cluster.
    with connect("local-cluster[2,1,600]") as address:
        check(worked(address, broker, tmp_path), client, executors=2)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", ["a cluster", "connect", "connect on a cluster"])
def test_in_a_cluster_and_through_connect(
    where: str, prepared: tuple[BrokerProcess, Client], tmp_path: Path
) -> None:
    broker, client = prepared
    with contextlib.ExitStack() as stack:
        address = "local[2]"
        if "cluster" in where:
            address = stack.enter_context(standalone(tmp_path / "workers"))
        if "connect" in where:
            address = stack.enter_context(connect(address))
        check(worked(address, broker, tmp_path), client, executors=1 + ("cluster" in where))
