"""A thread of the broker that dies or stands still: told, and no caller is left without an answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import FastiError
from tests.faults.conftest import Tried
from tests.faults.sabotage import Sabotage
from tests.faults.shim import Calls, MachineFaults
from tests.integration.serve_rig import SMALL, ask, children

PATIENCE_S = 40.0
SPARES = "fasti.broker.housekeeper:Housekeeper._prepare"
CHECKPOINT = "fasti.broker.housekeeper:Housekeeper._take_checkpoint"
COMMITTER = "fasti.broker.committer:Committer._write"
SEQUENCER = "fasti.broker.sequencer:Sequencer._seconds_to_wake"
CRON = "fasti.broker.cron.scheduler:Scheduler._seconds"
HTTP = "fasti.doors.http_child:HttpChild._spawn"

ROLLING = {**SMALL, "segment_size": "64KiB", "checkpoint_size": "128KiB"}


def until(true: Callable[[], Any], what: str = "") -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return found


class Rig:
    """A broker whose functions fail when they are told to, and a client."""

    def __init__(self, directory: Path) -> None:
        places = (SPARES, CHECKPOINT, COMMITTER, SEQUENCER, CRON, HTTP)
        self.sabotage = Sabotage(directory, *places)
        self.broker = BrokerProcess(
            directory / "data",
            http="127.0.0.1:0",
            env=self.sabotage.environment,
            settings=ROLLING,
        )
        self.client = fasti.connect(self.broker.address)
        self.client.create_topic("t")
        self.client.create_topic("nightly", kind="cron")

    def send(self) -> None:
        """Enough for more than a segment."""
        for _ in range(3):
            assert self.client.producer("t").send_batch([b"x" * 7000] * 5, delay="1h").all_ok

    def fire(self) -> None:
        schedules = self.client.schedules("nightly")
        schedules.put("now", every="1h", target="t", payload=b"")
        schedules.delete("now")

    def lose_http(self) -> None:
        (child,) = children(self.broker.pid)
        os.kill(child, signal.SIGKILL)

    def deaths(self, thread: str) -> float:
        body = ask(self.broker, "/metrics").body.decode()
        name = f'fasti_thread_deaths_total{{thread="{thread}"}} '
        return float(next(line for line in body.splitlines() if line.startswith(name))[len(name) :])


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("threads"))
    yield made
    made.client.close()
    made.broker.close()


@pytest.mark.parametrize(
    ("thread", "place", "provoke"),
    [
        ("fasti-spares", SPARES, Rig.send),
        ("fasti-checkpoint", CHECKPOINT, lambda rig: rig.client.checkpoint()),
        ("fasti-committer", COMMITTER, Rig.send),
        ("fasti-cron", CRON, Rig.fire),
        ("fasti-http", HTTP, Rig.lose_http),
    ],
)
@pytest.mark.fault(
    "threads", "a thread dies by a fault of the program", "told, run again; every call answered"
)
def test_a_thread_that_dies_is_run_again(
    rig: Rig, thread: str, place: str, provoke: Callable[[Rig], None], tried: Tried
) -> None:
    before = rig.deaths(thread)
    rig.sabotage.strike(place)
    provoke(rig)
    rig.sabotage.wait()
    # Everything goes on: what this thread does, and all else.
    rig.send()
    rig.client.checkpoint()
    until(lambda: ask(rig.broker, "/healthz").status == 200, "alive again")
    until(lambda: ask(rig.broker, "/readyz").status == 200, "ready again")
    assert rig.deaths(thread) == before + 1
    assert f"thread={thread}" in rig.broker.log()
    assert "RuntimeError: sabotage of" in rig.broker.log()
    tried.seen = "as expected"


def ask_for_ever(client: fasti.Client) -> None:
    while True:
        client.transport.call("topics", timeout=20)


@pytest.mark.fault(
    "threads", "the sequencer dies", "calls answered, the process ends with `internal`"
)
def test_the_end_of_the_sequencer_is_the_end_of_the_process(tmp_path: Path, tried: Tried) -> None:
    rig = Rig(tmp_path)
    with rig.broker as broker:
        with rig.client as client:
            rig.send()
            rig.sabotage.strike(SEQUENCER)
            with pytest.raises(FastiError):
                ask_for_ever(client)
            code = broker.wait(PATIENCE_S)
        assert code not in (0, -signal.SIGKILL)
        assert "error internal: the sequencer failed" in broker.log()
        broker.start()
        with fasti.connect(broker.address) as client:
            assert client.messages("t").count()["scheduled"] == 15
    tried.times = 1


@pytest.mark.fault(
    "threads", "a sync that doesn't return", "told after a bound; goes on when the disk does"
)
def test_a_disk_that_hangs_is_told_and_forgiven(
    machine: MachineFaults, tmp_path: Path, tried: Tried
) -> None:
    settings = {**SMALL, "stall_after": "1s"}
    with (
        BrokerProcess(
            tmp_path / "data", http="127.0.0.1:0", env=machine.environment, settings=settings
        ) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("t")
        producer = client.producer("t")
        producer.send(b"first").result(PATIENCE_S)
        # Stopped for longer than the bound: nobody stood still.
        broker.pause()
        time.sleep(1.5)
        broker.resume()
        assert ask(broker, "/healthz").status == 200
        assert "no progress" not in broker.log()

        machine.hang(Calls.SYNC, ".segment", times=1)
        waiting = producer.send(b"second")
        until(lambda: ask(broker, "/healthz").status == 503, "told")
        answer = ask(broker, "/healthz").json()
        (thread,) = answer["details"]["threads"]
        assert (thread["name"], thread["state"]) == ("fasti-committer", "stalled")
        assert "fasti-committer stalled" in answer["detail"]
        assert ask(broker, "/readyz").status == 503
        metrics = ask(broker, "/metrics").body.decode()
        assert "fasti_up 0.0" in metrics
        assert 'fasti_thread_stalled_seconds{thread="fasti-committer"} 0.0' not in metrics
        assert "os.fdatasync" in broker.log()
        assert broker.running
        assert not waiting.done

        machine.heal()
        assert waiting.result(PATIENCE_S).ok
        until(lambda: ask(broker, "/healthz").status == 200, "alive again")
        until(lambda: ask(broker, "/readyz").status == 200, "ready again")
        until(lambda: "stood still goes on" in broker.log())
    tried.times = machine.injected
