"""Sinks for tasks of an event loop: what waits runs in a thread of the client's."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import pyarrow as pa

from fasti.aio.home import Home
from fasti.client import sinks as sync
from fasti.client.durations import Duration
from fasti.client.sinks import Published, SinkState, Staged


class Sink:
    """Made by `client.sink(...)`; as `fasti.client.sinks.Sink`."""

    def __init__(self, home: Home, sink: sync.Sink) -> None:
        self._home, self._sink = home, sink

    def stage(self, batch: int, partition: int, attempt: int) -> StageWriter:
        """A writer of one attempt at one partition of a batch; for one task at a time."""
        return StageWriter(self._home, self._sink.stage(batch, partition, attempt))

    async def publish(
        self, batch: int, stages: Sequence[str], *, timeout: Duration | None = None
    ) -> Published:
        """Has the batch happen: the rows of these stages, and of no others, take effect once."""
        return await self._home.run(self._sink.publish, batch, stages, timeout=timeout)

    async def drop(self, stages: Sequence[str]) -> int:
        """Drops stages that are not published: how many rows."""
        return await self._home.run(self._sink.drop, stages)

    async def last_batch(self) -> int | None:
        """The last batch that was published; None: none yet."""
        return await self._home.run(self._sink.last_batch)

    async def describe(self) -> SinkState | None:
        """What the broker knows of the sink; None: nothing."""
        return await self._home.run(self._sink.describe)

    async def forget(self) -> bool:
        """Has the broker forget the sink, and drop its stages: False if it knew none."""
        return await self._home.run(self._sink.forget)

    def __repr__(self) -> str:
        return repr(self._sink)


class StageWriter:
    """Made by `sink.stage(...)`: `async with`; as `fasti.client.sinks.StageWriter`."""

    def __init__(self, home: Home, writer: sync.StageWriter) -> None:
        self._home, self._writer = home, writer
        self.name = writer.name

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return self._writer.rows

    @property
    def staged(self) -> Staged:
        """What `close` returned. Raises `closed` before."""
        return self._writer.staged

    async def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Sends rows; waits while too much is under way. All batches have the same columns."""
        await self._home.run(self._writer.write, batch)

    async def close(self) -> Staged:
        """Waits until everything is durable. Again: the same answer."""
        return await self._home.run(self._writer.close)

    async def abort(self) -> None:
        """Ends it at once; what was staged is dropped by `Sink.drop`, or with time."""
        await self._home.run(self._writer.abort)

    async def __aenter__(self) -> StageWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()

    def __repr__(self) -> str:
        return repr(self._writer)
