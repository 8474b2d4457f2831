"""Written by `make aio` from `fasti/client/stale.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Any, Literal

    from fasti.aio.home import Home
    from fasti.client.arguments import (
        ArrowBatch,
        ArrowTable,
        Integers,
        MessageMetadata,
        MessageState,
        Moment,
        PendingMessage,
        Texts,
    )
    from fasti.client.kv import Entry
    from fasti.client.stale import Stale
    from fasti.client.stale import StaleKeyValues as SyncStaleKeyValues
    from fasti.client.stale import StaleMessages as SyncStaleMessages
    from fasti.client.topics import Topic


class StaleMessages:
    """The messages of one topic as a broker last knew them, for when that is enough.

    As `fasti.StaleMessages`, with `await`.
    """

    _sync: SyncStaleMessages

    def __init__(self, home: Home, sync: SyncStaleMessages) -> None:
        self.topic = sync.topic
        self._home, self._sync = home, sync

    @overload
    async def get(
        self, *, id: int, payload: Literal[True] = ...
    ) -> Stale[PendingMessage | None]: ...

    @overload
    async def get(
        self, *, key: str, payload: Literal[True] = ...
    ) -> Stale[PendingMessage | None]: ...

    @overload
    async def get(self, *, id: int, payload: bool) -> Stale[MessageMetadata | None]: ...

    @overload
    async def get(self, *, key: str, payload: bool) -> Stale[MessageMetadata | None]: ...

    @overload
    async def get(
        self, *, id: Integers = ..., key: Texts = ..., payload: bool = ...
    ) -> Stale[ArrowTable]: ...

    async def get(
        self,
        *,
        id: int | Integers | None = None,
        key: str | Texts | None = None,
        payload: bool = True,
    ) -> Any:
        """Messages by id or by key, as `Messages.get` gives them. As `fasti.StaleMessages.get`."""
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
    ) -> Stale[ArrowTable]:
        """The messages that fit every filter, as `Messages.list` gives them. Of each shard it is one state."""
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
    ) -> AsyncGenerator[Stale[ArrowBatch], None]:
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

    async def count(self) -> Stale[dict[str, int]]:
        """How many messages there are by state, as `Messages.count` gives it."""
        return await self._home.run(self._sync.count)

    async def describe(self) -> Stale[Topic]:
        """The topic's settings and counts, as `client.topic` gives them; of any kind of topic."""
        return await self._home.run(self._sync.describe)

    def __repr__(self) -> str:
        return repr(self._sync)


class StaleKeyValues:
    """The entries of one key-value topic as a broker last knew them: see `StaleMessages`.

    As `fasti.StaleKeyValues`, with `await`.
    """

    _sync: SyncStaleKeyValues

    def __init__(self, home: Home, sync: SyncStaleKeyValues) -> None:
        self.topic = sync.topic
        self._home, self._sync = home, sync

    async def get(self, key: str, *, clustering: str | None = None) -> Stale[Entry | None]:
        """The entry, or None."""
        return await self._home.run(self._sync.get, key, clustering=clustering)

    async def get_many(
        self, keys: Any, *, clustering: Any = None, values: bool = True
    ) -> Stale[ArrowTable]:
        """Many at once, as `KeyValues.get_many` gives them."""
        return await self._home.run(self._sync.get_many, keys, clustering=clustering, values=values)

    async def count(self) -> Stale[int]:
        """How many entries there are."""
        return await self._home.run(self._sync.count)

    def __repr__(self) -> str:
        return repr(self._sync)
