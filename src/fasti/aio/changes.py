"""The change feed for tasks of an event loop: tables come from a thread of the reader's own."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType

import pyarrow as pa

from fasti.aio.home import Home
from fasti.client import changes as sync
from fasti.client.changes import Position
from fasti.errors import Closed


class Changes:
    """Made by `client.changes()`; iterate over it with `async for`, one task at a time.

    As `fasti.Changes`. A task that is cancelled while it waits has taken nothing.
    """

    def __init__(self, home: Home, changes: sync.Changes) -> None:
        self._home, self._changes = home, changes
        # Following waits for as long as nothing comes: not in the client's few threads.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fasti-aio-changes")
        self._waiting: Future[pa.Table | None] | None = None
        self._position = changes.position

    @property
    def position(self) -> Position:
        """Behind all that was given out: keep it to go on there another day."""
        return self._position

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> pa.Table:
        self._home.check()
        if self._waiting is None:
            try:
                self._waiting = self._thread.submit(partial(next, self._changes, None))
            except RuntimeError as error:
                raise Closed("these changes are closed") from error
        waiting = self._waiting
        # If the task is cancelled the wait goes on, for the next one that asks.
        table = await asyncio.shield(asyncio.wrap_future(waiting))
        if self._waiting is waiting:
            self._waiting = None
        self._position = self._changes.position
        if table is None:
            raise StopAsyncIteration
        return table

    async def close(self) -> None:
        """Ends it. Again: nothing happens."""
        self._changes.close()
        await self._home.run(partial(self._thread.shutdown, wait=True))

    async def __aenter__(self) -> Changes:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._changes)
