"""Stalls are counted by cause, in virtual time; steady traffic has none."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from fasti.broker.metrics.counts import Metrics
from fasti.broker.request import Request
from fasti.broker.shard import Shard
from fasti.broker.stalls import LEAST_S, Stalls
from fasti.config import ShardSettings
from fasti.core.commands import Cancel, Count, CreateTopic, Lease, Produce, Target
from fasti.core.keys import Rows
from fasti.storage.file_storage import FileStorage
from fasti.storage.memory_storage import MemoryStorage
from fasti.testing.disk import SimulatedFiles
from tests.simulation.runtime import SimulatedRuntime

SETTINGS = ShardSettings(memory_bytes=64 << 20, segment_bytes=1 << 16)


def counted(shard: Shard) -> dict[tuple[str, str], int]:
    return {labels: count for labels, count in shard.stalls.counts().items() if count}


def test_each_cause_counts_from_its_length_on() -> None:
    stalls = Stalls(lambda: 0.0)
    assert stalls.counts() == {(cause, ""): 0 for cause in LEAST_S}
    for cause, least_s in LEAST_S.items():
        stalls.note(cause, least_s)
        if least_s:
            stalls.note(cause, least_s * 0.99)
    assert stalls.counts() == {(cause, ""): 1 for cause in LEAST_S}


def test_a_step_is_told_by_what_has_most_rows() -> None:
    answer: Future[Any] = Future()
    inputs = [Count("t"), Cancel("t", Target(ids=np.arange(1, 9))), Produce("t", Rows.of([b"x"]))]
    stalls = Stalls(lambda: 0.0)
    stalls.note("step", 1.0, [Request.of(inputs, answer, None)])
    assert stalls.counts()["step", "Cancel"] == 1
    assert stalls.counts()["step", ""] == 0


def test_collections_are_measured_from_start_to_stop() -> None:
    runtime = SimulatedRuntime()
    stalls = Stalls(runtime.monotonic)
    for took_us in (100, 4_999, 5_000, 40_000):
        stalls.collector("start", {})
        runtime.clock.move(tick_us=took_us)
        stalls.collector("stop", {})
    assert stalls.counts()["collection", ""] == 2


@pytest.fixture
def runtime() -> SimulatedRuntime:
    return SimulatedRuntime()


def test_a_slow_step_and_a_slow_sync_are_counted(runtime: SimulatedRuntime) -> None:
    shard = Shard(FileStorage(SimulatedFiles()), SETTINGS, runtime)
    shard.call(CreateTopic("t"))
    step, sync, append = shard.engine.step, shard.store.journal.sync, shard.store.journal.append

    def slow_step(*arguments: Any) -> Any:
        runtime.clock.move(tick_us=12_000)
        return step(*arguments)

    def slow_sync() -> int:
        runtime.clock.move(tick_us=60_000)
        return sync()

    def slow_append(*arguments: Any, **named: Any) -> None:
        runtime.clock.move(tick_us=60_000)
        append(*arguments, **named)

    assert counted(shard) == {}
    shard.engine.step = slow_step  # type: ignore[method-assign]
    shard.call(Produce("t", Rows.of([b"x"])))
    shard.engine.step = step  # type: ignore[method-assign]
    assert counted(shard) == {("step", "Produce"): 1}
    shard.store.journal.sync = slow_sync  # type: ignore[method-assign]
    shard.call(Produce("t", Rows.of([b"x"])))
    shard.store.journal.sync = sync  # type: ignore[method-assign]
    shard.store.journal.append = slow_append  # type: ignore[method-assign]
    shard.call(Produce("t", Rows.of([b"x"])))
    shard.store.journal.append = append  # type: ignore[method-assign]
    assert counted(shard) == {("step", "Produce"): 1, ("sync", ""): 1, ("write", ""): 1}
    page = Metrics().text(shard)
    assert 'fasti_stalls_total{cause="step",command="Produce"} 1.0' in page
    assert 'fasti_stalls_total{cause="segment",command=""} 0.0' in page
    shard.close()


def test_traffic_over_many_segments_waits_for_none(runtime: SimulatedRuntime) -> None:
    """A spare is prepared while the segment before it fills up."""
    shard = Shard(FileStorage(SimulatedFiles()), SETTINGS, runtime)
    shard.call(CreateTopic("t"))
    session = shard.open_session()
    shard.call(Lease("t", session.number, "c", 10_000))
    for _ in range(100):
        shard.call(Produce("t", Rows.of([b"x" * 1_000] * 10)))
        runtime.sleep(0.01)
    assert shard.store.journal.last_sequence > 100
    assert counted(shard) == {}
    shard.close()


def test_bulk_without_a_prepared_segment_is_counted(runtime: SimulatedRuntime) -> None:
    shard = Shard(FileStorage(SimulatedFiles()), SETTINGS, runtime)
    shard.call(CreateTopic("t"))
    runtime.sleep(1.0)
    answers = [shard.submit([Produce("t", Rows.of([b"x"] * 3_000))]) for _ in range(3)]
    for answer in answers:
        assert answer.result(60.0)[0].error is None
    assert counted(shard).get(("room", ""), 0) > 0
    shard.close()


def test_a_shard_in_memory_has_none(runtime: SimulatedRuntime) -> None:
    shard = Shard(MemoryStorage(), SETTINGS, runtime)
    shard.call(CreateTopic("t"))
    for _ in range(10):
        shard.call(Produce("t", Rows.of([b"x"] * 100)))
    assert counted(shard) == {}
    shard.close()
