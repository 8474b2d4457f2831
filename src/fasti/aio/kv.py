"""Key-value topics from tasks of an event loop. Made by `client.kv(topic)`.

Each call runs in one of the client's threads; a watch has a thread of its own while it waits.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import pyarrow as pa

from fasti.aio.home import Home
from fasti.aio.waiter import Waiter
from fasti.client import kv as sync
from fasti.client import watch as sync_watch
from fasti.client.arguments import ArrowBatch, ArrowTable
from fasti.client.durations import Duration
from fasti.client.kv import Entry, Place
from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.watch import Change
from fasti.errors import Closed


class KeyValues:
    """The entries of one key-value topic.

        profiles = client.kv("profiles")
        await profiles.put("user-7", b"...", version=0)      # 0: must not exist
        (await profiles.get("user-7")).value
        async for change in profiles.watch(): ...

    As `fasti.KeyValues`.
    """

    def __init__(self, home: Home, kv: sync.KeyValues) -> None:
        self.topic = kv.topic
        self._home, self._kv = home, kv

    # Changing

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
        """Sets a value; with `version`, only if that is the present one (0: if there is none)."""
        return await self._home.run(
            self._kv.put,
            key,
            value,
            clustering=clustering,
            version=version,
            ttl=ttl,
            expires=expires,
            headers=headers,
            content_type=content_type,
        )

    async def put_many(self, keys: Any, values: Any = None, **columns: Any) -> Outcomes:
        """Sets many values; arguments as for `fasti.KeyValues.put_many`."""
        return await self._home.run(self._kv.put_many, keys, values, **columns)

    async def delete(
        self, key: str, *, clustering: str | None = None, version: int | None = None
    ) -> Outcome:
        """Removes an entry: `ok`, `not_found`, or `conflict` when it has another version."""
        return await self._home.run(self._kv.delete, key, clustering=clustering, version=version)

    async def delete_many(
        self, keys: Any, *, clustering: Any = None, version: Any = None
    ) -> Outcomes:
        """Removes many: an outcome for each row."""
        return await self._home.run(
            self._kv.delete_many, keys, clustering=clustering, version=version
        )

    # Reading

    async def get(self, key: str, *, clustering: str | None = None) -> Entry | None:
        """The entry, or None."""
        return await self._home.run(self._kv.get, key, clustering=clustering)

    async def get_many(
        self, keys: Any, *, clustering: Any = None, values: bool = True
    ) -> ArrowTable:
        """Many at once: an Arrow table with a row for each that was asked for, in order."""
        return await self._home.run(self._kv.get_many, keys, clustering=clustering, values=values)

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
        """Entries in the order of (key, clustering), as an Arrow table; at most `limit`."""
        return await self._home.run(
            self._kv.range,
            key=key,
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            values=values,
        )

    async def scan(self, **filters: Any) -> AsyncGenerator[ArrowBatch, None]:
        """The same in batches, for any number of entries: `async for batch in profiles.scan()`."""
        batches = self._kv.scan(**filters)
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

    async def entries(self, **filters: Any) -> AsyncGenerator[Entry, None]:
        """The same one by one."""
        async for batch in self.scan(**filters, values=True):
            for row in batch.to_pylist():
                yield Entry.of_row(row)

    async def count(self) -> int:
        """How many entries there are."""
        return await self._home.run(self._kv.count)

    async def position(self) -> int:
        """Where the changes are by now: `watch(position=...)` gives all that come behind it."""
        return await self._home.run(self._kv.position)

    def watch(
        self,
        *,
        position: int | None = None,
        prefix: str | None = None,
        timeout: Duration | None = None,
    ) -> Watch:
        """Changes as they happen: `async for change in profiles.watch()`; else as in `fasti`."""
        open_it = partial(self._kv.watch, position=position, prefix=prefix, timeout=timeout)
        return Watch(self._home, self.topic, open_it)

    def __repr__(self) -> str:
        return f"<KeyValues of {self.topic!r}>"


class Watch:
    """Made by `kv.watch()`; an asynchronous iterator and context manager, for one task.

    Watching begins when the context is entered, or with the first change that is asked for.
    """

    def __init__(self, home: Home, topic: str, open_it: partial[sync_watch.Watch]) -> None:
        self.topic = topic
        self._home, self._open_it = home, open_it
        self._watch: sync_watch.Watch | None = None
        self._waiter = Waiter(home, f"the watch of {topic!r} is")
        self._gone = weakref.finalize(self, self._waiter.close)
        self._gone.atexit = False

    @property
    def position(self) -> int | None:
        """Behind all that was given; None while it has not begun."""
        return None if self._watch is None else self._watch.position

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Change:
        watch = await self._opened()
        while (change := watch.take()) is None:
            if self._waiter.closed or not await self._waiter.ask(watch.more):
                raise StopAsyncIteration
        return change

    async def batches(self) -> AsyncGenerator[ArrowBatch, None]:
        """The same by whole Arrow batches, as they come: `async for batch in watch.batches()`."""
        watch = await self._opened()
        while True:
            while (batch := watch.take_batch()) is not None:
                yield batch
                await self._home.breathe()
            if self._waiter.closed or not await self._waiter.ask(watch.more):
                return

    async def _opened(self) -> sync_watch.Watch:
        if self._watch is None:
            self._watch = await self._waiter.ask(partial(_open, self._waiter, self._open_it))
        return self._watch

    async def close(self) -> None:
        """Ends it. Again: nothing happens."""
        self._waiter.close()

    async def __aenter__(self) -> Watch:
        await self._opened()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Watch of {self.topic!r}>"


def _open(waiter: Waiter, open_it: partial[sync_watch.Watch]) -> sync_watch.Watch:
    watch = open_it()
    waiter.ends(watch.close)
    return watch
