"""Written by `make aio` from `fasti/client/kv.py`: change that file instead."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fasti.aio.stale import StaleKeyValues
from fasti.aio.watch import Watch as Watch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from typing import Any

    from fasti.aio.home import Home
    from fasti.client.arguments import ArrowBatch, ArrowTable
    from fasti.client.durations import Duration
    from fasti.client.kv import Entry, Place
    from fasti.client.kv import KeyValues as SyncKeyValues
    from fasti.client.outcomes import Outcome, Outcomes
    from fasti.client.watch import WatchPosition


class KeyValues:
    """The entries of one key-value topic. As `fasti.KeyValues`, with `await`."""

    _sync: SyncKeyValues

    def __init__(self, home: Home, sync: SyncKeyValues) -> None:
        self.topic = sync.topic
        self._home, self._sync = home, sync

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        clustering: str | None = None,
        version: int | None = None,
        ttl: Duration | None = None,
        expires: Any = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Outcome:
        """Sets a value; `outcome.version` is its new version. As `fasti.KeyValues.put`."""
        return await self._home.run(
            self._sync.put,
            key,
            value,
            clustering=clustering,
            version=version,
            ttl=ttl,
            expires=expires,
            headers=headers,
            content_type=content_type,
        )

    async def put_many(
        self,
        keys: Any,
        values: Any = None,
        *,
        clustering: Any = None,
        version: Any = None,
        ttl: Any = None,
        expires: Any = None,
        headers: Any = None,
        content_type: Any = None,
    ) -> Outcomes:
        """Sets many values: an outcome for each row, in order. As `fasti.KeyValues.put_many`."""
        return await self._home.run(
            self._sync.put_many,
            keys,
            values,
            clustering=clustering,
            version=version,
            ttl=ttl,
            expires=expires,
            headers=headers,
            content_type=content_type,
        )

    async def delete(
        self, key: str, *, clustering: str | None = None, version: int | None = None
    ) -> Outcome:
        """Removes an entry: `ok`, `not_found`, or `conflict` when it has another version."""
        return await self._home.run(self._sync.delete, key, clustering=clustering, version=version)

    async def delete_many(
        self, keys: Any, *, clustering: Any = None, version: Any = None
    ) -> Outcomes:
        """Removes many: an outcome for each row."""
        return await self._home.run(
            self._sync.delete_many, keys, clustering=clustering, version=version
        )

    async def get(self, key: str, *, clustering: str | None = None) -> Entry | None:
        """The entry, or None."""
        return await self._home.run(self._sync.get, key, clustering=clustering)

    async def get_many(
        self, keys: Any, *, clustering: Any = None, values: bool = True
    ) -> ArrowTable:
        """Many at once: an Arrow table with a row for each that was asked for, in order.

        As `fasti.KeyValues.get_many`.
        """
        return await self._home.run(self._sync.get_many, keys, clustering=clustering, values=values)

    def stale(self) -> StaleKeyValues:
        """Reads that may be out of date, and go on while a cluster's servers have no majority."""
        return StaleKeyValues(self._home, self._sync.stale())

    async def range(
        self,
        *,
        key: str | None = None,
        prefix: str | None = None,
        start: Place | None = None,
        end: Place | None = None,
        limit: int | None = 1000,
        values: bool = True,
    ) -> ArrowTable:
        """Entries in the order of (key, clustering), as an Arrow table; at most `limit`.

        As `fasti.KeyValues.range`.
        """
        return await self._home.run(
            self._sync.range,
            key=key,
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            values=values,
        )

    def scan(
        self,
        *,
        key: str | None = None,
        prefix: str | None = None,
        start: Place | None = None,
        end: Place | None = None,
        limit: int | None = None,
        values: bool = True,
    ) -> AsyncGenerator[ArrowBatch, None]:
        """The same in batches, for any number of entries."""
        return self._home.iterate(
            self._sync.scan,
            key=key,
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            values=values,
        )

    def entries(self, **filters: Any) -> AsyncGenerator[Entry, None]:
        """The same one by one; filters as for `scan`."""
        return self._home.iterate(self._sync.entries, **filters)

    async def count(self) -> int:
        """How many entries there are."""
        return await self._home.run(self._sync.count)

    async def position(self) -> WatchPosition:
        """Where the changes are by now: `watch(position=...)` gives all that come behind it.

        As `fasti.KeyValues.position`.
        """
        return await self._home.run(self._sync.position)

    def watch(
        self,
        *,
        position: WatchPosition | None = None,
        prefix: str | None = None,
        timeout: Duration | None = None,
    ) -> Watch:
        """Changes as they happen: puts, deletes and expiries, each once, in order.

        As `fasti.KeyValues.watch`.
        """
        return Watch(
            self._home,
            self.topic,
            partial(self._sync.watch, position=position, prefix=prefix, timeout=timeout),
        )

    def __aiter__(self) -> AsyncGenerator[Entry, None]:
        return self._home.iterate(self._sync.__iter__)

    def __repr__(self) -> str:
        return repr(self._sync)
