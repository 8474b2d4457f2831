"""Noticing that the machine's clock was set, where the system tells."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasti.broker.threads import Threads

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
