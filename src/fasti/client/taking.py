"""How user threads take a consumer's messages: they wait on a condition of its lock."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fasti.client.machines.holding import Holding
from fasti.client.machines.holdings import Holdings
from fasti.client.machines.now import Now
from fasti.client.machines.run import Run
from fasti.client.transport import BrokerClock
from fasti.runtime import Runtime

# A longer sleep than this is cut, so that a clock that leapt is noticed.
SLEEP_MAX_S = 60.0


class Taking:
    """The takers of one consumer. `wake` looks at the machine's flags; it is called with the lock."""

    def __init__(
        self,
        runtime: Runtime,
        lock: threading.Lock,
        holding: Holding | Holdings,
        clock: BrokerClock,
        wake: Callable[[], None],
    ) -> None:
        self._lock, self._holding, self._clock, self._wake = lock, holding, clock, wake
        self._changed = runtime.condition(lock)
        self.monotonic = runtime.monotonic

    def now(self) -> Now:
        """What the clocks show."""
        clock = self._clock
        return Now(self.monotonic(), clock.now_us(), clock.unsure_us, clock.seconds_until)

    def notify(self) -> None:
        """With the lock: what takers wait for may have happened."""
        self._changed.notify_all()

    def look_again(self) -> None:
        """The clock may have leapt."""
        with self._lock:
            self._holding.stir()
            self._wake()

    def await_run(self, until: float | None) -> Run | None:
        """The run whose first held message is due; None at `until` (monotonic), or at the end.

        The caller takes from it by `take_each` or `take_due` and then gives it to `put_back`. Raises
        what ended the session.
        """
        holding = self._holding
        with self._lock:
            while True:
                now = self.now()
                run = holding.due_run(now)
                if run is not None or holding.ended:
                    self._wake()
                    return run
                wait_s = min(holding.watch(now), SLEEP_MAX_S)
                self._wake()
                if until is not None:
                    wait_s = min(wait_s, until - now.s)
                    if until <= now.s:
                        return None
                holding.takers += 1
                self._changed.wait(wait_s)
                holding.takers -= 1

    def put_back(self, run: Run) -> None:
        """What was not taken of a run waits on.

        It never waits for the lock: an iterator that is thrown away puts back wherever Python collects
        it, in the middle of the session's own work, too. Then the next call that takes does it.
        """
        self._holding.put_back(run)
        if self._lock.acquire(blocking=False):
            try:
                self._holding.collect()
                self._wake()
            finally:
                self._lock.release()

    def take_due(self, run: Run, count: int) -> tuple[int, int]:
        """Up to `count` rows of the run that are due now, as [begin, end)."""
        with self._lock:
            rows = self._holding.take_due(run, count, self.now())
            self._wake()
            return rows
