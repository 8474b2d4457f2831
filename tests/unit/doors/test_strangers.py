"""Which connections are ended: decided from what the kernel and the handlers tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from fasti.config import GuardSettings
from fasti.doors.sockets import Accepted
from fasti.doors.strangers import Connections, Why

SETTINGS = GuardSettings(
    first_bytes_max=1_000, first_call_us=20_000_000, waiting_max=3, request_bytes_max=10_000
)


def bringing(received_bytes: int, number: int = 1, peer: str = "") -> Accepted:
    return Accepted(number + 10, number, peer or f"10.0.0.1:{number}", received_bytes)


def ended(connections: Connections, now: float, *found: Accepted) -> list[Why]:
    return [why for _, why in connections.judge(now, found)]


def test_a_stranger_is_ended_by_bytes_and_by_time() -> None:
    connections = Connections(SETTINGS, guarded=True)
    assert ended(connections, 0, bringing(1_000)) == []
    assert ended(connections, 1, bringing(1_001)) == [Why.BYTES]
    assert ended(connections, 1, bringing(0, 2)) == []
    assert ended(connections, 21, bringing(0, 2)) == []
    assert ended(connections, 21.1, bringing(0, 2)) == [Why.TIME]


def test_one_whose_call_was_let_in_may_bring_a_request_each_time() -> None:
    connections = Connections(SETTINGS, guarded=True)
    line = connections.line("10.0.0.1:1")
    line.heard += 1
    assert ended(connections, 0, bringing(900)) == []
    assert ended(connections, 1_000, bringing(10_900)) == []
    line.heard += 1
    assert ended(connections, 1_001, bringing(20_000)) == []
    assert ended(connections, 1_002, bringing(30_000)) == []
    assert ended(connections, 1_003, bringing(30_001)) == [Why.REQUEST]


def test_without_tokens_the_bound_of_a_request_counts() -> None:
    connections = Connections(SETTINGS, guarded=False)
    assert ended(connections, 0, bringing(10_000)) == []
    assert ended(connections, 0, bringing(10_001)) == [Why.BYTES]


def test_of_too_many_strangers_the_oldest_go() -> None:
    connections = Connections(SETTINGS, guarded=True)
    connections.line("10.0.0.1:1").heard += 1
    crowd = [bringing(0, number) for number in range(1, 7)]
    # The first is known, and five wait where three may.
    verdicts = connections.judge(0, crowd)
    assert [(found.inode, why) for found, why in verdicts] == [(2, Why.NUMBER), (3, Why.NUMBER)]
    assert list(connections.strangers) == [4, 5, 6]


def test_a_port_that_is_used_again_is_a_stranger_again() -> None:
    connections = Connections(SETTINGS, guarded=True)
    connections.line("10.0.0.1:7").heard += 1
    assert ended(connections, 0, bringing(5, 1, "10.0.0.1:7")) == []
    again = bringing(5_000, 2, "10.0.0.1:7")
    assert ended(connections, 1, again) == [Why.BYTES]


def test_what_is_closed_is_forgotten() -> None:
    connections = Connections(SETTINGS, guarded=True)
    line = connections.line("10.0.0.1:1")
    line.heard += 1
    assert ended(connections, 0, bringing(0), bringing(0, 2)) == []
    connections.forget_closed([bringing(0, 2)])
    assert len(connections) == 1
    # A handler may have told of a connection that was not there when the look began.
    assert connections.line("10.0.0.1:1") is line
    connections.forget_closed([bringing(0, 2)])
    assert connections.line("10.0.0.1:1") is not line
    connections.forget_closed([])
    assert len(connections) == len(connections.strangers) == 0


def test_a_call_that_is_let_in_while_lines_are_looked_through_is_in_nobodys_way() -> None:
    connections = Connections(SETTINGS, guarded=True)
    callers: list[threading.Thread] = []

    class Lines(dict[str, Any]):
        """In the middle of which a handler of another thread comes."""

        def items(self) -> Iterator[tuple[str, Any]]:  # type: ignore[override]
            for number, item in enumerate(super().items()):
                if number == 0:
                    caller = threading.Thread(target=connections.line, args=("10.0.0.9:9",))
                    caller.start()
                    # It comes now, or waits until they were looked through.
                    caller.join(0.05)
                    callers.append(caller)
                yield item

    connections._lines = Lines()
    for number in (1, 2, 3):
        connections.line(f"10.0.0.1:{number}")
    connections.forget_closed([])
    for caller in callers:
        caller.join()
    assert "10.0.0.9:9" in connections._lines
