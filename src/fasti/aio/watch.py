"""Watching a key-value topic from a task of an event loop, in a thread of the watch's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from fasti.aio.home import Home
from fasti.aio.waiter import Follower, Waiter
from fasti.client import watch as sync
from fasti.client.arguments import ArrowBatch
from fasti.client.watch import Change, WatchPosition


class Watch(Follower):
    """Made by `kv.watch()`; an asynchronous iterator and context manager, for one task.

    Watching begins when the context is entered, or with the first change that is asked for.
    """

    def __init__(self, home: Home, topic: str, open_watch: partial[sync.Watch]) -> None:
        self.topic = topic
        super().__init__(home, f"the watch of {topic!r} is")
        self._open_watch = open_watch
        self._watch: sync.Watch | None = None

    @property
    def position(self) -> WatchPosition | None:
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

    async def _opened(self) -> sync.Watch:
        if self._watch is None:
            self._watch = await self._waiter.ask(partial(_open, self._waiter, self._open_watch))
        return self._watch

    async def _begin(self) -> None:
        await self._opened()

    def __repr__(self) -> str:
        return f"<Watch of {self.topic!r}>"


def _open(waiter: Waiter, open_watch: partial[sync.Watch]) -> sync.Watch:
    watch = open_watch()
    waiter.ends(watch.close)
    return watch
