"""Tasks that wait for a consumer's messages, and who wakes them. Nothing here blocks.

Tasks that wait for one message are woken one at a time, in the order in which they came: who is woken
takes what is due, and has the next one woken if there is more. Tasks that wait for a fuller batch are
woken by every arrival. The session's threads ring when something came; for what falls due there is
the loop's own timer, one for all tasks.

Everything is for the loop's thread, but for `notify` and `look_again`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from fasti.aio.home import Home, settle
from fasti.client.machines.holding import Holding
from fasti.client.machines.holdings import Holdings
from fasti.client.machines.run import Run
from fasti.client.session import SLEEP_MAX_S, Taking
from fasti.client.transport import BrokerClock
from fasti.runtime import Runtime

# A loop sleeps in whole milliseconds; for less than this it is quicker to look again.
_SOON_S = 0.00002
# What is known of the broker's clock ages while we sleep: a sleep that is too short costs another.
_AGEING = 1.0002


class WaitingRoom(Taking):
    """The tasks that take one consumer's messages."""

    def __init__(
        self,
        home: Home,
        runtime: Runtime,
        lock: threading.Lock,
        holding: Holding | Holdings,
        clock: BrokerClock,
        wake: Callable[[], None],
    ) -> None:
        super().__init__(runtime, lock, holding, clock, wake)
        self._home = home
        self.waiters: deque[asyncio.Future[None]] = deque()
        self._gatherers: set[asyncio.Future[None]] = set()
        self._timer: asyncio.Handle | None = None

    def notify(self) -> None:
        """What tasks wait for may have happened. Any thread may call it."""
        self._home.post(self._look)

    # What is held

    def take_run(self) -> Run | None:
        """The run whose first held message is due, if there is one; as `await_run`."""
        with self._lock:
            try:
                return self._holding.due_run(self.now())
            finally:
                self._wake()

    def seconds_until_due(self, count: int) -> float:
        """How long until `count` of those held are due; infinite if there are not so many."""
        with self._lock:
            return self._holding.seconds_until_due(count, self.now())

    def watch(self, everything: bool = False) -> float:
        """Seconds until the first message is due; 0 or less: look now. Asks to be notified of what
        is earlier, or of everything that arrives.
        """
        with self._lock:
            wait_s = self._holding.watch(self.now(), everything)
            self._wake()
        return min(wait_s, SLEEP_MAX_S)

    # Waiting

    def _count(self) -> None:
        """The session's threads see how many wait."""
        self._holding.takers = len(self.waiters) + len(self._gatherers)

    async def await_due(self, until: float | None) -> bool:
        """Suspends until a message may be due; False when `until` (loop's time) or the end came."""
        loop = self._home.loop
        if self._holding.ended or (until is not None and loop.time() >= until):
            return False
        self._home.check()
        waiter = loop.create_future()
        self.waiters.append(waiter)
        self._count()
        self._look()
        alarm = None if until is None else loop.call_at(until, settle, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # It may have been woken for a message that it will not take now.
            self._leave(waiter)
            self.look_soon()
            raise
        finally:
            self._leave(waiter)
            if alarm is not None:
                alarm.cancel()
        self._home.rested()
        return True

    def _leave(self, waiter: asyncio.Future[None]) -> None:
        with suppress(ValueError):
            self.waiters.remove(waiter)
        self._count()

    async def await_more(self, count: int, full_at: float) -> None:
        """Suspends until so many messages are due, or the time has come, or the end."""
        loop = self._home.loop
        while not self._holding.over:
            # Before looking: what arrives from now on rings.
            self.watch(everything=True)
            wake_at = min(full_at, loop.time() + self.seconds_until_due(count))
            if wake_at <= loop.time():
                break
            gatherer = loop.create_future()
            self._gatherers.add(gatherer)
            self._count()
            alarm = loop.call_at(wake_at, settle, gatherer)
            try:
                await gatherer
            finally:
                self._gatherers.discard(gatherer)
                self._count()
                alarm.cancel()
        self._home.rested()

    def look_soon(self) -> None:
        """Has the next one woken, if there is something for it."""
        if self.waiters:
            self._home.loop.call_soon(self._look)

    def _look(self) -> None:
        """Wakes a task if a message is due, or sees to it that one will be woken in time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for gatherer in self._gatherers:
            settle(gatherer)
        self._gatherers.clear()
        self._count()
        if not self.waiters:
            return
        loop = self._home.loop
        wait_s = self.watch()
        if wait_s <= 0:
            self._wake_first(len(self.waiters) if self._holding.over else 1)
        elif wait_s < _SOON_S:
            self._timer = loop.call_soon(self._look)
        else:
            self._timer = loop.call_later(wait_s * _AGEING, self._look)

    def _wake_first(self, count: int) -> None:
        while count and self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        self._count()
