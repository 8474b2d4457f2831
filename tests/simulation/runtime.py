"""A simulated runtime: virtual time, one thread, and a seed that decides which service is next.

Services that were started take turns. When none has anything to do, time jumps to the moment that the
first of them waits for. Where a service waits inside a step (for a future, a condition, a pause), the
others go on meanwhile and it comes back when what it waits for is there; a service whose step is under
way gets no turn. If nothing can go on any more, that is a deadlock, and is raised.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty
from typing import Any

from fasti.runtime import ENDED
from fasti.testing.virtual import VirtualClock


class Deadlock(BaseException):
    """Every service waits for another. No `Exception`: services survive those."""


class SimulatedRuntime:
    """Hands out what a `SystemRuntime` does, and drives it."""

    # Who is next is for the seed to decide.
    leads = False

    def __init__(self, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.draws = random.Random(seed)
        self._threads: list[SimulatedThread] = []
        self._deadlock: Deadlock | None = None

    def monotonic(self) -> float:
        return self.clock.tick() / 1e6

    def random(self) -> float:
        return self.draws.random()

    def sleep(self, seconds: float, /) -> None:
        self.run_until(lambda: False, seconds)

    def condition(self, lock: threading.Lock | None = None) -> SimulatedCondition:
        return SimulatedCondition(self, lock)

    def queue(self) -> SimulatedQueue:
        return SimulatedQueue(self)

    def future(self) -> SimulatedFuture:
        return SimulatedFuture(self)

    def thread(
        self,
        name: str,
        run: Callable[[], None],
        turn: Callable[[], float | None] | None = None,
        changed: SimulatedCondition | None = None,
    ) -> SimulatedThread:
        assert turn is not None, f"{name} is no step"
        assert changed is not None, f"{name} waits for nothing"
        return SimulatedThread(self, name, turn, changed)

    def start(self, thread: SimulatedThread) -> None:
        self._threads.append(thread)

    def run_until(self, is_over: Callable[[], object], seconds: float | None = None) -> bool:
        """Lets services take turns until then, or for so long; whether it came to that."""
        end_us = math.inf if seconds is None else self.clock.tick() + math.ceil(seconds * 1e6)
        while not is_over():
            if self._deadlock is not None:
                raise self._deadlock
            now_us = self.clock.tick()
            waiting = [thread for thread in self._threads if not thread.in_turn]
            ready = [thread for thread in waiting if thread.due_us(now_us) <= now_us]
            if ready:
                self._give_turn(self.draws.choice(ready))
                continue
            next_us = min([thread.due_us(now_us) for thread in waiting], default=math.inf)
            # The end may be past, when a service that was given a turn waited for longer.
            next_us = max(min(next_us, end_us), now_us)
            if next_us == math.inf:
                names = ", ".join(thread.name for thread in self._threads if thread.in_turn)
                self._deadlock = Deadlock(f"nothing can go on; in a step: {names or 'none'}")
                raise self._deadlock
            self.clock.move(int(next_us) - now_us, int(next_us) - now_us)
            if next_us >= end_us:
                return bool(is_over())
        return True

    def _give_turn(self, thread: SimulatedThread) -> None:
        if thread.take_turn():
            self._threads.remove(thread)


class SimulatedThread:
    """A service that is given turns from `start` until it has ended."""

    def __init__(
        self,
        runtime: SimulatedRuntime,
        name: str,
        turn: Callable[[], float | None],
        changed: SimulatedCondition,
    ) -> None:
        self._runtime, self.name, self._turn, self._changed = runtime, name, turn, changed
        self.ident: int | None = None
        self.in_turn = self._ended = False
        self._due_us: float = 0
        self._notices = -1

    def start(self) -> None:
        self.ident = id(self)
        self._runtime.start(self)

    def join(self, timeout: float | None = None) -> None:
        self._runtime.run_until(lambda: self._ended, timeout)

    def due_us(self, now_us: int) -> float:
        """When it is to have its next turn."""
        return now_us if self._notices != self._changed.notices else self._due_us

    def take_turn(self) -> bool:
        """Whether it has ended."""
        self.in_turn = True
        try:
            wait_s = self._turn()
        finally:
            self.in_turn = False
        self._notices = self._changed.notices
        self._ended = wait_s == ENDED
        now_us = self._runtime.clock.tick()
        self._due_us = math.inf if wait_s is None else now_us + math.ceil(max(wait_s, 0.0) * 1e6)
        return self._ended


class SimulatedCondition(threading.Condition):
    """Waiting lets others have their turns."""

    def __init__(self, runtime: SimulatedRuntime, lock: threading.Lock | None) -> None:
        super().__init__(lock)
        self._runtime = runtime
        self.notices = 0

    def notify(self, n: int = 1) -> None:
        self.notices += 1

    def notify_all(self) -> None:
        self.notices += 1

    def wait(self, timeout: float | None = None) -> bool:
        seen = self.notices
        state = self._release_save()  # type: ignore[attr-defined]
        try:
            return self._runtime.run_until(lambda: self.notices != seen, timeout)
        finally:
            self._acquire_restore(state)  # type: ignore[attr-defined]

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        state = self._release_save()  # type: ignore[attr-defined]
        try:
            return self._runtime.run_until(predicate, timeout)
        finally:
            self._acquire_restore(state)  # type: ignore[attr-defined]


class SimulatedFuture(Future[Any]):
    """Waiting for its result lets others have their turns."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        super().__init__()
        self._runtime = runtime
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Any:
        if not self._runtime.run_until(self.done, timeout):
            raise TimeoutError
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._runtime.run_until(self.done, timeout):
            raise TimeoutError
        return super().exception()


class SimulatedQueue:
    """Waiting for an item lets others have their turns."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self._runtime = runtime
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._runtime.run_until(lambda: self._items, timeout if block else 0.0):
            raise Empty
        return self._items.popleft()
