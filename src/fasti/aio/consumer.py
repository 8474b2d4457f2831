"""Consumers: messages at their moments, one by one or in batches, for tasks of an event loop.

A message is taken in the same breath in which it is returned, so a task that is cancelled while it
waits has taken nothing: what it waited for goes to the next one that asks. Several tasks may iterate
over one consumer; each message goes to one of them.

Everything here is for the loop's thread, but for `stop`.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator, Iterator
from functools import partial

import numpy as np

from fasti.aio.closing import AsyncClosing
from fasti.aio.home import Home
from fasti.aio.message import Batch, Message
from fasti.aio.session import LoopSession, LoopSessions
from fasti.client.consumer import check_prefetch, checked_group, unique_name
from fasti.client.durations import Duration, optional_duration_us, seconds
from fasti.client.failures import FailureReports, Failures, OnFailure
from fasti.client.machines.returns import Segment
from fasti.client.machines.run import Run
from fasti.client.transport import Transport
from fasti.errors import Closed, FastiError, InvalidArgument
from fasti.model import Limits


class Consumer(AsyncClosing):
    """Made by `client.consumer(topic)`. Iterate over it, or over `batches(...)`.

        async with client.consumer("emails", name="worker-1") as consumer:
            async for message in consumer:
                await handle(message.payload)
                message.ack()

    No message is handed over before it is due on the broker's clock. When the connection is lost the
    consumer connects again by itself, under its name; messages in your hands keep their leases.
    Iterating raises `fenced` when another session took the name, `not_found` when the topic is gone.
    An ack that failed stops nothing: `failed` counts those, `unread_failures` the ones that were not
    awaited, which are logged, given to `on_failure` and raised by `flush` or `close`.
    """

    def __init__(
        self,
        home: Home,
        transport: Transport,
        topic: str,
        *,
        name: str | None = None,
        prefetch: int | None = None,
        timeout: Duration | None = None,
        time_limit: Duration | None = None,
        limits: Limits | None = None,
        group: str | None = None,
        on_failure: OnFailure | None = None,
        reports: FailureReports | None = None,
    ) -> None:
        check_prefetch(prefetch)
        self.topic = topic
        self.name = name or unique_name()
        self.group = checked_group(group)
        self._home = home
        self._timeout_s = seconds(timeout, "timeout")
        self._begun = self._closed = False
        make = LoopSession if transport.shard_count == 1 else LoopSessions
        self._session: LoopSession | LoopSessions = make(
            home,
            transport,
            topic,
            self.name,
            prefetch=prefetch,
            time_limit_us=optional_duration_us(time_limit, "time_limit"),
            limits=limits or Limits(),
            group=self.group,
            failures=Failures(topic, on_failure, reports),
        )
        self._room = self._session.room
        # A consumer that is thrown away must not go on taking messages.
        self._gone = weakref.finalize(self, self._session.close_aside)
        self._gone.atexit = False
        self._failures = self._session.failures
        # Where messages are taken from one by one.
        self._run: Run | None = None
        self._rows: Iterator[int] = iter(())

    @property
    def session(self) -> LoopSession | LoopSessions:
        """What lies beneath; the client closes it if it is still open."""
        return self._session

    @property
    def failed(self) -> int:
        """How many acks and other returns came out otherwise than asked."""
        return self._failures.count

    @property
    def unread_failures(self) -> int:
        """How many of those were not awaited."""
        return self._failures.unread

    @property
    def reconnections(self) -> int:
        """How often the connection was lost."""
        return sum(machine.reconnections for machine in self._session.machines)

    # One by one

    def __aiter__(self) -> Consumer:
        if self._closed:
            raise Closed(f"the consumer of {self.topic!r} is closed")
        return self

    async def __anext__(self) -> Message:
        run = self._run
        if run is not None and not self._room.waiters and time.monotonic() < self._home.breathe_at:
            for row in self._rows:
                return Message(run, row)
        until = self._until(None)
        await self._begin()
        while (message := self._taken()) is None:
            if not await self._room.await_due(until):
                raise StopAsyncIteration
        return message

    def _taken(self) -> Message | None:
        """The next message that is due, if there is one. Raises what ended the session."""
        while True:
            run = self._run
            if run is not None:
                for row in self._rows:
                    self._pass_on()
                    return Message(run, row)
                self._put_back()
            self._run = self._room.take_run()
            if self._run is None:
                return None
            session = self._session
            self._rows = session.holding.take_each(
                self._run, session.lock, session.clock, session.wake
            )

    def _put_back(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._room.put_back(run)

    def _pass_on(self) -> None:
        """Others wait: what is left is for them."""
        if self._room.waiters:
            self._put_back()
            self._room.look_soon()

    def _until(self, timeout: Duration | None) -> float | None:
        limit_s = self._timeout_s if timeout is None else seconds(timeout)
        return None if limit_s is None else self._home.loop.time() + limit_s

    async def _begin(self) -> None:
        """Connects, the first time. Later it lets others have their turn, now and then."""
        if self._begun or self._closed:
            await self._home.breathe()
            return
        await self._home.run(self._session.start)
        self._begun = True

    # Several at once

    async def take(self, count: int = 1, *, timeout: Duration | None = None) -> list[Message]:
        """Up to `count` messages that are due, as soon as there is one: for those who feed workers.

        None after `timeout` (default: the consumer's), after `stop` and after `close`. Raises what
        iterating raises.
        """
        self._session.want(count)
        until = self._until(timeout)
        await self._begin()
        segments = await self._gather(count, 0.0, until)
        return [Message(run, row) for run, rows in segments for row in rows.tolist()]

    def batches(self, count: int = 1000, *, wait: Duration = "100ms") -> AsyncIterator[Batch]:
        """Batches of up to `count` messages that are due, each at most `wait` after its first.

        While one is worked on, the next may come, if they are worked on quickly; with a `prefetch`
        at least four times `count` may be here unfinished.

            async for batch in client.consumer("emails").batches(10_000):
                await store(batch.table)
                batch.ack()
        """
        if count < 1:
            raise InvalidArgument("count must be at least 1", field="count", limit=1)
        wait_s = seconds(wait, "wait") or 0.0
        self._session.want(count, batches=True)
        return _Batches(self, count, wait_s)

    async def _next_batch(self, count: int, wait_s: float) -> Batch | None:
        until = self._until(None)
        await self._begin()
        segments = await self._gather(count, wait_s, until)
        return Batch(segments) if segments else None

    async def _gather(self, count: int, wait_s: float, until: float | None) -> list[Segment]:
        """Rows that are due, after waiting for as long as a batch may wait for more.

        They are taken at the end, all at once, so that a task that is cancelled holds none.
        """
        while True:
            self._put_back()
            if wait_s and self._room.seconds_until_due(1) <= 0:
                await self._room.await_more(count, self._home.loop.time() + wait_s)
            segments = self._take_due(count)
            if segments or not await self._room.await_due(until):
                return segments

    def _take_due(self, count: int) -> list[Segment]:
        room = self._room
        segments: list[Segment] = []
        taken = 0
        while taken < count:
            try:
                run = room.take_run()
            except FastiError:
                if not segments:
                    raise
                break  # What was taken is handed over first; the next call raises.
            if run is None:
                break
            begin, end = room.take_due(run, count - taken)
            room.put_back(run)
            if end > begin:
                segments.append((run, np.arange(begin, end)))
                taken += end - begin
        self._pass_on()
        return segments

    # The end

    async def flush(self, timeout: Duration | None = None) -> None:
        """Waits until all acks so far are answered. Raises `timed_out`, `rows_failed`."""
        await self._home.run(self._session.flush, seconds(timeout))
        if self._failures.pending:
            await self._home.run(self._failures.throw)

    def stop(self) -> None:
        """Ends the iteration and gives back what was not started. Any thread may call it.

        Messages in your hands keep their leases, and these are renewed, until `close`.
        """
        self._session.drain()

    async def close(self, timeout: Duration | None = "30s") -> None:
        """Waits for acks, gives back what was not started, ends the iteration.

        Raises `rows_failed` for acks that failed, `timed_out`. Messages in your hands stay leased
        until they are finished, which still works, or until their leases end. Goes on to its end
        even if the task is cancelled.
        """
        if self._closed:
            return
        self._closed = True
        await self._home.run_through(partial(self.close_session, seconds(timeout)))

    def close_session(self, timeout_s: float | None) -> None:
        """The part of closing that waits. Not for the loop's thread."""
        self._closed = True
        self._session.close(timeout_s)
        self._failures.throw()

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self.topic!r}>"


class _Batches:
    """The iteration over a consumer's batches."""

    def __init__(self, consumer: Consumer, count: int, wait_s: float) -> None:
        self._consumer, self._count, self._wait_s = consumer, count, wait_s

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._consumer._next_batch(self._count, self._wait_s)
        if batch is None:
            raise StopAsyncIteration
        return batch
