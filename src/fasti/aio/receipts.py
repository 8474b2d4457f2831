"""Receipts that are awaited: what a producer's `send` gives back, and the answer that comes later.

The answer is one for a whole batch of sends, so the loop is woken once for all who await one of
them. Everything here is for the loop's thread, but for `Answers.settled`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.aio.home import Home, settle, within
from fasti.client import receipts as sync
from fasti.client.durations import Duration, seconds
from fasti.client.outbox import Outbox
from fasti.client.outboxes import Outboxes
from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.receipts import Shipment
from fasti.errors import TimedOut


class Answers:
    """Tasks that wait for what an outbox tells: a parcel's answer, or any."""

    def __init__(self, home: Home, box: Outbox | Outboxes) -> None:
        self._home = home
        self._awaited: dict[Shipment, list[asyncio.Future[None]]] = {}
        self._any: set[asyncio.Future[None]] = set()
        box.on_settled = self.settled

    def settled(self, parcel: Shipment) -> None:
        """An answer came. Called by the producer's threads; wakes the loop if a task waits."""
        if self._any or parcel in self._awaited:
            self._home.post(partial(self._tell, parcel))

    def _tell(self, parcel: Shipment) -> None:
        for future in (*self._awaited.pop(parcel, ()), *self._any):
            settle(future)
        self._any.clear()

    async def of(self, parcel: Shipment, limit_s: float | None = None) -> None:
        """Waits until a parcel has its answer, or for so long: then it raises `timed_out`."""
        if parcel.answered.is_set():
            return
        self._home.check()
        waiting = self._home.loop.create_future()
        self._awaited.setdefault(parcel, []).append(waiting)
        # The answer may have come before we were on the list.
        if parcel.answered.is_set():
            self._tell(parcel)
        timer = None if limit_s is None else self._home.loop.call_later(limit_s, settle, waiting)
        try:
            await waiting
        finally:
            if timer is not None:
                timer.cancel()
            others = self._awaited.get(parcel)
            if others is not None and waiting in others:
                others.remove(waiting)
                if not others:
                    del self._awaited[parcel]
        if not parcel.answered.is_set():
            raise sync.no_receipt(limit_s)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until it holds; looks again after every answer."""
        while not condition():
            self._home.check()
            waiting = self._home.loop.create_future()
            self._any.add(waiting)
            try:
                # The answer that makes it hold may have come before we were on the list.
                if condition():
                    return
                await waiting
            finally:
                self._any.discard(waiting)


class Receipt:
    """What became of one `send`, as soon as it is durable: `(await receipt).id`.

    If it is thrown away unread and the send failed, that is counted (`producer.unread_failures`),
    logged, given to `on_failure`, and raised by the producer's next `flush` or `close`; other sends
    go on.
    """

    __slots__ = ("_answers", "_receipt")

    def __init__(self, receipt: sync.Receipt, answers: Answers) -> None:
        self._receipt = receipt
        self._answers = answers

    @property
    def done(self) -> bool:
        """Whether the answer is here."""
        return self._receipt.done

    def __await__(self) -> Generator[Any, None, Outcome]:
        return self._outcome().__await__()

    async def _outcome(self, limit_s: float | None = None) -> Outcome:
        parcel = self._receipt._parcel
        await self._answers.of(parcel, parcel.timeout_s if limit_s is None else limit_s)
        return self._receipt.result(0)

    async def result(self, timeout: Duration | None = None) -> Outcome:
        """Waits until the send is durable, like `await receipt`; at most `timeout`, by default that of
        `connect`.

        Raises `timed_out` when there is no answer in time, and the error that refused the batch.
        A status other than `ok`, such as `conflict`, is no error here: read it.
        """
        return await self._outcome(seconds(timeout))

    def wait(self, timeout_s: float) -> Outcome:
        """The outcome, for a thread that may block. Raises as `result`."""
        return self._receipt.result(timeout_s)

    def disown(self) -> None:
        """The caller takes care of a failure: it is raised nowhere else."""
        self._receipt.disown()

    def __repr__(self) -> str:
        return repr(self._receipt)


class PendingBatch:
    """What `send_batch(..., wait=False)` gives: await it for the outcomes."""

    __slots__ = ("_answers", "_parcels", "_pending")

    def __init__(
        self, parcels: list[Shipment], answers: Answers, places: NDArray[np.intp] | None = None
    ) -> None:
        self._parcels = parcels
        self._pending = sync.PendingBatch(parcels, places)
        self._answers = answers

    @property
    def done(self) -> bool:
        """Whether all answers are here."""
        return self._pending.done

    def __await__(self) -> Generator[Any, None, Outcomes]:
        return self._outcomes().__await__()

    async def _outcomes(self) -> Outcomes:
        for parcel in self._parcels:
            await self._answers.of(parcel)
        return self._pending.result(0)

    async def result(self, timeout: Duration | None = None) -> Outcomes:
        """Waits until all is durable. Raises `timed_out`, or the error that refused a batch."""
        return await within(
            timeout,
            self._outcomes(),
            lambda: TimedOut(f"no receipt within {timeout}; the send is still under way"),
        )
