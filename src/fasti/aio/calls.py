"""Calls from tasks of an event loop: any number of them wait at once, without a thread each.

The inbox and the thread that takes the answers are those of the synchronous client beneath.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from fasti.aio.home import Home, settle, within
from fasti.aio.producer import Producer
from fasti.aio.receipts import Receipt
from fasti.client import calls as sync
from fasti.client.calls import Answer, Calls
from fasti.client.durations import Duration
from fasti.client.outcomes import Outcome
from fasti.client.transport import BrokerClock
from fasti.errors import Closed, FastiError

_PRODUCERS_MAX = 64
_WITHDRAW_S = 5.0


class LoopPending(sync.Pending):
    """A task that waits for its answer."""

    def __init__(self, home: Home, deadline_us: int) -> None:
        super().__init__(deadline_us)
        self._home = home
        self._woken = home.loop.create_future()

    def settle(self, answer: Answer | None, error: FastiError | None = None) -> None:
        """The answer is here. Called by the inbox's thread."""
        super().settle(answer, error)
        self._home.post(partial(settle, self._woken))

    async def settled(self, clock: BrokerClock) -> None:
        """Waits until it is settled or its time is over."""
        alarm = self._alarm(clock)
        try:
            await self._woken
        finally:
            if alarm is not None:
                alarm.cancel()

    def _alarm(self, clock: BrokerClock) -> asyncio.TimerHandle | None:
        """The loop's own timer; in virtual time there is none, because the clock calls its listeners."""
        left_s = clock.seconds_until(self.deadline_us)
        if left_s == math.inf:
            return None
        return self._home.loop.call_later(max(0.0, left_s), settle, self._woken)


class LoopCalls:
    """All calls of one asyncio client. For its loop."""

    def __init__(
        self, home: Home, calls: Calls, clock: BrokerClock, produce: Callable[..., Producer]
    ) -> None:
        self._home = home
        self._calls = calls
        self._clock = clock
        self._produce = produce
        self._producers: OrderedDict[tuple[str, str | None], Producer] = OrderedDict()

    async def call(
        self,
        topic: str,
        payload: bytes,
        timeout: Duration,
        owner: str | None,
        headers: Mapping[str, str] | None,
        **given: Any,
    ) -> Answer:
        """Sends a request and waits for its answer."""
        self._home.check()
        length_us = sync.timeout_us(timeout)
        inbox = self._calls.open_inbox()
        if inbox is None:
            inbox = await self._home.run(self._calls.inbox)
        begun = self._calls.begin(inbox, length_us, headers, partial(LoopPending, self._home))
        pending = begun.pending
        assert isinstance(pending, LoopPending)
        receipt: Receipt | None = None
        try:
            receipt = await self._producer(topic, owner).send(
                payload, headers=begun.headers, **given
            )
            # The caller gets its error here; `flush` and `close` don't raise it again.
            receipt.disown()
            # Real time, whatever the broker's clock does: only for a broker that doesn't answer.
            taken = within(timeout, _awaited(receipt), lambda: sync.not_sent(topic, timeout))
            outcome = sync.accepted(topic, await taken)
            await pending.settled(self._clock)
        except asyncio.CancelledError:
            # The answer is not wanted any more: a request that no consumer has taken is withdrawn.
            if receipt is not None:
                with suppress(Closed):
                    self._home.submit(partial(self._withdraw, topic, receipt, owner))
            raise
        finally:
            inbox.book.take(begun.name)
        if pending.answer is not None:
            return pending.answer
        return await self._home.run(self._calls.conclude, pending, topic, outcome, timeout, owner)

    def _withdraw(self, topic: str, receipt: Receipt, owner: str | None) -> None:
        """In a thread: as soon as the broker has the request."""
        with suppress(FastiError):
            outcome = receipt.wait(_WITHDRAW_S)
            if outcome.ok:
                self._calls.withdraw(topic, outcome.id, owner)

    def _producer(self, topic: str, owner: str | None) -> Producer:
        name = (topic, owner)
        made = self._producers.get(name)
        if made is None:
            made = self._producers[name] = self._produce(topic, owner=owner)
            if len(self._producers) > _PRODUCERS_MAX:
                self._producers.popitem(last=False)
        self._producers.move_to_end(name)
        return made


async def _awaited(receipt: Receipt) -> Outcome:
    return await receipt
