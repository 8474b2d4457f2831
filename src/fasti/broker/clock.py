"""The broker's two clocks: wall time for due times, monotonic time for leases.

The wall clock can be set, and then due times come early or late in true time. That can't be
undone, only noticed: `WatchedClock` compares the two clocks whenever it is read, and says when
they have moved apart by more than clocks drift. Where the system can tell that its clock was set
(Linux), `watch_settings` wakes up at that moment, so that nobody sleeps on past what is due now.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

# Beyond this a difference is a step; and no disciplined clock drifts by more than that share.
STEP_US = 1_000_000
_DRIFT = 0.001
# Two readings that lie further apart than this say nothing about a difference.
_READING_US = 10_000


class Clock(Protocol):
    """Both in microseconds. A virtual one stands in for it in tests."""

    def now_us(self) -> int:
        """Wall time, UTC."""

    def tick(self) -> int:
        """Monotonic time from any origin."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def tick(self) -> int:
        return time.monotonic_ns() // 1000


class WatchedClock:
    """The machine's clocks, or others; `stepped(by_us)` is called when the wall clock has leapt.

    Any thread may read it, and is the one that calls `stepped`.
    """

    def __init__(self, stepped: Callable[[int], None], clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._stepped = stepped
        self._lock = threading.Lock()
        self._seen = (self._clock.now_us(), self._clock.tick())

    def tick(self) -> int:
        return self._clock.tick()

    def now_us(self) -> int:
        before = self._clock.tick()
        now_us = self._clock.now_us()
        after = self._clock.tick()
        if after - before < _READING_US:
            self._compare(now_us, before)
        return now_us

    def _compare(self, now_us: int, tick: int) -> None:
        seen_us, seen_tick = self._seen
        elapsed = tick - seen_tick
        by_us = now_us - seen_us - elapsed
        if abs(by_us) <= STEP_US + abs(elapsed) * _DRIFT:
            # Taken over now and then, so that a slow drift never adds up to a step.
            if elapsed > STEP_US:
                self._seen = now_us, tick
            return
        with self._lock:
            if self._seen != (seen_us, seen_tick):
                return  # Another thread has noticed it too.
            self._seen = now_us, tick
        self._stepped(by_us)


_CLOCK_REALTIME = 0
_TIMER_ABSTIME = 1
_CANCEL_ON_SET = 2
_CENTURIES_S = 1 << 40


def watch_settings(changed: Callable[[], None]) -> bool:
    """Calls `changed`, in a thread of its own, whenever the system's clock is set.

    It sleeps in between: a timer that never rings is cancelled by the kernel when the clock is
    set. False where the system has no such thing; then steps are noticed at the next reading.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "timerfd_create"):
        return False
    timer = library.timerfd_create(_CLOCK_REALTIME, os.O_CLOEXEC)
    if timer < 0:
        return False

    def watch() -> None:
        # struct itimerspec: no interval, and a moment that never comes.
        forever = struct.pack("@llll", 0, 0, _CENTURIES_S, 0)
        while True:
            library.timerfd_settime(timer, _TIMER_ABSTIME | _CANCEL_ON_SET, forever, None)
            try:
                os.read(timer, 8)
            except OSError as error:
                if error.errno != errno.ECANCELED:
                    return
                changed()

    threading.Thread(target=watch, name="fasti-clock", daemon=True).start()
    return True
