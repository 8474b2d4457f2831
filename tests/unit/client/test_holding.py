"""In what order messages that have arrived are handed over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from fasti.client.holding import Holding
from fasti.client.run import Run
from tests.unit.client.fakes import FakeClock


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock(now_us=1_000)
        self.held = Holding(threading.Lock(), self.clock)
        self._names = iter("abcdefghij")
        self._after_us = 0

    def arrive(self, *due_us: int, ranked: bool = False) -> None:
        """Messages, each with the next letter as its payload."""
        session: Any = SimpleNamespace(topic="t")
        payloads = [next(self._names).encode() for _ in due_us]
        batch = pa.record_batch({"id": range(len(due_us)), "due_us": due_us, "payload": payloads})
        run = Run(session, 1, batch, ranked, self._after_us if ranked else 0)
        run.came_us = self.clock.now_us()
        self._after_us = max(self._after_us, run.last_due_us())
        with self.held.lock:
            self.held.add(run)

    def take(self, count: int = 100) -> str:
        """What is handed over now, run by run as a consumer does."""
        found = ""
        while len(found) < count:
            run = self.held.await_run(until=0.0)
            if run is None:
                return found
            begin, end = self.held.take_due(run, count - len(found))
            found += b"".join(run.payload(row) for row in range(begin, end)).decode()
            self.held.put_back(run)
        return found


def test_by_due_time() -> None:
    rig = Rig()
    rig.arrive(900, 700)
    rig.arrive(800, 2_000)
    assert rig.take() == "bca"
    rig.clock.at_us = 2_000
    assert rig.take() == "d"


def test_ranked_ones_as_they_came_whatever_their_due_times() -> None:
    rig = Rig()
    rig.arrive(900, 700, 800, ranked=True)
    assert rig.take(1) == "a"
    rig.arrive(100, 50, ranked=True)
    assert rig.take(1) == "b"
    rig.arrive(950, ranked=True)
    assert rig.take() == "cdef"


def test_ranked_ones_are_not_early_and_hold_nobody_up() -> None:
    rig = Rig()
    rig.arrive(900, 700, 3_000, ranked=True)
    rig.arrive(400, ranked=True)
    assert rig.take() == "abd"
    rig.clock.at_us = 2_999
    assert rig.take() == ""
    rig.clock.at_us = 3_000
    assert rig.take() == "c"


def test_a_ranked_message_says_when_it_was_due() -> None:
    rig = Rig()
    rig.arrive(900, 700, ranked=True)
    run = rig.held.await_run(until=0.0)
    assert run is not None
    assert run.due_list() == [900, 700]
    assert run.turn_list() == [900, 900]


def test_what_went_back_unopened_holds_nobody_up() -> None:
    """Its run stood in front for the due time of what had gone, and hid those behind it."""
    rig = Rig()
    rig.arrive(500, 3_000)
    rig.arrive(900)
    (_, _, run) = rig.held._heap[0]
    with rig.held.lock:
        run.next = 1  # As `Custody.overdue` does.
    found = rig.held.take_now()
    assert found is not None
    assert found[0].payload(found[1]) == b"c"
    assert rig.held.take_now() is None
    rig.clock.at_us = 3_000
    found = rig.held.take_now()
    assert found is not None
    assert found[0].payload(found[1]) == b"b"
