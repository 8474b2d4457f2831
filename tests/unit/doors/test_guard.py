"""When the guard of a port rests, and when it doesn't."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from fasti.broker.metrics.counts import Metrics
from fasti.config import GuardSettings
from fasti.doors.guard import Guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of connections")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def guard(listener: socket.socket) -> Guard:
    made = Guard(GuardSettings(), Metrics(), True, lambda: None)
    made.look_at(listener.getsockname()[1])
    return made


def test_it_rests_while_nothing_happens(guard: Guard) -> None:
    assert guard.rest()


def test_a_connection_that_came_while_it_was_awake_is_seen_before_it_rests(
    guard: Guard, listener: socket.socket
) -> None:
    guard.rest()
    # Accepted at once, so that the port itself has nothing to tell.
    with socket.create_connection(listener.getsockname()), listener.accept()[0]:
        assert not guard.rest(), "a stranger is watched"


def test_a_call_ends_the_rest_and_it_stays_awake_for_a_while(
    guard: Guard, listener: socket.socket
) -> None:
    assert guard.rest()
    with socket.create_connection(listener.getsockname()):
        assert not guard.rest()
