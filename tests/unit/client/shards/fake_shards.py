"""Shards that are a function of the test, behind a real `ShardedTransport`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from fasti.client.shards.transport import ShardedTransport
from fasti.client.transport import OnlyShard
from fasti.core.layout import Layout
from fasti.errors import NotFound
from fasti.model import TopicSettings
from fasti.runtime import SystemRuntime
from tests.unit.client.fakes import FakeClock

Header = dict[str, Any]
Answer = tuple[Header, list[pa.Table]]


class FakeShard(OnlyShard):
    """Answers as the test says; what it was asked lies in `asked`."""

    on_network = True
    timeout_s = 30.0

    def __init__(self, number: int, cluster: FakeShards) -> None:
        self.number, self._cluster = number, cluster
        self.clock, self.runtime = FakeClock(), SystemRuntime()
        self.asked: list[tuple[str, Header, list[pa.RecordBatch]]] = []
        # What reads of this shard yield.
        self.batches: list[pa.RecordBatch] = []

    def call(
        self,
        action: str,
        header: Header | None = None,
        parts: Sequence[pa.RecordBatch] = (),
        timeout: float | None = None,
    ) -> Answer:
        header = header or {}
        if action == "topic" and action not in self._cluster.answers:
            settings = self._cluster.topics.get(header["topic"])
            if settings is None:
                raise NotFound("there is no such topic")
            return {"settings": settings.to_dict(), "counts": {}}, []
        self.asked.append((action, header, list(parts)))
        return self._cluster.answers[action](self.number, header, list(parts))

    def read(self, ticket: Header) -> Iterator[pa.RecordBatch]:
        self.asked.append(("read", ticket, []))
        yield from self.batches

    def plan(self, descriptor: Header) -> list[Header]:
        self.asked.append(("plan", descriptor, []))
        return [{**descriptor, "snapshot": self.number}]

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody asks a fake shard for {name}")


class FakeShards:
    """So many of them, with topics."""

    def __init__(self, count: int, **topics: TopicSettings) -> None:
        self.topics = topics
        self.answers: dict[str, Callable[[int, Header, list[Any]], Answer]] = {}
        self.shards = [FakeShard(number, self) for number in range(count)]
        ways: list[Any] = list(self.shards)
        self.transport = ShardedTransport(ways, clock=FakeClock(), name="fakes", close=lambda: None)

    def layout(self, topic: str) -> Layout:
        return Layout.of(self.topics[topic], len(self.shards))

    def asked(self) -> dict[int, list[tuple[str, Header, list[pa.RecordBatch]]]]:
        """Those that were asked something, and what."""
        return {shard.number: shard.asked for shard in self.shards if shard.asked}
