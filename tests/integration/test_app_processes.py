"""Handlers in worker processes, with a broker of its own: they die, hang, spin and are stopped."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.app_in_processes import answer, app, hang, spin, work
from tests.integration.app_rig import WAIT_S, Mailbox
from tests.integration.serve_rig import Watched, emptied


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[fasti.Client]:
    with fasti.connect(broker.address) as connected, emptied(connected):
        yield connected


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    made = Mailbox(tmp_path / "mailbox")
    yield made
    made.close()


@pytest.fixture
def running(
    broker: BrokerProcess, client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[fasti.App]:
    """The app with the handler of the test alone: each costs a process."""
    monkeypatch.setattr(app, "address", broker.address)
    yield app
    app.stop(grace=0)


def start(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "handlers", [handler])
    app.start()


def await_counts(client: fasti.Client, topic: str, **wanted: int) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        found = client.messages(topic).count()
        if all(found[name] == count for name, count in wanted.items()):
            return
        assert time.monotonic() < until, found


def reasons(client: fasti.Client, topic: str) -> list[str]:
    return list(client.messages(topic).dead().column("reason").to_pylist())


def test_verdicts_come_back_from_a_process_of_its_own(
    running: fasti.App, client: fasti.Client, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(work, monkeypatch)
    place = str(mailbox.path)
    pids = set()
    for action, told in (
        ("nothing", "start attempt 1"),
        ("raise", "attempt 1"),
        ("retry", "attempt 1"),
        ("reject", "attempt 1"),
        ("follow", "attempt 1"),
    ):
        work.later({"mailbox": place, "do": action}, key=action)
        pid, key, rest = mailbox.line().split(" ", 2)
        pids.add(int(pid))
        assert (key, rest) == (action, told)
    # A handler there may send too.
    assert mailbox.line().split()[1] == "followed"
    assert len(pids) == 1
    assert os.getpid() not in pids
    await_counts(client, "jobs", done=3, dead=2, scheduled=1, leased=0)
    assert sorted(reasons(client, "jobs")) == ["ValueError: as told", "by hand"]
    stats = running.stats()["jobs"]
    assert (stats.handled, stats.failed, stats.retried, stats.rejected) == (3, 1, 1, 1)
    assert stats.replaced == 0


def test_a_process_that_dies_fails_its_message_and_is_replaced(
    running: fasti.App,
    client: fasti.Client,
    mailbox: Mailbox,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    start(work, monkeypatch)
    place = str(mailbox.path)
    work.later({"mailbox": place, "do": "wait", "gate": str(gate)}, key="killed")
    first = int(mailbox.line().split()[0])
    os.kill(first, signal.SIGKILL)
    work.later({"mailbox": place, "do": "exit"}, key="exits")
    second = int(mailbox.line().split()[0])
    work.later({"mailbox": place}, key="lives")
    third = int(mailbox.line().split()[0])
    await_counts(client, "jobs", done=1, dead=2, leased=0)
    assert len({first, second, third}) == 3
    assert sorted(reasons(client, "jobs")) == [
        "worker process died (exit code 7)",
        "worker process died (signal SIGKILL)",
    ]
    # One that dies with nothing to do fails nobody.
    watched = Watched(third)
    os.kill(third, signal.SIGKILL)
    watched.wait()
    work.later({"mailbox": place}, key="lives on")
    assert int(mailbox.line().split()[0]) != third
    await_counts(client, "jobs", done=2, dead=2, leased=0)
    assert running.stats()["jobs"].failed == 2


def test_a_handler_over_its_time_limit_is_killed(
    running: fasti.App, client: fasti.Client, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(hang, monkeypatch)
    hang.later({"mailbox": str(mailbox.path)})
    watched = Watched(int(mailbox.line()))
    watched.wait()
    await_counts(client, "hung", dead=1, leased=0)
    assert reasons(client, "hung") == ["time limit: not done after 2 s"]


def test_stopping_waits_for_a_process_and_then_kills_it(
    running: fasti.App,
    client: fasti.Client,
    mailbox: Mailbox,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    job = {"mailbox": str(mailbox.path), "do": "wait", "gate": str(gate)}
    start(work, monkeypatch)
    work.later(job, key="finishes")
    watched = Watched(int(mailbox.line().split()[0]))
    stopping = threading.Thread(target=app.stop)
    stopping.start()
    gate.write_text("go on\n")
    stopping.join(WAIT_S)
    watched.wait()
    await_counts(client, "jobs", done=1, leased=0)
    start(work, monkeypatch)
    work.later(job, key="is killed")
    watched = Watched(int(mailbox.line().split()[0]))
    app.stop(grace=0)
    watched.wait()
    await_counts(client, "jobs", done=1, ready=1, leased=0, dead=0)


def test_a_busy_handler_keeps_its_lease(
    running: fasti.App,
    broker: BrokerProcess,
    client: fasti.Client,
    mailbox: Mailbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a process, and in a thread beside it, for longer than two lengths of a lease."""
    threaded = fasti.App(broker.address)
    done = threading.Event()

    @threaded.on("threaded", create={"lease": "2s"})
    def spin_here(seconds: float, message: fasti.Message) -> None:
        assert message.attempts == 1
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        done.set()

    start(spin, monkeypatch)
    with threaded:
        spin.later({"mailbox": str(mailbox.path), "seconds": 4.5})
        spin_here.later(4.5)
        assert mailbox.line() == "spins 1"
        assert done.wait(WAIT_S)
        await_counts(client, "spinning", done=1, leased=0)
        await_counts(client, "threaded", done=1, leased=0)
    for each in (running.stats()["spinning"], threaded.stats()["threaded"]):
        assert (each.handled, each.failed, each.refused) == (1, 0, 0)


def test_a_thread_over_its_time_limit_loses_its_lease(
    broker: BrokerProcess, client: fasti.Client
) -> None:
    """It can't be killed: its message comes again, and what it says afterwards is refused."""
    app = fasti.App(broker.address)
    again = threading.Event()

    @app.on("slow", concurrency=2, time_limit="500ms", create={"lease": "1s"})
    def crawl(message: fasti.Message) -> None:
        if message.attempts == 1:
            assert again.wait(WAIT_S)
        else:
            again.set()

    crawl.later(b"x").result(WAIT_S)
    with app:
        assert again.wait(WAIT_S)
        await_counts(client, "slow", done=1, leased=0)
    stats = app.stats()["slow"]
    assert (stats.handled, stats.refused) == (2, 1)


def test_answers_come_back_from_a_process_too(
    running: fasti.App, client: fasti.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(answer, monkeypatch)
    returned = client.call("asked", b'{"do": "return"}', timeout="150s")
    assert returned.content_type == "application/json"
    assert json.loads(returned.payload)["pid"] != os.getpid()
    by_hand = client.call("asked", b'{"do": "reply"}', timeout="150s")
    assert (by_hand.payload, by_hand.headers) == (b"by hand", {"from": "a process"})
    await_counts(client, "asked", done=2, leased=0)
    assert running.stats()["asked"].handled == 2
