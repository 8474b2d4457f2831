"""Tasks that wait for a consumer's messages, and who wakes them.

Tasks that wait for one message are woken one at a time, in the order in which they came: who is woken
takes what is due, and has the next one woken if there is more. Tasks that wait for a fuller batch are
woken by every arrival. The session's threads ring when something came; for what falls due there is
the loop's own timer, one for all tasks.

Everything is for the loop's thread, but for `ring`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from fasti.aio.holding import LoopHolding
from fasti.aio.home import Home, settle

# A loop sleeps in whole milliseconds; for less than this it is quicker to look again.
_SOON_S = 0.00002
# What is known of the broker's clock ages while we sleep: a sleep that is too short costs another.
_AGEING = 1.0002


class WaitingRoom:
    """Those who wait for one consumer's messages. `held` is set before anybody comes."""

    held: LoopHolding

    def __init__(self, home: Home) -> None:
        self._home = home
        self.waiters: deque[asyncio.Future[None]] = deque()
        self._gatherers: set[asyncio.Future[None]] = set()
        self._timer: asyncio.Handle | None = None

    @property
    def occupied(self) -> bool:
        """Whether a task waits. Any thread may ask."""
        return bool(self.waiters or self._gatherers)

    def ring(self) -> None:
        """What the holding was asked to watch has happened. Any thread may call it."""
        self._home.post(self._look)

    async def await_due(self, until: float | None) -> bool:
        """Suspends until a message may be due; False when `until` (loop's time) or the end came."""
        loop = self._home.loop
        if self.held.ended or (until is not None and loop.time() >= until):
            return False
        self._home.check()
        waiter = loop.create_future()
        self.waiters.append(waiter)
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

    async def await_more(self, count: int, full_at: float) -> None:
        """Suspends until so many messages are due, or the time has come, or the end."""
        loop = self._home.loop
        while not self.held.over:
            # Before looking: what arrives from now on rings.
            self.held.watch(everything=True)
            wake_at = min(full_at, loop.time() + self.held.seconds_until_due(count))
            if wake_at <= loop.time():
                break
            gatherer = loop.create_future()
            self._gatherers.add(gatherer)
            alarm = loop.call_at(wake_at, settle, gatherer)
            try:
                await gatherer
            finally:
                self._gatherers.discard(gatherer)
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
        if not self.waiters:
            return
        loop = self._home.loop
        wait_s = self.held.watch()
        if wait_s <= 0:
            self._wake(len(self.waiters) if self.held.over else 1)
        elif wait_s < _SOON_S:
            self._timer = loop.call_soon(self._look)
        else:
            self._timer = loop.call_later(wait_s * _AGEING, self._look)

    def _wake(self, count: int) -> None:
        while count and self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
