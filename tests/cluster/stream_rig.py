"""The streams of one shard of a cluster that no other test has, and what is made of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from fasti.cluster.block_cache import BlockCache
from fasti.cluster.names import ShardNames
from fasti.cluster.nats import NatsConnection
from fasti.cluster.pack_stream import PackStream
from fasti.cluster.patience import Timeouts
from fasti.cluster.pointer import Pointer
from fasti.cluster.stream_blocks import StreamBlocks
from fasti.cluster.stream_journal import JournalLimits, StreamJournal
from tests.cluster.nats_rig import new_cluster

LIMITS = JournalLimits(64 << 20, 1 << 20)
# A busy machine may be slow to answer.
PATIENT = Timeouts(call_s=30.0, open_s=60.0)


class ShardStreams:
    """Makes the streams, and removes them at the end."""

    def __init__(
        self,
        connection: NatsConnection,
        replicas: int = 3,
        limits: JournalLimits = LIMITS,
        timeouts: Timeouts = PATIENT,
    ) -> None:
        self.connection, self.limits, self.timeouts = connection, limits, timeouts
        self.names = ShardNames.of(new_cluster(), 0)
        self.configs: Sequence[dict[str, object]] = (
            PackStream.config(self.names, replicas, limits.bytes_max),
            StreamBlocks.stream_config(self.names, replicas, 64 << 20),
            Pointer.stream_config(self.names, replicas),
        )
        for config in self.configs:
            connection.ensure_stream(config)
        self._numbers = itertools.count(1)
        self.pointer = self.new_pointer()

    def new_pointer(self) -> Pointer:
        return Pointer(self.connection, self.names, self.timeouts, grace_s=0)

    def open_journal(self, broker: str = "broker") -> StreamJournal:
        """Takes over. The pointer is that of the last opening."""
        self.pointer = self.new_pointer()
        stream = PackStream(self.connection, self.names)
        return StreamJournal(stream, self.pointer, broker, self.limits, timeouts=self.timeouts)

    def open_blocks(self, directory: Path | None = None) -> StreamBlocks:
        """With the pointer claimed, as by a leader."""
        self.pointer = self.new_pointer()
        record = self.pointer.read()
        claim = replace(record, epoch=record.epoch + 1, broker="broker")
        self.pointer.write(claim, record.revision)
        self.pointer.own()
        cache = None if directory is None else BlockCache(directory, 8 << 20)
        return StreamBlocks(
            self.connection, self.names, self.pointer, cache, timeouts=self.timeouts, grace_s=0
        )

    def checkpoint(self, journal: StreamJournal, position: int) -> None:
        number = next(self._numbers)
        place = journal.place_of(position)
        self.pointer.switch(f"manifest-{number}", number, position, place)

    def __enter__(self) -> ShardStreams:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for config in self.configs:
            self.connection.delete_stream(str(config["name"]))
