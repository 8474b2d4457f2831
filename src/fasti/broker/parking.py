"""Services that have had nothing to do for a while let their threads go.

A process with many shards has several services for each, and most of them wait most of the time. Where
threads are parked, a driver (threads.py) that has waited for `PARK_AFTER_S` and expects nothing soon ends
its thread and is *parked*: the next notice on its condition starts another, and so does an alarm when the
moment comes that the service wanted to be called at. One thread has the alarms of all. Nothing else of a
service knows of it; a broker with one shard doesn't park.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasti.broker.threads import Driver, Poller, Threads

# So long it waits before its thread goes; and what comes sooner is waited for.
PARK_AFTER_S = 2.0
# So much before the moment it is there again: a thread takes some time to start.
_EARLY_S = 0.005


class ParkingCondition(threading.Condition):
    """A condition on which drivers may be parked: who is notified has a thread again."""

    def __init__(self) -> None:
        super().__init__()
        self._parked: list[Driver] = []

    def park(self, driver: Driver) -> None:
        """With the lock: its thread is about to end."""
        self._parked.append(driver)

    def unpark(self) -> None:
        """With the lock: all that are parked here have threads again."""
        while self._parked:
            # First the thread: one that can't be started now may be by the next notice.
            self._parked[-1].resume_thread()
            self._parked.pop()

    def notify(self, n: int = 1) -> None:
        """Also by way of `notify_all`."""
        super().notify(n)
        if self._parked:
            self.unpark()


class Alarms:
    """When those that are parked want to be called, and the thread that does so."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._monotonic = threads.runtime.monotonic
        self._lock = threading.Lock()
        self._at: dict[ParkingCondition, float] = {}
        self._poller: Poller | None = None

    def start(self) -> None:
        """Begins, with the watchdog."""
        from fasti.broker.threads import Poller

        self._poller = Poller(self._threads, "fasti-alarms", self._poll, parks=False)
        self._poller.start()

    def stop(self) -> None:
        """Nobody is called any more."""
        if self._poller is not None:
            self._poller.stop()

    def set(self, condition: ParkingCondition, at: float) -> None:
        """Those who are parked there are called then, by the monotonic clock, or sooner."""
        with self._lock:
            first = min(self._at.values(), default=None)
            self._at[condition] = min(at, self._at.get(condition, at))
        if self._poller is not None and (first is None or at < first):
            self._poller.wake()

    def _poll(self) -> float | None:
        """Calls those whose time has come; when the next one's does."""
        now = self._monotonic()
        with self._lock:
            due = [each for each, at in self._at.items() if at - _EARLY_S <= now]
            for condition in due:
                del self._at[condition]
        for condition in due:
            with condition:
                condition.unpark()
        with self._lock:
            first = min(self._at.values(), default=None)
        return None if first is None else first - _EARLY_S - self._monotonic()
