"""What a program asks of the machine that runs it: clocks, random draws, threads, and ways to wait.

A shard is handed a `Runtime`, and its services get all of these from it; the threads of producers and
consumers get them from their transport. `SystemRuntime` is the machine. Tests have a simulated one
(`tests/simulation/runtime.py`): time is virtual, everything happens in one thread, and a seed decides
which service is next.

A service that is a step runs on both. A thread calls its steps one after the other and waits in
between; a runtime without threads calls `turn` instead, which says when it is to be called again. What
a step waits for inside (a future, a condition, a pause) comes from the runtime too, so that another
service can go on meanwhile.

There are three clocks. *Wall* time is UTC, and can be set. *Elapsed* time can't: it goes on evenly from
any origin, also while the machine is suspended (where the system tells). *Ticks* are monotonic time
too, but stand still while the machine is suspended: leases run on them, because no consumer works then
either.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

# What `turn` returns when the service has ended, instead of a number of seconds.
ENDED = -1.0


class Ticking(Protocol):
    """A clock of which only ticks are read."""

    def tick(self) -> int:
        """Monotonic time from any origin, in microseconds."""


class MachineClock(Ticking, Protocol):
    """A machine's clocks. Any thread may read them."""

    # What tells this boot of the machine from others, during which elapsed time goes on; empty: unknown.
    boot: str

    def wall_ns(self) -> int:
        """UTC, in nanoseconds."""

    def elapsed_ns(self) -> int:
        """Time since any moment, in nanoseconds, suspension included."""


class Thread(Protocol):
    """A thread that was made and may have been started."""

    @property
    def ident(self) -> int | None:
        """The system's number of it; None before it was started."""

    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...


class ItemQueue(Protocol):
    """Items from one thread to another."""

    def put(self, item: Any) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> Any: ...


class Runtime(Protocol):
    """The machine, or a simulated one. Any thread may call anything."""

    clock: MachineClock
    # Whether a thread that brings a service work may do a turn of it.
    leads: bool

    def monotonic(self) -> float:
        """Seconds from any origin, for intervals."""

    def random(self) -> float:
        """A draw from 0 to 1."""

    def sleep(self, seconds: float, /) -> None:
        """Waits for so long."""

    def condition(self, lock: threading.Lock | None = None) -> threading.Condition:
        """A condition, on a lock of its own unless one is given."""

    def queue(self) -> ItemQueue:
        """An empty queue."""

    def future(self) -> Future[Any]:
        """A future that can't be cancelled: what was handed over happens, and will be answered."""

    def thread(
        self,
        name: str,
        run: Callable[[], None],
        turn: Callable[[], float | None] | None = None,
        changed: threading.Condition | None = None,
    ) -> Thread:
        """A thread that runs `run`.

        A runtime without threads calls `turn` instead, again and again: after as many seconds as it
        returned, or when `changed` was notified, until it returns `ENDED`.
        """


def may_be_interrupted() -> bool:
    """Whether this is the main thread: a handler of signals may raise in it, in the middle of anything.

    No step of a service is done there: it would end midway. Nor is a service woken there if another
    thread can do it: one interrupt in `Condition.notify`, and a later notice wakes nobody.
    """
    return threading.get_ident() == threading.main_thread().ident


def _elapsed() -> Callable[[], int]:
    # CLOCK_BOOTTIME is Linux's; macOS' CLOCK_MONOTONIC goes on during sleep, Python's does not.
    which = getattr(time, "CLOCK_BOOTTIME", None)
    if which is None and sys.platform == "darwin":
        which = time.CLOCK_MONOTONIC
    return time.monotonic_ns if which is None else partial(time.clock_gettime_ns, which)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except (OSError, ValueError):
        return ""


class SystemClock:
    """The machine's own clocks."""

    boot = _boot()

    # Read for every message that an embedded consumer takes: no Python function in between.
    wall_ns = staticmethod(time.time_ns)
    elapsed_ns = staticmethod(_elapsed())

    def tick(self) -> int:
        return time.monotonic_ns() // 1000


class SystemRuntime:
    """The machine that the program runs on; with another clock, all but its time."""

    # What the standard library has is handed out as it is: nothing here costs a call more.
    monotonic = staticmethod(time.monotonic)
    random = staticmethod(random.random)
    sleep = staticmethod(time.sleep)
    condition = threading.Condition
    queue = SimpleQueue
    leads = True

    def __init__(self, clock: MachineClock | None = None) -> None:
        self.clock = clock or SystemClock()

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        return future

    def thread(
        self,
        name: str,
        run: Callable[[], None],
        turn: Callable[[], float | None] | None = None,
        changed: threading.Condition | None = None,
    ) -> Thread:
        return threading.Thread(target=run, name=name, daemon=True)
