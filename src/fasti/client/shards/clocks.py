"""The clocks of several broker processes: that of the one that has a shard, and the lowest of all.

A message is held by the clock of the process that leased it. What is about no shard in particular goes
by the lowest clock: whoever waits for that is early for nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from fasti.client import forking
from fasti.client.clock import ClockEstimate


class _Listeners:
    """Whom to tell when the time has leapt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        forking.register(self)

    def _fork_locks(self) -> list[forking.Lock]:
        return [self._lock]

    def _forked(self) -> None:
        """Whoever listens has its own way to begin anew."""

    def add(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Returns how to stop."""
        with self._lock:
            self._listeners.append(moved)

        def stop() -> None:
            with self._lock:
                if moved in self._listeners:
                    self._listeners.remove(moved)

        return stop

    def tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for moved in listeners:
            moved()


class ShardClock:
    """That of the process that has a shard, also when that becomes another one. Any thread."""

    def __init__(self, estimate: ClockEstimate) -> None:
        self._listeners = _Listeners()
        self._estimate = estimate
        self._stop = estimate.listen(self._listeners.tell)

    def go_by(self, estimate: ClockEstimate) -> None:
        """Another process has the shard."""
        if estimate is self._estimate:
            return
        self._stop()
        self._estimate, self._stop = estimate, estimate.listen(self._listeners.tell)
        self._listeners.tell()

    @property
    def unsure_us(self) -> int:
        """How much further the clock may be."""
        return self._estimate.unsure_us

    def now_us(self) -> int:
        """The lower end of what it shows."""
        return self._estimate.now_us()

    def seconds_until(self, at_us: int) -> float:
        """How long to sleep until `now_us()` has reached it."""
        return self._estimate.seconds_until(at_us)

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Calls `moved` whenever the time has leapt; returns how to stop that."""
        return self._listeners.add(moved)


class LowestClock:
    """The lowest of those of all processes that were heard of. Any thread."""

    def __init__(self, clocks: Sequence[ShardClock]) -> None:
        self._clocks = list(clocks)

    @property
    def unsure_us(self) -> int:
        """How much further the clock may be: that of which least is known."""
        return max(clock.unsure_us for clock in self._clocks)

    def now_us(self) -> int:
        """The lower end of what the lowest shows; 0 while none is known."""
        # One of which nothing was heard shows 0: it decides nothing until it answers.
        return min((now for clock in self._clocks if (now := clock.now_us())), default=0)

    def seconds_until(self, at_us: int) -> float:
        """How long to sleep until `now_us()` has reached it; 0 or less if it has."""
        return (at_us - self.now_us()) / 1_000_000

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Calls `moved` whenever one of them has leapt; returns how to stop that."""
        stops = [clock.listen(moved) for clock in self._clocks]

        def stop() -> None:
            for each in stops:
                each()

        return stop
