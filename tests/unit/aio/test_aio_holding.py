"""What a loop holds: it is rung once, by what matters, and gets nothing whose lease may be over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fasti.aio.holding import LoopHolding
from fasti.client.run import Run
from fasti.errors import Fenced
from tests.unit.client.fakes import FakeClock


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock(now_us=100)
        self.rung = self.urged = 0
        self.held = LoopHolding(threading.Lock(), self.clock, self._ring)
        self.held.ran_out = self._urge

    def _ring(self) -> None:
        self.rung += 1

    def _urge(self) -> None:
        self.urged += 1

    def arrive(self, *due_us: int) -> Run:
        session: Any = SimpleNamespace(topic="t")
        batch = pa.record_batch({"id": range(len(due_us)), "due_us": due_us})
        run = Run(session, 1, batch)
        with self.held.lock:
            self.held.add(run)
        return run


def test_what_arrives_rings_only_who_watches_and_only_if_it_is_earlier() -> None:
    rig = Rig()
    rig.arrive(500)
    assert rig.rung == 0
    assert rig.held.watch() > 0
    rig.arrive(600)
    assert rig.rung == 0
    rig.arrive(400)
    rig.arrive(300)
    assert rig.rung == 1
    rig.held.watch(everything=True)
    rig.arrive(900)
    assert rig.rung == 2


def test_nothing_is_taken_before_it_is_due_and_the_clock_rings() -> None:
    rig = Rig()
    run = rig.arrive(200, 300)
    assert rig.held.take_run() is None
    assert rig.held.watch() > 0
    rig.clock.listen(rig.held.wake)
    rig.clock.move_to(200)
    assert rig.rung == 1
    assert rig.held.watch() <= 0
    assert rig.held.take_run() is run
    assert list(rig.held.take_each(run)) == [0]


def test_so_many_are_due_at_a_time() -> None:
    rig = Rig()
    rig.arrive(50, 200)
    rig.arrive(90, 300)
    assert rig.held.seconds_until_due(2) <= 0
    assert rig.held.seconds_until_due(3) == float("inf")
    rig.clock.move_to(200)
    assert rig.held.seconds_until_due(3) <= 0
    assert rig.held.seconds_until_due(5) == float("inf")


def test_when_a_lease_ended_unseen_nothing_is_taken_until_all_has_come_anew() -> None:
    rig = Rig()
    run = rig.arrive(50, 60)
    run.until_us = 100
    assert rig.held.take_run() is run
    assert list(rig.held.take_each(run)) == []
    rig.held.put_back(run)
    assert rig.urged == 1
    assert rig.held.take_run() is None
    assert rig.held.watch() > 0
    assert rig.held.seconds_until_due(1) == float("inf")
    with rig.held.lock:
        rig.held.drop_all()
    assert rig.rung == 1
    again = rig.arrive(50)
    assert rig.held.take_run() is again


def test_the_end_and_trouble_ring() -> None:
    rig = Rig()
    rig.held.watch()
    with rig.held.lock:
        rig.held.fail(Fenced("another took the name"))
    assert (rig.rung, rig.held.over, rig.held.ended) == (1, True, False)
    with pytest.raises(Fenced):
        rig.held.take_run()
    other = Rig()
    other.held.watch()
    with other.held.lock:
        other.held.end()
    assert (other.rung, other.held.over, other.held.ended) == (1, True, True)
    assert other.held.watch() <= 0
