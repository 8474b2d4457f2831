"""What happens around a fork, without one: several threads that fork, and what counts as in use."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from fasti.client import forking
from fasti.client.address import Address
from fasti.client.flight_transport import FlightTransport


class FakeConnection:
    """Is in use until it is ended."""

    def __init__(self, in_use: bool = True) -> None:
        self.in_use = in_use
        self.paused = False

    def pause(self) -> None:
        self.paused = True

    def before_fork(self, until: float) -> bool:
        self.in_use = False
        return True

    def after_fork(self) -> None:
        self.paused = False

    def _fork_locks(self) -> list[forking.Lock]:
        return []

    def _forked(self) -> None:
        pass


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "_state", forking._State())
    monkeypatch.setattr(forking, "_grpc_ended", lambda until: True)


def test_two_threads_that_fork_take_turns() -> None:
    """The second found the connection ended by the first, and it was never begun again."""
    connection = FakeConnection()
    forking.register_connection(connection)

    def fork() -> None:
        forking._before()
        forking._after_in_parent()

    forking._before()
    other = threading.Thread(target=fork)
    other.start()
    other.join(0.1)
    assert other.is_alive()
    assert connection.paused
    forking._after_in_parent()
    other.join()
    assert not connection.paused


def test_nothing_begins_while_another_connection_ends() -> None:
    """One that was not in use went on, and what it began meanwhile was broken in the child."""
    idle = FakeConnection(in_use=False)
    forking.register_connection(idle)
    forking._before()
    assert idle.paused
    forking._after_in_parent()
    assert not idle.paused


class FakeThing:
    """Has a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def _fork_locks(self) -> list[forking.Lock]:
        return [self.lock]

    def _forked(self) -> None:
        pass


def test_locks_are_waited_for_although_the_connections_took_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that another thread had at that moment was held for ever in the child."""
    monkeypatch.setattr(forking, "_PATIENCE_S", 0.0)
    thing = FakeThing()
    forking.register(thing)
    thing.lock.acquire()
    threading.Timer(0.02, thing.lock.release).start()
    forking._before()
    held = list(forking._state.held)
    forking._after_in_parent()
    assert held == [thing.lock]
    assert not thing.lock.locked()


def test_an_answer_that_is_being_read_is_in_use() -> None:
    """Its connection may be given up already, because another call found it lost."""
    transport = FlightTransport(Address(hosts=(("127.0.0.1", 1),)))
    assert not transport.in_use
    transport._reads[1] = object(), object()
    assert transport.in_use
    assert not transport.before_fork(0.0)
    transport.after_fork()


# Alone in a process: hooks are called in an order that depends on what was imported first.
_LOGS = """
import os, threading
from fasti.client import forking
import logging


class Connection:
    in_use = True

    def before_fork(self, until):
        thread = threading.Thread(target=logging.getLogger("a").debug, args=("it ends",), daemon=True)
        thread.start()
        thread.join(5)
        return not thread.is_alive()

    def pause(self): ...
    def after_fork(self): ...
    def _forked(self): ...


connection = Connection()
forking.register_connection(connection)
forking._grpc_ended = lambda until: True
pid = os.fork()
if pid == 0:
    os._exit(forking.refused())
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_stream_that_ends_may_log() -> None:
    """It waited for the lock of logging, which the thread that forks had, and the child got nothing."""
    ended = subprocess.run(
        [sys.executable, "-c", _LOGS], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
