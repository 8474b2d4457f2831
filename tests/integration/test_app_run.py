"""`fasti run` as people start it: signals, workers that die, brokers that come late."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.cli.exits import ERROR_EXITS
from tests.integration.app_rig import WAIT_S, Mailbox
from tests.integration.serve_rig import Watched, children, emptied

ROOT = Path(__file__).parents[2]
MODULE = """
import os
from typing import Any
import fasti
from tests.integration.app_rig import await_line, tell

app = fasti.App()

@app.on_start
def begin() -> None:
    tell(os.environ["MAILBOX"], "started", os.getpid())

@app.on_stop
def end() -> None:
    tell(os.environ["MAILBOX"], "stopped", os.getpid())

@app.on("jobs", concurrency=2)
def work(job: dict[str, Any]) -> None:
    tell(os.environ["MAILBOX"], "handles", os.getpid())
    if job["gate"]:
        await_line(job["gate"])
"""

IN_PROCESSES = """
import os
import fasti
from tests.integration.app_rig import tell

app = fasti.App()

@app.on("jobs", kind="processes")
def work() -> None:
    tell(os.environ["MAILBOX"], "handles", os.getpid())
    while True:
        pass
"""


class Program:
    """A `fasti run` of its own, whose stderr is read as it comes."""

    def __init__(self, directory: Path, *arguments: str, address: str = "") -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FASTI_ADDRESS": address}
        environment["MAILBOX"] = str(directory / "mailbox")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "fasti", "run", *arguments],
            cwd=directory,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()

    def await_line(self, pattern: str) -> None:
        with self._changed:
            found = self._changed.wait_for(
                lambda: any(re.search(pattern, line) for line in self.lines), WAIT_S
            )
        assert found, self.lines

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(WAIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[fasti.Client]:
    with fasti.connect(broker.address) as connected, emptied(connected):
        yield connected


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox]:
    (tmp_path / "shop.py").write_text(MODULE)
    os.mkfifo(tmp_path / "gate")
    made = Mailbox(tmp_path / "mailbox")
    yield made
    made.close()


@pytest.fixture
def run(tmp_path: Path, broker: BrokerProcess) -> Iterator[object]:
    started: list[Program] = []

    def start(*arguments: str) -> Program:
        started.append(Program(tmp_path, *arguments, address=broker.address))
        return started[-1]

    yield start
    for each in started:
        each.close()


def send(client: fasti.Client, gate: Path | None = None) -> None:
    client.create_topic("jobs")
    payload = b'{"gate": "%s"}' % (b"" if gate is None else str(gate).encode())
    client.producer("jobs").send(payload).result(WAIT_S)


def words(mailbox: Mailbox, expected: str) -> int:
    word, pid = mailbox.line().split()
    assert word == expected
    return int(pid)


def test_sigterm_lets_a_running_handler_finish(
    run: type[Program], client: fasti.Client, mailbox: Mailbox, tmp_path: Path
) -> None:
    program = run("shop:app", "--concurrency", "1")
    words(mailbox, "started")
    send(client, tmp_path / "gate")
    send(client)
    words(mailbox, "handles")
    program.signal(signal.SIGTERM)
    program.await_line("stopping: running handlers have 30 s")
    # The other one goes back while the first still runs.
    until = time.monotonic() + WAIT_S
    while client.messages("jobs").count()["ready"] < 1:
        assert time.monotonic() < until
    (tmp_path / "gate").write_text("go on\n")
    words(mailbox, "stopped")
    assert program.end() == 0
    assert program.lines[0].startswith("shop:app at fasti://127.0.0.1:")
    assert program.lines[1] == "  jobs  work, 1 at a time by threads"
    found = client.messages("jobs").count()
    assert (found["done"], found["ready"], found["leased"]) == (1, 1, 0)


def test_a_second_signal_stops_at_once(
    run: type[Program], client: fasti.Client, mailbox: Mailbox, tmp_path: Path
) -> None:
    program = run("shop:app")
    words(mailbox, "started")
    send(client, tmp_path / "gate")
    words(mailbox, "handles")
    program.signal(signal.SIGINT)
    program.await_line("stopping: running")
    program.signal(signal.SIGINT)
    words(mailbox, "stopped")
    assert program.end() == 0
    found = client.messages("jobs").count()
    assert (found["done"], found["ready"], found["leased"]) == (0, 1, 0)


def test_workers_that_die_are_started_again_and_all_stop_together(
    run: type[Program], client: fasti.Client, mailbox: Mailbox
) -> None:
    program = run("shop:app", "--workers", "2")
    first = {words(mailbox, "started"), words(mailbox, "started")}
    assert len(first) == 2
    os.kill(min(first), signal.SIGKILL)
    third = words(mailbox, "started")
    assert third not in first
    program.await_line(r"worker \d died \(signal 9\); starting another in 0.5 s")
    send(client)
    assert words(mailbox, "handles") in {max(first), third}
    program.signal(signal.SIGTERM)
    assert {words(mailbox, "stopped"), words(mailbox, "stopped")} == {max(first), third}
    assert program.end() == 0
    assert client.messages("jobs").count()["done"] == 1


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_long_jobs_that_come_at_once_begin_at_once_in_two_workers(
    run: type[Program], client: fasti.Client, mailbox: Mailbox, tmp_path: Path, kind: str
) -> None:
    """None waits behind another, in a worker that has no hand free."""
    module = MODULE.replace("concurrency=2", f'concurrency=2, kind="{kind}"')
    (tmp_path / "shop.py").write_text(module)
    client.create_topic("jobs")
    payload = b'{"gate": "%s"}' % str(tmp_path / "gate").encode()
    client.producer("jobs").send_batch(payloads=[payload] * 4)
    program = run("shop:app", "--workers", "2")
    begun: list[str] = []
    while len(begun) < 4:
        word, pid = mailbox.line().split()
        begun += [pid] if word == "handles" else []
    assert sorted(begun.count(pid) for pid in set(begun)) == (
        [2, 2] if kind == "threads" else [1] * 4
    )
    program.signal(signal.SIGTERM)
    program.await_line("stopping: running")
    program.signal(signal.SIGTERM)
    assert program.end() == 0


def test_workers_end_with_their_supervisor(run: type[Program], mailbox: Mailbox) -> None:
    program = run("shop:app", "--workers", "2")
    pids = {words(mailbox, "started"), words(mailbox, "started")}
    watched = [Watched(pid) for pid in pids]
    assert pids <= set(children(program.process.pid))
    program.signal(signal.SIGKILL)
    assert {words(mailbox, "stopped"), words(mailbox, "stopped")} == pids
    for each in watched:
        each.wait()


def test_processes_of_a_handler_end_with_their_parent(
    run: type[Program], client: fasti.Client, mailbox: Mailbox, tmp_path: Path
) -> None:
    """In the middle of a handler that never ends."""
    (tmp_path / "factory.py").write_text(IN_PROCESSES)
    program = run("factory:app")
    send(client)
    watched = Watched(words(mailbox, "handles"))
    program.signal(signal.SIGKILL)
    watched.wait()


def test_it_waits_for_a_broker_that_comes_late(
    run: type[Program], broker: BrokerProcess, mailbox: Mailbox
) -> None:
    broker.stop()
    try:
        program = run("shop:app")
        program.await_line("can't start yet, trying again")
    finally:
        broker.start()
    words(mailbox, "started")
    program.signal(signal.SIGTERM)
    assert program.end() == 0


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("nowhere:app", "error invalid_argument: there is no module 'nowhere'"),
        ("shop:work", "'shop:work' is not a fasti.App but of type Handler; it has app"),
    ],
)
def test_a_wrong_name_is_told(
    run: type[Program], mailbox: Mailbox, reference: str, why: str
) -> None:
    program = run(reference)
    assert program.end() == ERROR_EXITS["invalid_argument"]
    assert why in "\n".join(program.lines)


def test_a_program_may_run_its_own_workers(
    broker: BrokerProcess, mailbox: Mailbox, tmp_path: Path
) -> None:
    """`app.run(workers=2)` in a script: its module is `__main__`, and the workers find it."""
    script = tmp_path / "script.py"
    script.write_text(MODULE + '\nif __name__ == "__main__":\n    app.run(workers=2)\n')
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FASTI_ADDRESS": broker.address}
    environment["MAILBOX"] = str(mailbox.path)
    process = subprocess.Popen([sys.executable, str(script)], env=environment)
    try:
        pids = {words(mailbox, "started"), words(mailbox, "started")}
        process.send_signal(signal.SIGTERM)
        assert {words(mailbox, "stopped"), words(mailbox, "stopped")} == pids
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
