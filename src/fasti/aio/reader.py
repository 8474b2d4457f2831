"""Readers of logs for tasks of an event loop.

Rows come by whole batches, awaited in a thread of the reader's own; what one brought is given out
without leaving the loop. A task that is cancelled while it waits has taken nothing. One task at a
time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pyarrow as pa

from fasti.aio.home import Home
from fasti.aio.waiter import Follower
from fasti.client import reader as sync
from fasti.client.arguments import ArrowTable
from fasti.client.log_message import LogMessage
from fasti.errors import Closed, InvalidArgument


class Reader(Follower):
    """Made by `client.reader(topic)`. Iterate over it, or over `batches(...)`.

        async for message in client.reader("events", start="earliest"):
            await handle(message.offset, message.payload)

    As `fasti.Reader`: it goes on over lost connections, and raises `gone` when the next row was
    dropped.
    """

    def __init__(self, home: Home, reader: sync.Reader) -> None:
        self.topic = reader.topic
        self.follow = reader.follow
        super().__init__(home, f"the reader of {self.topic!r} is")
        self._reader = reader
        self._waiter.ends(reader.close)

    @property
    def position(self) -> dict[int, int]:
        """Of each partition, the offset of the next row: a reader that starts there goes on here."""
        return self._reader.position

    @property
    def closed(self) -> bool:
        """Whether it gives out nothing more."""
        return self._reader.closed

    def __aiter__(self) -> Reader:
        if self._reader.closed:
            raise Closed(f"the reader of {self.topic!r} is closed")
        return self

    async def __anext__(self) -> LogMessage:
        while (message := self._reader.take_message()) is None:
            if not await self._more():
                raise StopAsyncIteration
        return message

    def batches(self, count: int = 10_000) -> AsyncIterator[ArrowTable]:
        """Tables of up to `count` rows, as soon as there are some."""
        if count < 1:
            raise InvalidArgument("count must be at least 1", field="count", limit=1)
        return self._tables(count)

    async def _tables(self, count: int) -> AsyncIterator[pa.Table]:
        while True:
            table = self._reader.take_table(count)
            if table is None:
                if not await self._more():
                    return
                continue
            yield table
            await self._home.breathe()

    async def _more(self) -> bool:
        """Waits for the next rows, which stay in the reader; False at the end."""
        self._home.check()
        return not self._reader.closed and await self._waiter.ask(self._reader.more)

    async def _begin(self) -> None:
        await self._home.run(self._reader.begin)

    def __repr__(self) -> str:
        return f"<Reader of {self.topic!r}>"
