"""Written by `make aio` from `fasti/client/messages.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from fasti.aio.dead_letters import DeadLetters
from fasti.aio.stale import StaleMessages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from datetime import datetime
    from typing import Any, Literal

    from fasti.aio.home import Home
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
    from fasti.client.bulk import BulkOutcomes, Progress
    from fasti.client.durations import Duration
    from fasti.client.messages import Messages as SyncMessages
    from fasti.client.outcomes import Outcome, Outcomes


class Messages(DeadLetters):
    """The messages of one topic. As `fasti.Messages`, with `await`."""

    _sync: SyncMessages

    def __init__(self, home: Home, sync: SyncMessages) -> None:
        self.topic = sync.topic
        self.owner = sync.owner
        self._home, self._sync = home, sync

    def stale(self) -> StaleMessages:
        """Reads that may be out of date, and go on while a cluster's servers have no majority."""
        return StaleMessages(self._home, self._sync.stale())

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

        As `fasti.Messages.move`.
        """
        call: Callable[..., Any] = self._sync.move
        return await self._home.run(
            call,
            id=id,
            key=key,
            at=at,
            due=due,
            delay=delay,
            expires=expires,
            version=version,
            dry_run=dry_run,
        )

    @overload
    async def cancel(
        self, *, id: int, version: int | None = ..., dry_run: bool = ...
    ) -> Outcome: ...

    @overload
    async def cancel(
        self, *, key: str, version: int | None = ..., dry_run: bool = ...
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

        As `fasti.Messages.cancel`.
        """
        call: Callable[..., Any] = self._sync.cancel
        return await self._home.run(call, id=id, key=key, version=version, dry_run=dry_run)

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

        As `fasti.Messages.update`.
        """
        call: Callable[..., Any] = self._sync.update
        return await self._home.run(
            call,
            id=id,
            key=key,
            payload=payload,
            headers=headers,
            content_type=content_type,
            priority=priority,
            version=version,
            dry_run=dry_run,
        )

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

        As `fasti.Messages.cancel_where`; `progress` is called in the client's loop.
        """
        return await self._home.run(
            self._sync.cancel_where,
            due_from=due_from,
            due_to=due_to,
            key_prefix=key_prefix,
            owner=owner,
            state=state,
            everything=everything,
            dry_run=dry_run,
            progress=self._home.in_loop(progress),
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
        return await self._home.run(
            self._sync.move_where,
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

        As `fasti.Messages.get`.
        """
        call: Callable[..., Any] = self._sync.get
        return await self._home.run(call, id=id, key=key, payload=payload)

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

        As `fasti.Messages.list`.
        """
        return await self._home.run(
            self._sync.list,
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

    def scan(
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
        """The same in batches, for any number of messages; a batch may be empty."""
        return self._home.iterate(
            self._sync.scan,
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

    async def count(self) -> dict[str, int]:
        """How many messages are scheduled, ready, leased, dead, and ever were done or cancelled."""
        return await self._home.run(self._sync.count)

    async def forecast(
        self, bucket: Duration = "1h", *, start: Moment | None = None, end: Moment | None = None
    ) -> ArrowTable:
        """How many messages fall due in each bucket of time: `start_us` and `count`, those above 0.

        As `fasti.Messages.forecast`.
        """
        return await self._home.run(self._sync.forecast, bucket, start=start, end=end)

    @overload
    async def release(self, id: int, *, group: str = ...) -> Outcome: ...

    @overload
    async def release(self, id: Integers, *, group: str = ...) -> Outcomes: ...

    async def release(self, id: int | Integers, *, group: str = "") -> Outcome | Outcomes:
        """Takes leased messages back without their token, for others: `Outcome`, `Outcomes` for a list.

        As `fasti.Messages.release`.
        """
        call: Callable[..., Any] = self._sync.release
        return await self._home.run(call, id, group=group)
