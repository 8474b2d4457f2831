"""Pending messages: reading, changing, moving and cancelling them, from tasks of an event loop.

Made by `client.messages(topic)`. Each call runs in one of the client's threads. If the task is
cancelled meanwhile, a change that is under way happens all the same, and nobody hears its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from fasti.aio.home import Home
from fasti.client import messages as sync
from fasti.client.bulk import BulkOutcomes, Progress
from fasti.client.dead import DeadOutcomes
from fasti.client.durations import Duration
from fasti.client.outcomes import Outcome, Outcomes
from fasti.errors import Closed

if TYPE_CHECKING:
    from fasti.client.arguments import (
        ArrowBatch,
        ArrowTable,
        Durations,
        Headers,
        Integers,
        MessageMetadata,
        MessageState,
        Moment,
        Moments,
        Payloads,
        PendingMessage,
        Texts,
    )


class Messages:
    """The messages of one topic.

        emails = client.messages("emails")
        (await emails.move(key="user-7", delay="10m")).status        # "ok", "conflict", "leased", ...
        (await emails.cancel(key=["user-7", "user-8"])).counts()     # lists give a batch of outcomes

    Messages are named by `id` or by `key`, one or a list. Before a change, everything that this
    client's producers of the topic have taken is sent and answered, so that a cancel can't overtake
    the send that it means.
    """

    def __init__(
        self, home: Home, messages: sync.Messages, flush: Callable[[], Awaitable[None]]
    ) -> None:
        self.topic = messages.topic
        self.owner = messages.owner
        self._home = home
        self._messages = messages
        self._flush = flush

    # Changing

    @overload
    async def move(
        self,
        *,
        id: int,
        at: datetime | None = ...,
        due: Moment | None = ...,
        delay: Duration | None = ...,
        expires: Duration | datetime | None = ...,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    async def move(
        self,
        *,
        key: str,
        at: datetime | None = ...,
        due: Moment | None = ...,
        delay: Duration | None = ...,
        expires: Duration | datetime | None = ...,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    async def move(
        self,
        *,
        id: Integers = ...,
        key: Texts = ...,
        at: datetime | Moments | None = ...,
        due: Moment | Moments | None = ...,
        delay: Duration | Durations | None = ...,
        expires: Duration | datetime | Durations | Moments | None = ...,
        version: int | Integers | None = ...,
        dry_run: bool = ...,
    ) -> Outcomes: ...

    async def move(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        at: datetime | Moments | None = None,
        due: Moment | Moments | None = None,
        delay: Duration | Durations | None = None,
        expires: Duration | datetime | Durations | Moments | None = None,
        version: int | Integers | None = None,
        dry_run: bool = False,
    ) -> Outcome | Outcomes:
        """Gives messages another due time: `at` a datetime, `due` in microseconds, or after `delay`.

        With `version`, only a message that has it; else the answer is `conflict`. Gives an `Outcome`,
        for lists `Outcomes`. With `dry_run` these are what would become of them: nothing changes.
        """
        return await self._change(
            partial(
                self._messages.move,
                id=id,
                key=key,
                at=at,
                due=due,
                delay=delay,
                expires=expires,
                version=version,
                dry_run=dry_run,
            )
        )

    @overload
    async def cancel(
        self,
        *,
        id: int,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    async def cancel(
        self,
        *,
        key: str,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    async def cancel(
        self,
        *,
        id: Integers = ...,
        key: Texts = ...,
        version: int | Integers | None = ...,
        dry_run: bool = ...,
    ) -> Outcomes: ...

    async def cancel(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        version: int | Integers | None = None,
        dry_run: bool = False,
    ) -> Outcome | Outcomes:
        """Cancels messages: after `ok` they are never delivered. `Outcome`, for lists `Outcomes`.

        With `dry_run` these are what would become of them: nothing changes.
        """
        named = {"id": id, "key": key, "version": version}
        return await self._change(partial(self._messages.cancel, **named, dry_run=dry_run))

    @overload
    async def update(
        self,
        *,
        id: int,
        payload: bytes | None = ...,
        headers: Headers | None = ...,
        content_type: str | None = ...,
        priority: int | None = ...,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    async def update(
        self,
        *,
        key: str,
        payload: bytes | None = ...,
        headers: Headers | None = ...,
        content_type: str | None = ...,
        priority: int | None = ...,
        version: int | None = ...,
        dry_run: bool = ...,
    ) -> Outcome: ...

    @overload
    async def update(
        self,
        *,
        id: Integers = ...,
        key: Texts = ...,
        payload: bytes | Payloads | None = ...,
        headers: Headers | Sequence[Headers | None] | None = ...,
        content_type: str | Texts | None = ...,
        priority: int | Integers | None = ...,
        version: int | Integers | None = ...,
        dry_run: bool = ...,
    ) -> Outcomes: ...

    async def update(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        payload: bytes | Payloads | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        content_type: str | Texts | None = None,
        priority: int | Integers | None = None,
        version: int | Integers | None = None,
        dry_run: bool = False,
    ) -> Outcome | Outcomes:
        """Gives messages another payload; headers and content type are replaced with it.

        In a priority topic `priority` is the new one; given alone, the payload stays as it is.
        For a list, `payload` and `priority` may be lists too. `Outcome`, for lists `Outcomes`. With
        `dry_run` these are what would become of them: nothing changes.
        """
        return await self._change(
            partial(
                self._messages.update,
                id=id,
                key=key,
                payload=payload,
                headers=headers,
                content_type=content_type,
                priority=priority,
                version=version,
                dry_run=dry_run,
            )
        )

    async def _change(self, call: Callable[[], Any]) -> Any:
        # Waiting for receipts is the loop's; the call that follows finds nothing to wait for.
        await self._flush()
        return await self._home.run(call)

    # Changing by filter

    @overload
    async def release(self, id: int, *, group: str = ...) -> Outcome: ...

    @overload
    async def release(self, id: Integers, *, group: str = ...) -> Outcomes: ...

    async def release(self, id: int | Integers, *, group: str = "") -> Outcome | Outcomes:
        """Takes leased messages back without their token, for others. As `fasti.Messages.release`."""
        release: Callable[..., Any] = self._messages.release
        return await self._home.run(release, id, group=group)

    async def cancel_where(
        self,
        *,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        key_prefix: str | None = None,
        owner: str | None = None,
        state: MessageState | None = None,
        everything: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkOutcomes:
        """Cancels all pending messages that fit every filter; the answer has `counts()`.

        As `fasti.Messages.cancel_where`; `progress` is called in the client's loop. A task that is
        cancelled meanwhile doesn't end it: it goes on to its end.
        """
        return await self._change_where(
            partial(
                self._messages.cancel_where,
                due_from=due_from,
                due_to=due_to,
                key_prefix=key_prefix,
                owner=owner,
                state=state,
                everything=everything,
                dry_run=dry_run,
                progress=self._home.in_loop(progress),
            )
        )

    async def move_where(
        self,
        *,
        at: datetime | None = None,
        due: Moment | None = None,
        delay: Duration | None = None,
        by: Duration | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        key_prefix: str | None = None,
        owner: str | None = None,
        state: MessageState | None = None,
        everything: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> BulkOutcomes:
        """Gives all pending messages that fit every filter another due time.

        As `fasti.Messages.move_where`; `progress` is called in the client's loop.
        """
        return await self._change_where(
            partial(
                self._messages.move_where,
                at=at,
                due=due,
                delay=delay,
                by=by,
                due_from=due_from,
                due_to=due_to,
                key_prefix=key_prefix,
                owner=owner,
                state=state,
                everything=everything,
                dry_run=dry_run,
                progress=self._home.in_loop(progress),
            )
        )

    async def _change_where(self, call: Callable[[], BulkOutcomes]) -> BulkOutcomes:
        await self._flush()
        return await self._home.run(call)

    # Reading

    @overload
    async def get(self, *, id: int, payload: Literal[True] = ...) -> PendingMessage | None: ...

    @overload
    async def get(self, *, key: str, payload: Literal[True] = ...) -> PendingMessage | None: ...

    @overload
    async def get(self, *, id: int, payload: bool) -> MessageMetadata | None: ...

    @overload
    async def get(self, *, key: str, payload: bool) -> MessageMetadata | None: ...

    @overload
    async def get(
        self, *, id: Integers = ..., key: Texts = ..., payload: bool = ...
    ) -> ArrowTable: ...

    async def get(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        payload: bool = True,
    ) -> Any:
        """Messages as they are now: a dict or None for one, an Arrow table for a list.

        A table has a row for each that was asked for, with `status`.
        """
        get: Callable[..., Any] = self._messages.get
        return await self._home.run(get, id=id, key=key, payload=payload)

    async def list(
        self,
        *,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        state: MessageState | None = None,
        owner: str | None = None,
        key_prefix: str | None = None,
        reason: str | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        consumer: str | None = None,
        after: int | None = None,
        limit: int | None = 1000,
        payload: bool = False,
        columns: Sequence[str] | None = None,
    ) -> ArrowTable:
        """The messages that fit every filter, by id, as an Arrow table; at most `limit`.

        As `fasti.Messages.list`: the next page begins behind the last id of this one.
        """
        return await self._home.run(
            self._messages.list,
            due_from=due_from,
            due_to=due_to,
            state=state,
            owner=owner,
            key_prefix=key_prefix,
            reason=reason,
            died_from=died_from,
            died_to=died_to,
            consumer=consumer,
            after=after,
            limit=limit,
            payload=payload,
            columns=columns,
        )

    async def scan(
        self,
        *,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        state: MessageState | None = None,
        owner: str | None = None,
        key_prefix: str | None = None,
        reason: str | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        consumer: str | None = None,
        after: int | None = None,
        limit: int | None = None,
        payload: bool = False,
        columns: Sequence[str] | None = None,
    ) -> AsyncGenerator[ArrowBatch, None]:
        """The same in batches, for any number of messages: `async for batch in emails.scan()`."""
        batches = self._messages.scan(
            due_from=due_from,
            due_to=due_to,
            state=state,
            owner=owner,
            key_prefix=key_prefix,
            reason=reason,
            died_from=died_from,
            died_to=died_to,
            consumer=consumer,
            after=after,
            limit=limit,
            payload=payload,
            columns=columns,
        )
        reading: Future[Any] | None = None
        try:
            while (reading := self._home.submit(partial(next, batches, None))) is not None:
                batch = await asyncio.shield(asyncio.wrap_future(reading))
                if batch is None:
                    return
                yield batch
        finally:
            if reading is not None:
                # A read that is under way ends first: a generator runs in one thread at a time.
                reading.add_done_callback(lambda _: self._end(batches))

    def _end(self, batches: Iterator[pa.RecordBatch]) -> None:
        if isinstance(batches, Generator):
            with suppress(Closed):
                self._home.submit(batches.close)

    async def dead(
        self,
        *,
        reason: str | None = None,
        key_prefix: str | None = None,
        died_from: Any = None,
        died_to: Any = None,
        after: int | None = None,
        limit: int | None = 1000,
        payload: bool = False,
    ) -> ArrowTable:
        """Those that failed for good, with their `reason` and when they died, `died_us`."""
        return await self._home.run(
            self._messages.dead,
            reason=reason,
            key_prefix=key_prefix,
            died_from=died_from,
            died_to=died_to,
            after=after,
            limit=limit,
            payload=payload,
        )

    async def count(self) -> dict[str, int]:
        """How many messages are scheduled, ready, leased, dead, and ever were done or cancelled."""
        return await self._home.run(self._messages.count)

    async def forecast(
        self, bucket: Duration = "1h", *, start: Moment | None = None, end: Moment | None = None
    ) -> ArrowTable:
        """How many messages fall due in each bucket of time: `start_us` and `count`, those above 0.

        From `start` (the broker's now) to `end` (a thousand buckets later).
        """
        return await self._home.run(self._messages.forecast, bucket, start=start, end=end)

    # The dead

    @overload
    async def redrive(
        self,
        id: int,
        *,
        to: None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> Outcome: ...

    @overload
    async def redrive(
        self,
        id: Integers,
        *,
        to: None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> Outcomes: ...

    @overload
    async def redrive(
        self,
        id: int | Integers,
        *,
        to: str,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
    ) -> DeadOutcomes: ...

    @overload
    async def redrive(
        self,
        id: None = ...,
        *,
        to: str | None = ...,
        delay: Duration | None = ...,
        at: datetime | None = ...,
        due: Moment | None = ...,
        reason: str | None = ...,
        owner: str | None = ...,
        due_from: Moment | None = ...,
        due_to: Moment | None = ...,
        died_from: Moment | None = ...,
        died_to: Moment | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    async def redrive(
        self,
        id: int | Integers | None = None,
        *,
        to: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        due: Moment | None = None,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Makes dead messages live again, now or later, with no attempts counted.

        As `fasti.Messages.redrive`; `progress` is called in the client's loop.
        """
        redrive: Callable[..., Any] = self._messages.redrive
        return await self._home.run(
            redrive,
            id,
            to=to,
            delay=delay,
            at=at,
            due=due,
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
            progress=self._home.in_loop(progress),
        )

    @overload
    async def purge(self, id: int) -> Outcome: ...

    @overload
    async def purge(self, id: Integers) -> Outcomes: ...

    @overload
    async def purge(
        self,
        id: None = ...,
        *,
        reason: str | None = ...,
        owner: str | None = ...,
        due_from: Moment | None = ...,
        due_to: Moment | None = ...,
        died_from: Moment | None = ...,
        died_to: Moment | None = ...,
        progress: Progress | None = ...,
    ) -> DeadOutcomes: ...

    async def purge(
        self,
        id: int | Integers | None = None,
        *,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
        progress: Progress | None = None,
    ) -> Outcome | Outcomes | DeadOutcomes:
        """Removes dead messages for good; without `id` all that fit the filters of `redrive`."""
        purge: Callable[..., Any] = self._messages.purge
        return await self._home.run(
            purge,
            id,
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
            progress=self._home.in_loop(progress),
        )

    async def dead_counts(
        self,
        *,
        reason: str | None = None,
        owner: str | None = None,
        due_from: Moment | None = None,
        due_to: Moment | None = None,
        died_from: Moment | None = None,
        died_to: Moment | None = None,
    ) -> dict[str, int]:
        """How many are dead of which reason, the most frequent first; a thousand reasons at most."""
        return await self._home.run(
            self._messages.dead_counts,
            reason=reason,
            owner=owner,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
        )
