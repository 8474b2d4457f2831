"""What the tests of a broker of several processes share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import Client
from tests.integration.serve_rig import SMALL, WAIT_S, Watched

SETTINGS: dict[str, Any] = {**SMALL, "memory": "128MiB"}


def pids(broker: BrokerProcess, processes: int) -> list[int]:
    """Of all its processes, when they serve."""
    return [broker.process(number).wait() for number in range(processes)]


def kill_and_wait(broker: BrokerProcess, number: int) -> int:
    """SIGKILL for one process; its pid, when it is gone."""
    watched = Watched(broker.process(number).pid)
    pid = broker.process(number).kill()
    watched.wait()
    return pid


def client_of_process(broker: BrokerProcess, number: int) -> Client:
    """Connected to one process: each listens at the port after the one before."""
    return Client(f"{broker.host}:{broker.port + number}")


def wait_log(broker: BrokerProcess, text: str) -> None:
    """Returns when the log has a text."""
    wait_until(lambda: text in broker.log())


def wait_until(is_so: Callable[[], bool]) -> None:
    """For what only a log tells."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
