"""Threads around steps: a step is taken at once, when it is woken, and when it wanted to be."""

from __future__ import annotations

import queue
import threading

import pytest

from fasti.broker.threads import Driver, Poller, Threads
from fasti.runtime import ENDED


class Doubling:
    """A service that doubles numbers until it gets a 0."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.numbers: list[int] = []
        self.taken: list[int] = []
        self.results: queue.SimpleQueue[int] = queue.SimpleQueue()

    def put(self, number: int) -> None:
        with self.changed:
            self.numbers.append(number)
            self.changed.notify()

    def take(self) -> float | None:
        # Raises unless the lock is held.
        self.changed.notify(0)
        self.taken, self.numbers = self.numbers, []
        return 0.0 if self.taken else None

    def step(self) -> bool:
        for number in self.taken:
            self.results.put(2 * number)
        return 0 not in self.taken


def test_a_driver_steps_when_there_is_something_to_do_until_the_end() -> None:
    service = Doubling()
    driver = Driver(Threads(), "test", service.changed, service.take, service.step)
    driver.start()
    for number in (1, 2, 3):
        service.put(number)
        assert service.results.get(timeout=60) == 2 * number
    service.put(0)
    driver.wait()
    assert service.results.get(timeout=60) == 0


def test_without_a_thread_the_same_steps_are_taken_in_turns() -> None:
    service, threads = Doubling(), Threads()
    driver = Driver(threads, "test", service.changed, service.take, service.step)
    assert driver.turn() is None
    service.put(4)
    assert driver.turn() == 0.0
    assert service.results.get_nowait() == 8
    service.put(0)
    assert driver.turn() == ENDED


def test_what_is_no_step_needs_a_thread() -> None:
    with pytest.raises(NotImplementedError, match="test"):
        Threads().worker("test", lambda: None).turn()


def test_a_poller_polls_when_it_is_woken_and_when_the_step_wants() -> None:
    polls: queue.SimpleQueue[int] = queue.SimpleQueue()
    waits: list[float | None] = [None, 0.0, None]

    def poll() -> float | None:
        polls.put(len(waits))
        return waits.pop(0)

    poller = Poller(Threads(), "test", poll)
    poller.start()
    assert polls.get(timeout=60) == 3
    poller.wake()
    assert polls.get(timeout=60) == 2
    # By itself: the step wanted it.
    assert polls.get(timeout=60) == 1
    poller.stop()
    assert polls.empty()


def test_a_step_that_raises_is_polled_again() -> None:
    polls: queue.SimpleQueue[str] = queue.SimpleQueue()
    failures = [ZeroDivisionError()]

    def poll() -> None:
        polls.put("polled")
        if failures:
            raise failures.pop()

    threads = Threads()
    poller = Poller(threads, "test", poll)
    poller.start()
    assert [polls.get(timeout=60) for _ in range(2)] == ["polled"] * 2
    assert threads.deaths["test"] == 1
    poller.stop()


def test_one_that_was_never_started_can_be_stopped() -> None:
    Poller(Threads(), "test", lambda: None).stop()
