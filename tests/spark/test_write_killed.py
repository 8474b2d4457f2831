"""Drivers that are killed with SIGKILL, in the write and in the commit, and started again.

What is in the topic at the end is compared row by row with what was in the log. Each start of a driver
takes a while, so this is among the long tests; test_write_stream has the same with errors instead of
kills, in the session that is there.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client

ROOT = Path(__file__).parents[2]
ROWS = 1_000
DUE_US = 4_102_444_800_000_000


@pytest.fixture
def run(
    broker: BrokerProcess, client: Client, topic: Callable[..., str], tmp_path: Path
) -> Callable[..., int]:
    """Starts the driver; returns how it ended."""
    log, target = topic(kind="log", partitions=2), topic(partitions=2)
    payloads = [b"%d" % number for number in range(ROWS)]
    client.producer(log).send_batch(payloads, key=[f"k{number}" for number in range(ROWS)])

    def start(**weak: object) -> int:
        name = "-".join(str(value) for value in weak.values()) or "none"
        spot = {"do": "kill", **weak, "once": str(tmp_path / name)} if weak else {}
        told = {
            "address": broker.address,
            "log": log,
            "topic": target,
            "rows": "300",
            "checkpoint": str(tmp_path / "checkpoint"),
            "weak": json.dumps(spot),
        }
        return subprocess.run(
            [sys.executable, "-m", "tests.spark.killed_driver", json.dumps(told)],
            cwd=ROOT,
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        ).returncode

    start.topic = target  # type: ignore[attr-defined]
    return start


def check(client: Client, topic: str) -> None:
    """Every row of the log is there, once, at its time."""
    rows = pa.Table.from_batches(list(client.messages(topic).scan(payload=True))).to_pylist()
    assert len(rows) == ROWS
    found = {row["key"]: (row["payload"].split(b" ")[0], row["due_us"]) for row in rows}
    assert found == {
        f"k{number}": (b"%d" % number, DUE_US + number * 1_000_000) for number in range(ROWS)
    }
    assert client.messages(topic).count()["staged"] == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_killed_behind_the_publication_and_then_a_task_that_is_run_again(
    run: Callable[..., int], client: Client
) -> None:
    assert run(at="published", batch=1) == -signal.SIGKILL
    # A task that has staged some of its rows fails, and its next attempt computes others.
    assert run(at="write", batch=2, do="raise") == 0
    check(client, run.topic)  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_in_the_write_and_in_the_commit_and_behind_it(
    run: Callable[..., int], client: Client
) -> None:
    assert run(at="write", batch=0) == -signal.SIGKILL
    assert run(at="write", batch=1) == -signal.SIGKILL
    assert run(at="commit", batch=1) == -signal.SIGKILL
    assert run(at="commit", batch=2) == -signal.SIGKILL
    assert run(at="published", batch=2) == -signal.SIGKILL
    assert run(at="published", batch=3) == -signal.SIGKILL
    assert run() == 0
    check(client, run.topic)  # type: ignore[attr-defined]
