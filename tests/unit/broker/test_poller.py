"""A thread around a step: it polls at once, when it is woken, and when the step wanted to."""

from __future__ import annotations

import queue

from fasti.broker.threads import Poller, Threads


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
