"""Producers: putting messages at their moments, from tasks of an event loop.

Sends are gathered by the synchronous SDK's outbox, and its threads send them. `await send(...)`
returns when the message is in the buffer, which is at once unless the buffer is full; `await
receipt` returns when it is durable. Any number of tasks of one loop may share a producer.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sized
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal, overload

from fasti.aio.closing import AsyncClosing
from fasti.aio.home import Home, within
from fasti.aio.receipts import Answers, PendingBatch, Receipt
from fasti.client import producer as sync
from fasti.client.columns import message_batch
from fasti.client.durations import Duration
from fasti.client.outbox import Outbox
from fasti.client.outboxes import Outboxes
from fasti.client.outcomes import Outcomes
from fasti.client.receipts import Shipment
from fasti.errors import Closed, Overloaded, TimedOut

# So many rows are converted in less time than a thread takes to answer.
_ROWS_AT_ONCE = 256


class Producer(AsyncClosing):
    """Made by `client.producer(topic)`; `async with` flushes and closes it at its end.

        producer = client.producer("emails")
        receipt = await producer.send(b"hello", delay="5m", key="user-7")
        (await receipt).id

    `failed` counts the messages that came out otherwise than asked, `unread_failures` those of them
    whose receipts were thrown away.
    """

    def __init__(self, home: Home, producer: sync.Producer, max_block_s: float) -> None:
        self.topic = producer.topic
        self.owner = producer.owner
        self._home = home
        self._producer = producer
        self._box: Any = producer.outbox
        # A write that waits would hold up the loop.
        self._box.leads = False
        self._answers = Answers(home, self._box)
        self._max_block_s = max_block_s
        # The client keeps those that have something under way, so here is nothing left to send.
        self._gone = weakref.finalize(self, _end_quietly, home, self._box)
        self._gone.atexit = False

    @property
    def failed(self) -> int:
        """How many messages were refused, or came out as something else than `ok`."""
        return self._producer.failed

    @property
    def unread_failures(self) -> int:
        """How many of those had a receipt that was thrown away unread."""
        return self._producer.unread_failures

    @property
    def busy(self) -> bool:
        """Whether something has no receipt yet."""
        with self._box.lock:
            mark = self._box.machine.mark()
            self._box.wake()
            return not self._box.machine.answered(mark)

    async def send(
        self,
        payload: bytes,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: int | datetime | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        priority: int | None = None,
        subject: str | None = None,
        partition: int | None = None,
        expires: Duration | datetime | None = None,
        on_conflict: sync.OnConflict = "reject",
    ) -> Receipt:
        """Puts one message: after `delay`, `at` an aware datetime, or now. One of them, or `due`: the
        same moment as UTC microseconds.

        Returns when the message is in the buffer: at once, unless that is full. `await receipt`
        waits until it is durable. `key` is your own name for it, by which it can be changed until
        it is delivered; when a live message has the key, `on_conflict` says what happens: `reject`
        answers `conflict`, `replace` makes that message new, `keep` leaves it and answers
        `duplicate`. `priority`, `subject`, `partition` and `expires` as for `fasti.Producer.send`. If the task
        is cancelled here, nothing was sent.

        Raises `invalid_argument` on bad input, `overloaded` when the buffer stays full for
        `max_block`, `closed`. That other sends failed stops nothing here.
        """
        home, box = self._home, self._box
        if time.monotonic() >= home.breathe_at:
            await home.breathe()
        with box.lock:
            full = box.machine.full
        if full:
            await self._room()
        if not self._producer._ready:
            await home.run(self._producer._get_ready)
        receipt = self._producer.send(
            payload,
            delay=delay,
            at=at,
            due=due,
            key=key,
            headers=headers,
            content_type=content_type,
            priority=priority,
            subject=subject,
            partition=partition,
            expires=expires,
            on_conflict=on_conflict,
        )
        return Receipt(receipt, self._answers)

    async def _room(self) -> None:
        """Waits until the outbox takes more without blocking. Raises `overloaded`, `closed`."""
        await within(
            self._max_block_s,
            self._answers.until(self._has_room),
            lambda: Overloaded(
                f"the buffer of {self.topic!r} was full for {self._max_block_s} s",
                retry_after_us=100_000,
            ),
        )
        self._home.rested()

    def _has_room(self) -> bool:
        with self._box.lock:
            return not self._box.machine.full

    @overload
    async def send_batch(
        self,
        payloads: Any,
        *,
        at: Any = ...,
        due: Any = ...,
        delay: Any = ...,
        key: Any = ...,
        headers: Any = ...,
        content_type: Any = ...,
        atomic: bool = ...,
        on_conflict: sync.OnConflict = ...,
        stage: str = ...,
        priority: Any = ...,
        subject: Any = ...,
        partition: int | None = ...,
        expires: Any = ...,
        wait: Literal[True] = ...,
        timeout: Duration | None = ...,
    ) -> Outcomes: ...

    @overload
    async def send_batch(
        self,
        payloads: Any,
        *,
        at: Any = ...,
        due: Any = ...,
        delay: Any = ...,
        key: Any = ...,
        headers: Any = ...,
        content_type: Any = ...,
        atomic: bool = ...,
        on_conflict: sync.OnConflict = ...,
        stage: str = ...,
        priority: Any = ...,
        subject: Any = ...,
        partition: int | None = ...,
        expires: Any = ...,
        wait: Literal[False],
        timeout: Duration | None = ...,
    ) -> PendingBatch: ...

    async def send_batch(
        self,
        payloads: Any,
        *,
        at: Any = None,
        due: Any = None,
        delay: Any = None,
        key: Any = None,
        headers: Any = None,
        content_type: Any = None,
        atomic: bool = False,
        on_conflict: sync.OnConflict = "reject",
        stage: str = "",
        priority: Any = None,
        subject: Any = None,
        partition: int | None = None,
        expires: Any = None,
        wait: bool = True,
        timeout: Duration | None = None,
    ) -> Outcomes | PendingBatch:
        """Puts many messages: an outcome for each row, in order; arguments as in `fasti.Producer`.

            (await producer.send_batch([b"a", b"b"], delay="1h")).all_ok
            pending = await producer.send_batch(table, wait=False)   # more while it is under way
            (await pending).ids

        With `atomic`, all rows or none; otherwise large batches travel in pieces, one behind the
        other, and a task that is cancelled here may have sent some of them. Raises what `send`
        raises, and with `wait` the error that refused the batch or `timed_out`.
        """

        def cut() -> sync.Cut:
            batch = message_batch(
                payloads, due, delay, key, headers, content_type, priority, subject, at, expires
            )
            return self._producer.cut(batch, on_conflict, atomic, sync.checked_partition(partition))

        # Many rows take a while to convert, which is not the loop's to wait for.
        small = isinstance(payloads, Sized) and len(payloads) <= _ROWS_AT_ONCE
        small = small and self._producer._ready
        await self._home.breathe()
        cuts = cut() if small else await self._home.run(cut)
        parcels: list[Shipment] = []
        pending = PendingBatch(parcels, self._answers, cuts.places)
        for box, piece in cuts.pieces:
            if not self._has_room():
                await self._room()
            with box.lock:
                parcels.append(box.add(piece, on_conflict, atomic, stage, partition))
        return await pending.result(timeout) if wait else pending

    async def _throw(self) -> None:
        failures = self._box.failures
        if failures.pending:
            await self._home.run(failures.throw)

    async def flush(self, timeout: Duration | None = None) -> None:
        """Waits until everything sent so far is durable or has failed.

        Raises `timed_out`, and `rows_failed` for failures whose receipts were thrown away unread,
        after everything was sent; each is raised once.
        """
        await self.settle(timeout)
        await self._throw()

    async def settle(self, timeout: Duration | None = None) -> None:
        """Waits like `flush`, and leaves failures to the next `flush` or `close`."""
        with self._box.lock:
            mark = self._box.machine.mark()
            self._box.wake()
        await within(
            timeout,
            self._answers.until(lambda: self._box.machine.answered(mark)),
            lambda: TimedOut(f"not everything sent to {self.topic!r} was answered in {timeout}"),
        )

    async def close(self, timeout: Duration | None = None) -> None:
        """Flushes, then takes nothing more. Raises what `flush` raises; again: nothing happens."""
        if self._home.closing:
            return
        try:
            await self.settle(timeout)
        finally:
            await self._home.run_through(self._box.close)
        await self._throw()

    def __repr__(self) -> str:
        return f"<Producer of {self.topic!r}>"


def _end_quietly(home: Home, box: Outbox | Outboxes) -> None:
    """A producer was thrown away: its threads and its stream end as well.

    The collector of garbage may call this in the middle of anything, also of a `submit`, whose lock
    would then never be free: so the loop does it.
    """
    home.post(partial(_end, home, box))


def _end(home: Home, box: Outbox | Outboxes) -> None:
    with suppress(Closed):
        home.submit(box.close)
