"""The clocks of the machine: what everything else about time is handed.

Three of them. *Wall* time is UTC, and can be set. *Elapsed* time can't: it goes on evenly from any
origin, also while the machine is suspended (where the system tells). *Ticks* are monotonic time
too, but stand still while the machine is suspended: leases run on them, because no consumer works
then either.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fasti.broker.threads import Threads


class Ticking(Protocol):
    """What can be asked for ticks."""

    def tick(self) -> int:
        """Monotonic time from any origin, in microseconds."""


class MachineClock(Ticking, Protocol):
    """A virtual one stands in for it in tests. Any thread may read it."""

    # What tells this boot of the machine from others, during which elapsed time goes on; empty: unknown.
    boot: str

    def wall_ns(self) -> int:
        """UTC, in nanoseconds."""

    def elapsed_ns(self) -> int:
        """Time since any moment, in nanoseconds, suspension included."""


def _elapsed() -> Callable[[], int]:
    # CLOCK_BOOTTIME is Linux's; macOS' CLOCK_MONOTONIC goes on during sleep, Python's does not.
    which = getattr(time, "CLOCK_BOOTTIME", None)
    if which is None and sys.platform == "darwin":
        which = time.CLOCK_MONOTONIC
    return time.monotonic_ns if which is None else partial(time.clock_gettime_ns, which)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class SystemClock:
    """The machine's own."""

    boot = _boot()

    # Read for every message that an embedded consumer takes: no Python function in between.
    wall_ns = staticmethod(time.time_ns)
    elapsed_ns = staticmethod(_elapsed())

    def tick(self) -> int:
        return time.monotonic_ns() // 1000


_CLOCK_REALTIME = 0
_TIMER_ABSTIME = 1
_CANCEL_ON_SET = 2
_CENTURIES_S = 1 << 40


def watch_settings(changed: Callable[[], None], threads: Threads) -> bool:
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
                    raise
                worker.busy()
                changed()
            worker.idle()

    worker = threads.worker("fasti-clock", watch)
    worker.start()
    return True
