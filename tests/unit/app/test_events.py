"""Signals and words reach the one who waits, whichever thread they come to."""

from __future__ import annotations

import os
import signal
import threading

from fasti.app.events import Events


def test_words_come_in_their_order_and_waiting_ends_in_time() -> None:
    with Events() as events:
        assert events.poll() is None
        assert events.get(timeout=0) is None
        events.put("one")
        events.put("two")
        assert [events.get(), events.poll(), events.get(timeout=0)] == ["one", "two", None]
        threading.Thread(target=events.put, args=("three",)).start()
        assert events.get(timeout=30) == "three"
    # The app's last word may come when nobody listens any more.
    events.put("ended")


def test_a_signal_that_another_thread_gets_is_heard() -> None:
    with Events() as events, events.signals():
        # Here the main thread doesn't take signals, as if it were busy elsewhere: another gets it.
        other = threading.Thread(target=_kill_when_masked)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            other.start()
            assert events.get(timeout=30) == "signal"
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.join()


def _kill_when_masked() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)


def test_handlers_of_before_are_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Events() as events, events.signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
