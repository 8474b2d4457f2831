"""The broker's threads: what dies is told and run again, what stands still is told, sleep is neither."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import pytest

import fasti
from fasti.broker.threads import Queue, Threads, Worker

WAIT_S = 60.0


def test_a_thread_that_dies_is_told_and_run_again(caplog: pytest.LogCaptureFixture) -> None:
    threads, runs, go_on, done = Threads(), [0], threading.Event(), threading.Event()

    def run() -> None:
        runs[0] += 1
        if runs[0] == 1:
            raise ZeroDivisionError("once")
        assert go_on.wait(WAIT_S)
        worker.idle()
        done.set()
        ended.wait(WAIT_S)

    ended = threading.Event()
    worker = threads.worker("fasti-some", run)
    worker.start()
    while runs[0] < 2:
        threading.Event().wait(0.001)
    # It runs again, and has not shown yet that it is well.
    (trouble,) = threads.troubles()
    assert (trouble.name, trouble.state) == ("fasti-some", "died")
    assert "once" in trouble.why
    assert threads.deaths == {"fasti-some": 1}
    go_on.set()
    assert done.wait(WAIT_S)
    assert threads.troubles() == []
    ended.set()
    worker.join()
    (record,) = [r for r in caplog.records if "died" in r.message]
    assert record.exc_info is not None


def test_one_whose_state_is_not_to_be_trusted_tells_its_owner_once() -> None:
    threads, told = Threads(), []

    def run() -> None:
        raise ZeroDivisionError

    worker = threads.worker("fasti-some", run, told.append)
    worker.start()
    worker.wait()
    assert [type(error) for error in told] == [ZeroDivisionError]
    assert [each.state for each in threads.troubles()] == ["died"]
    # Its successor is another one: this one is forgotten.
    worker.join()
    assert threads.troubles() == []


def test_joining_one_that_dies_again_and_again_ends() -> None:
    threads = Threads()
    worker = threads.worker("fasti-some", lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    worker.start()
    worker.join()
    assert threads.troubles() == []


class Stuck:
    """A worker in the middle of its work, for as long as it should be."""

    def __init__(self, threads: Threads) -> None:
        self.go_on, self.began = threading.Event(), threading.Event()
        self.worker: Worker = threads.worker("fasti-some", self._run)
        self.worker.start()
        assert self.began.wait(WAIT_S)

    def _run(self) -> None:
        self.worker.busy()
        self.began.set()
        assert self.go_on.wait(WAIT_S)
        self.worker.idle()

    def end(self) -> None:
        self.go_on.set()
        self.worker.join()


def test_one_that_makes_no_progress_is_told_with_its_stack_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads = Threads(stall_s=8.0)
    stuck = Stuck(threads)
    try:
        threads.look(100.0)
        for second in range(101, 108):
            threads.look(second)
            assert threads.troubles() == []
        for second in range(108, 141):
            threads.look(second)
            (trouble,) = threads.troubles()
            assert (trouble.name, trouble.state) == ("fasti-some", "stalled")
            assert trouble.seconds == second - 100
        records = [r for r in caplog.records if "no progress" in r.message]
        # After 8 s, 16 and 32.
        assert [r.fields["seconds"] for r in records] == [8.0, 16.0, 32.0]  # type: ignore[attr-defined]
        assert "self.go_on.wait" in records[0].stack  # type: ignore[attr-defined]
        assert threads.stalls() == {"fasti-some": 40.0}
        stuck.worker.busy()
        assert threads.stalls() == {"fasti-some": 40.0}
        caplog.set_level(logging.WARNING)
        threads.look(141)
        assert threads.troubles() == []
        assert "goes on" in caplog.records[-1].message
    finally:
        stuck.end()


def test_waiting_for_work_is_no_standstill() -> None:
    threads = Threads(stall_s=8.0)
    stuck = Stuck(threads)
    try:
        stuck.worker.idle()
        for second in range(100, 200):
            threads.look(second)
        assert threads.troubles() == []
    finally:
        stuck.end()


def test_a_process_that_was_stopped_for_an_hour_has_no_worker_that_stood_still() -> None:
    threads = Threads(stall_s=8.0)
    stuck = Stuck(threads)
    try:
        threads.look(100.0)
        threads.look(101.0)
        threads.look(3701.0)
        assert threads.troubles() == []
    finally:
        stuck.end()


def test_work_that_nobody_takes_is_told() -> None:
    threads, waiting = Threads(stall_s=8.0), [b"message"]
    queue = Queue("produce", lambda: bool(waiting))
    threads.add(queue)
    for second in range(100, 109):
        threads.look(second)
    assert [each.name for each in threads.troubles()] == ["produce"]
    queue.progress += 1
    threads.look(109)
    assert threads.troubles() == []
    waiting.clear()
    for second in range(110, 130):
        threads.look(second)
    assert threads.troubles() == []


# Threads that live as long as a call, a stream or the end of the process; and those of `cluster up`, which
# is no broker.
UNWATCHED = {
    "fasti-cluster-wait",
    "fasti-writer",
    "fasti-watch",
    "fasti-flight-stop",
    "fasti-parent",
}


def test_no_thread_of_the_broker_is_started_unwatched() -> None:
    package = Path(fasti.__file__).parent
    found = set()
    for folder in ("broker", "doors", "storage", "core"):
        for path in (package / folder).rglob("*.py"):
            for started in re.findall(r"threading\.Thread\(([^()]*)\)", path.read_text()):
                name = re.search(r'name="([^"]+)"', started)
                found.add(name[1] if name is not None else f"{path.name}: {started}")
    assert found == UNWATCHED
