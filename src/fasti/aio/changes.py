"""The change feed for tasks of an event loop: tables come from a thread of the reader's own."""

from __future__ import annotations

from functools import partial

from fasti.aio.home import Home
from fasti.aio.waiter import Follower
from fasti.client import changes as sync
from fasti.client.arguments import ArrowTable
from fasti.client.changes import Position


class Changes(Follower):
    """Made by `client.changes()`; iterate over it with `async for`, one task at a time.

    As `fasti.Changes`. A task that is cancelled while it waits has taken nothing.
    """

    def __init__(self, home: Home, changes: sync.Changes) -> None:
        super().__init__(home, "these changes are")
        self._changes = changes
        self._waiter.ends(changes.close)
        self._position = changes.position

    @property
    def position(self) -> Position:
        """Behind all that was given out: keep it to go on there another day."""
        return self._position

    @property
    def closed(self) -> bool:
        """Whether it gives out nothing more."""
        return self._changes.closed

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> ArrowTable:
        table = await self._waiter.ask(partial(next, self._changes, None))
        self._position = self._changes.position
        if table is None:
            raise StopAsyncIteration
        return table

    def __repr__(self) -> str:
        return repr(self._changes)
