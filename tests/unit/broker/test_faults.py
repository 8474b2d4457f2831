from __future__ import annotations

import logging

import numpy as np
import pytest

from fasti.broker import faults as module
from fasti.broker.faults import Faults
from fasti.core import commands as co
from fasti.core.work import Fault
from fasti.errors import InternalError

SECOND_US = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.at_us = 0

    def tick(self) -> int:
        return self.at_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def faults(clock: Clock) -> Faults:
    return Faults(clock)


def cancel(topic: str = "t") -> co.Cancel:
    return co.Cancel(topic, co.Target(ids=np.array([1])))


def is_refused(faults: Faults, command: object) -> bool:
    try:
        faults.check(command)
    except InternalError:
        return True
    return False


def test_from_the_second_time_on_a_command_is_refused_for_twice_as_long(
    faults: Faults, clock: Clock
) -> None:
    error = ZeroDivisionError()
    faults.note_dropped(cancel(), error)
    assert not is_refused(faults, cancel())
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        faults.note_dropped(cancel(), error)
        clock.at_us += seconds * SECOND_US - 1
        assert is_refused(faults, cancel())
        assert not is_refused(faults, cancel("another"))
        clock.at_us += 1
        assert not is_refused(faults, cancel())
    clock.at_us += 601 * SECOND_US
    faults.note_dropped(cancel("another"), error)
    faults.note_dropped(cancel(), error)
    assert not is_refused(faults, cancel())


def test_transactions_are_told_apart_by_their_commands(faults: Faults) -> None:
    bad = co.Transaction([cancel(), co.Purge("t", np.array([1]))])
    for _ in range(2):
        faults.note_dropped(bad, ZeroDivisionError())
    assert is_refused(faults, bad)
    assert not is_refused(faults, co.Transaction([cancel()]))
    assert not is_refused(faults, cancel())


def test_a_session_may_always_end_and_serving_refuses_credits(faults: Faults) -> None:
    for _ in range(2):
        faults.note_dropped(co.Detach(1), ZeroDivisionError())
        faults.note_dropped(None, ZeroDivisionError(), serving="t")
    assert not is_refused(faults, co.Detach(1))
    assert is_refused(faults, co.Lease("t", 1, "c", 1))
    assert not is_refused(faults, co.Lease("u", 1, "c", 1))
    assert faults.counts() == {("Detach", "dropped"): 2, ("serve", "dropped"): 2}


def test_what_is_remembered_is_bounded(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SUSPECTS_MAX", 3)
    for topic in "abcd":
        for _ in range(2):
            faults.note_dropped(cancel(topic), ZeroDivisionError())
    assert [is_refused(faults, cancel(topic)) for topic in "abcd"] == [False, True, True, True]


def test_the_same_fault_is_logged_once_a_minute(
    faults: Faults, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "fasti.broker.faults"):
        for number in range(100):
            faults.note_refused(Fault(cancel(f"topic-{number}"), ZeroDivisionError("x")))
        faults.note_refused(Fault(cancel(), KeyError("another")))
        clock.at_us += 60 * SECOND_US
        faults.note_refused(Fault(cancel(), ZeroDivisionError("x")))
    said = [line.getMessage() for line in caplog.records]
    assert len(said) == 3
    assert "topic-0" in said[0]
    assert "99 times since" in said[2]
    assert all(line.exc_info for line in caplog.records)
    assert faults.counts() == {("Cancel", "kept"): 102}
