"""A shard in memory with a log, and its rows as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fasti.config import ShardSettings
from fasti.core.commands import CreateTopic, Produce
from fasti.core.keys import Keys, Rows
from fasti.core.log.commands import DescribeLog, FindOffset, LogPage, ReadLog
from fasti.core.replies import Reply
from fasti.model import SECOND_US, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard
from fasti.storage.log_rows import offset_at, read_piece

START_US = 1_700_000_000 * SECOND_US
SETTINGS = ShardSettings(segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096)


class LogRig:
    """One log topic, at a time that only the test moves."""

    def __init__(self, files: Files | None = None, **settings: Any) -> None:
        self.files = files or MemoryFiles()
        self.shard = LocalShard(FileStorage(self.files), SETTINGS)
        self.now_us = START_US
        self.create("events", **settings)

    def create(self, topic: str, kind: str = "log", **settings: Any) -> None:
        reply = self.call(CreateTopic(topic, TopicSettings(kind=kind, **settings)))
        assert reply.error is None, reply.error

    def call(self, command: Any) -> Any:
        return self.shard.call(command, self.now_us, 0)

    def command(
        self, payloads: Sequence[bytes], keys: Sequence[str | None] | None = None, **more: Any
    ) -> Produce:
        topic = more.pop("topic", "events")
        columns = {"key": keys} if keys is not None else {}
        rows = Rows.of(list(payloads), **columns)
        hashed = None
        if keys is not None:
            hashed = Keys(pa.array(keys, pa.string()), self.shard.store.seed)
        return Produce(topic, rows, keys=hashed, **more)

    def produce(self, payloads: Sequence[bytes], *keys: Any, **more: Any) -> Reply:
        reply: Reply = self.call(self.command(payloads, *keys, **more))
        if reply.error is not None:
            raise reply.error
        return reply

    def page(self, partition: int, offset: int, rows_max: int = 65_536) -> LogPage:
        page: LogPage = self.call(ReadLog("events", partition, offset, rows_max))
        if page.error is not None:
            raise page.error
        return page

    def read(self, partition: int = 0, offset: int | None = None) -> list[dict[str, Any]]:
        """Every row from an offset on (by default the first), with its offset."""
        described = self.describe(partition)
        reached = described["earliest"] if offset is None else offset
        found: list[dict[str, Any]] = []
        while reached < described["end"]:
            for piece in self.page(partition, reached).pieces:
                assert piece.first_offset == reached, "no holes"
                batch = read_piece(self.shard.store.payloads, piece)
                for place, row in enumerate(batch.to_pylist()):
                    found.append({"offset": reached + place, **row})
                reached += piece.count
        return found

    def payloads(self, partition: int = 0) -> list[bytes]:
        return [row["payload"] for row in self.read(partition)]

    def describe(self, partition: int = 0) -> dict[str, int]:
        described: dict[str, int] = self.call(DescribeLog("events")).value[partition]
        return described

    def at(self, time_us: int, partition: int = 0) -> int:
        page: LogPage = self.call(FindOffset("events", partition, time_us))
        if not page.pieces:
            return page.end
        return offset_at(self.shard.store.payloads, page.pieces[0], time_us)

    def checkpoint(self) -> None:
        self.shard.checkpoint(self.now_us, 0)

    def restart(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), SETTINGS)

    def step(self, seconds: float = 0) -> None:
        self.now_us += int(seconds * SECOND_US)
        self.shard.step([], self.now_us, 0)
