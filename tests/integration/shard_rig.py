"""What tests of the threaded shard share: a disk for threads, and a clock that only they move."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.queries import ReadPosition
from fasti.errors import FastiError
from fasti.model import TopicSettings
from fasti.runtime import MachineClock, SystemRuntime
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import File
from fasti.testing.disk import SimulatedFiles

NOW_US = 1_700_000_000_000_000
SETTINGS = ShardSettings(
    segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096, feed_bytes=0
)


class SharedFiles(SimulatedFiles):
    """A simulated disk whose folder several threads may change."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._mutex = threading.RLock()
        # Faults hit only files with this in their name.
        self.faulty = ""

    def step(self, kind: str, name: str) -> bool:
        with self._mutex:
            return super().step(kind if self.faulty in name else f"other {kind}", name)

    def create(self, name: str, size_bytes: int) -> File:
        with self._mutex:
            return super().create(name, size_bytes)

    def delete(self, name: str) -> None:
        with self._mutex:
            super().delete(name)

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            super().rename(old, new)

    def sync_directory(self, name: str) -> None:
        with self._mutex:
            super().sync_directory(name)

    def list(self, prefix: str) -> list[str]:
        with self._mutex:
            return super().list(prefix)

    def free_bytes(self) -> int:
        with self._mutex:
            return super().free_bytes()


class FakeClock:
    """Stands still until somebody moves it on, and then wakes the shard."""

    boot = ""

    def __init__(self) -> None:
        self._now_us = NOW_US
        self._tick = 0

    def wall_ns(self) -> int:
        return self._now_us * 1000

    def elapsed_ns(self) -> int:
        return self._tick * 1000

    def tick(self) -> int:
        return self._tick

    def set_wall(self, by_us: int) -> None:
        """Somebody sets the wall clock."""
        self._now_us += by_us

    def advance(self, shard: Shard, by_us: int) -> None:
        self._now_us += by_us
        self._tick += by_us
        shard.ask(ReadPosition()).result(60)


@contextmanager
def held_up(shard: Shard) -> Iterator[None]:
    """The sequencer stands in a step: what is submitted meanwhile is decided in the next ones."""
    holding, go_on = threading.Event(), threading.Event()
    engine, step = shard.engine, shard.engine.step

    def wait(*arguments: Any) -> Any:
        engine.step = step  # type: ignore[method-assign]
        holding.set()
        assert go_on.wait(60)
        return step(*arguments)

    engine.step = wait  # type: ignore[method-assign]
    answer = shard.ask(ReadPosition())
    assert holding.wait(60)
    try:
        yield
    finally:
        go_on.set()
        # Tests make steps fail, and this one may be the first.
        with suppress(FastiError):
            answer.result(60)


@contextmanager
def serving(
    files: Any, settings: ShardSettings = SETTINGS, clock: MachineClock | None = None
) -> Iterator[Shard]:
    shard = Shard(FileStorage(files), settings, SystemRuntime(clock))
    try:
        yield shard
    finally:
        shard.close(checkpoint=False)


def int64s(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


def make_topic(shard: Shard, name: str = "t", **settings: Any) -> None:
    assert shard.call(co.CreateTopic(name, TopicSettings(**settings)), 10).error is None


def produce(shard: Shard, *payloads: bytes, due_us: int = NOW_US, **more: Any) -> list[int]:
    """Ids of new messages; the keys may be given as `key=[...]`."""
    rows = Rows.of(list(payloads), **more)
    keys = rows.keys(shard.store.seed)
    reply = shard.call(co.Produce("t", rows, co.When(due_us=due_us), keys=keys), 10)
    if reply.error is not None:
        raise reply.error
    assert reply.all_ok
    return reply.ids.tolist()


def cancel(shard: Shard, *ids: int) -> Any:
    return shard.call(co.Cancel("t", co.Target(ids=int64s(*ids))), 10)


def shown(shard: Shard) -> dict[int, bytes]:
    """The payload of every message."""
    page = shard.call(co.List("t", limit=60_000), 10)
    if not len(page.ids):
        return {}
    _, contents = shard.fetch("t", co.Target(ids=page.ids))
    return dict(zip(page.ids.tolist(), contents.column("payload").to_pylist(), strict=True))
