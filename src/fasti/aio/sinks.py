"""Written by `make aio` from `fasti/client/sinks.py`: change that file instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import pyarrow as pa

    from fasti.aio.home import Home
    from fasti.client.durations import Duration
    from fasti.client.sinks import Published, SinkState, Staged
    from fasti.client.sinks import Sink as SyncSink
    from fasti.client.sinks import StageWriter as SyncStageWriter


class Sink:
    """Made by `client.sink(...)`: cheap, it opens nothing.

    As `fasti.client.sinks.Sink`, with `await`.
    """

    _sync: SyncSink

    def __init__(self, home: Home, sync: SyncSink) -> None:
        self.topic = sync.topic
        self.sink_id = sync.sink_id
        self.operation = sync.operation
        self.on_conflict = sync.on_conflict
        self.owner = sync.owner
        self._home, self._sync = home, sync

    def stage(self, batch: int, partition: int, attempt: int) -> StageWriter:
        """A writer of one attempt at one partition of a batch, in this process.

        As `fasti.client.sinks.Sink.stage`.
        """
        return StageWriter(self._home, self._sync.stage(batch, partition, attempt))

    async def publish(
        self, batch: int, stages: Sequence[str], *, timeout: Duration | None = None
    ) -> Published:
        """Has the batch happen: the rows of these stages, and of no others, take effect once.

        As `fasti.client.sinks.Sink.publish`.
        """
        return await self._home.run(self._sync.publish, batch, stages, timeout=timeout)

    async def drop(self, stages: Sequence[str]) -> int:
        """Drops stages that are not published: how many rows. Those that are not there are fine."""
        return await self._home.run(self._sync.drop, stages)

    async def last_batch(self) -> int | None:
        """The last batch that was published, on every shard; None: none yet."""
        return await self._home.run(self._sync.last_batch)

    async def describe(self) -> SinkState | None:
        """What the broker knows of the sink; None: nothing."""
        return await self._home.run(self._sync.describe)

    async def forget(self) -> bool:
        """Has the broker forget the sink, and drop its stages: False if it knew none.

        As `fasti.client.sinks.Sink.forget`.
        """
        return await self._home.run(self._sync.forget)

    def __repr__(self) -> str:
        return repr(self._sync)


class StageWriter:
    """Made by `sink.stage(...)`. A context manager: left without an error, it is closed.

    As `fasti.client.sinks.StageWriter`, with `await`.
    """

    _sync: SyncStageWriter

    def __init__(self, home: Home, sync: SyncStageWriter) -> None:
        self.name = sync.name
        self._home, self._sync = home, sync

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return self._sync.rows

    @property
    def stage_name(self) -> str:
        """The name of what was staged so far, for `Sink.drop`; empty: nothing."""
        return self._sync.stage_name

    @property
    def staged(self) -> Staged:
        """What `close` returned. Raises `closed` before."""
        return self._sync.staged

    async def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Sends rows; waits while too much is under way. All batches have the same columns."""
        await self._home.run(self._sync.write, batch)

    async def close(self) -> Staged:
        """Waits until everything is durable. Again: the same answer."""
        return await self._home.run(self._sync.close)

    async def abort(self) -> None:
        """Ends it at once; what was staged is dropped by `Sink.drop`, or with time."""
        await self._home.run(self._sync.abort)

    async def __aenter__(self) -> StageWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._home.run(self._sync.__exit__, kind, error, traceback)

    def __repr__(self) -> str:
        return repr(self._sync)
