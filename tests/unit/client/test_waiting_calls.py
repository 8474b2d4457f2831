"""Calls that wait, and are given up only when their shard is elsewhere."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from fasti.client.shards import hanging
from fasti.client.shards.hanging import HangingCalls
from fasti.client.shards.shard_map import Place
from fasti.client.waiting_calls import WaitingCall
from fasti.errors import Closed, Unavailable
from fasti.runtime import SystemRuntime

RUNTIME = SystemRuntime()
OLD, NEW = Place(("a", 1), 1), Place(("b", 1), 2)


def test_a_call_that_nothing_ends_is_left_behind_when_it_is_given_up() -> None:
    waiting, may_end, began = WaitingCall(0.0), threading.Event(), threading.Event()

    def call() -> str:
        began.set()
        may_end.wait(60)
        return "late"

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(waiting.wait_aside, RUNTIME, call)
        assert began.wait(60)
        waiting.give_up()
        with pytest.raises(Unavailable, match="no longer leads"):
            answer.result(60)
        may_end.set()
    with pytest.raises(Unavailable):
        waiting.wait_aside(RUNTIME, lambda: pytest.fail("it is made elsewhere"))


def test_a_call_that_is_answered_is_as_any_other() -> None:
    waiting = WaitingCall(0.0)
    assert waiting.wait_aside(RUNTIME, lambda: "answer") == "answer"
    waiting.give_up()
    with pytest.raises(Closed):
        WaitingCall(0.0).wait_aside(RUNTIME, lambda: _raise(Closed("over")))


def _raise(error: Exception) -> str:
    raise error


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hanging, "LOOK_S", 0.0)


class Processes:
    """Where one shard is; the thread that looks by itself has to wait."""

    def __init__(self) -> None:
        self.now = self.told = OLD
        self.asked = count()
        self._closed = threading.Event()
        self.calls = HangingCalls(RUNTIME, lambda _: self.now, self._ask, self._wait)

    def _ask(self, shard: int, until: float) -> None:
        next(self.asked)
        self.now = self.told

    def _wait(self, seconds: float) -> None:
        self._closed.wait(60)
        raise Closed("the client is closed")

    def close(self) -> None:
        self._closed.set()


@pytest.mark.usefixtures("at_once")
def test_who_is_only_slow_is_waited_for_and_who_was_replaced_is_not() -> None:
    processes = Processes()
    with processes.calls.watch(0, OLD) as call:
        processes.calls.look()
        assert next(processes.asked) == 1
        assert not call.is_given_up
        # The same epoch at another address says nothing about who leads.
        processes.told = Place(("b", 1), 1)
        processes.calls.look()
        assert not call.is_given_up
        processes.now, processes.told = OLD, NEW
        processes.calls.look()
        assert call.is_given_up
    processes.close()


def test_a_call_that_has_just_begun_makes_nobody_ask() -> None:
    processes = Processes()
    with processes.calls.watch(0, OLD) as call:
        processes.told = NEW
        processes.calls.look()
        assert not call.is_given_up
    assert next(processes.asked) == 0
    processes.close()
