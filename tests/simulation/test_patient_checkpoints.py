"""A checkpoint that would mostly write what is about to be consumed waits for that, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fasti.broker import housekeeper
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core import checkpoint
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.errors import StorageFailed
from fasti.model import HOUR_US, TopicSettings
from fasti.storage.memory_storage import MemoryStorage
from tests.integration.shard_rig import int64s
from tests.simulation.runtime import SimulatedRuntime

SETTINGS = ShardSettings(
    segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096, checkpoint_bytes=1 << 14
)
# Together more than a checkpoint waits for, and much less than it waits for at most.
SOME = [b"x" * 1000] * 20


@pytest.fixture
def runtime() -> SimulatedRuntime:
    return SimulatedRuntime()


@pytest.fixture
def shard(runtime: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shard]:
    monkeypatch.setattr(housekeeper, "_SHORT_LIVED_MIN", len(SOME))
    shard = Shard(MemoryStorage(), SETTINGS, runtime)
    shard.call(co.CreateTopic("t", TopicSettings()))
    yield shard
    shard.close(checkpoint=False)


def produce(shard: Shard, delay_us: int = 0) -> None:
    shard.call(co.Produce("t", Rows.of(SOME), co.When(delay_us=delay_us)))


def checkpoints(shard: Shard) -> int:
    return shard.housekeeper.checkpoints


def test_it_begins_when_what_it_waited_for_is_consumed_and_has_nothing_to_write(
    shard: Shard, runtime: SimulatedRuntime
) -> None:
    produce(shard)
    runtime.sleep(5.0)
    assert checkpoints(shard) == 0
    session = shard.open_session()
    session.lease("t", "consumer", len(SOME))
    delivery = session.receive(timeout=60.0)
    assert delivery is not None
    ids = delivery.leased.ids
    assert len(ids) == len(SOME)
    runtime.sleep(1.0)
    # Under lease it is still about to be gone.
    assert checkpoints(shard) == 0
    shard.call(co.Ack("t", ids, int64s(*[delivery.leased.token] * len(ids))))
    assert runtime.run_until(lambda: checkpoints(shard), 1.0)
    assert shard.store.manifest.blocks == []
    session.close()


def test_it_waits_for_ten_seconds_and_not_for_ever(shard: Shard, runtime: SimulatedRuntime) -> None:
    produce(shard)
    runtime.sleep(9.0)
    assert checkpoints(shard) == 0
    assert runtime.run_until(lambda: checkpoints(shard), 2.0)
    assert sum(block.rows for block in shard.store.manifest.blocks) == len(SOME)
    # The next one has its own ten seconds.
    produce(shard)
    runtime.sleep(9.0)
    assert checkpoints(shard) == 1
    assert runtime.run_until(lambda: checkpoints(shard) == 2, 2.0)


def test_it_begins_when_the_journal_has_grown_by_four_times_as_much(
    shard: Shard, runtime: SimulatedRuntime
) -> None:
    for _ in range(4):
        produce(shard)
    assert runtime.run_until(lambda: checkpoints(shard), 1.0)


def test_what_is_due_later_is_not_waited_for(shard: Shard, runtime: SimulatedRuntime) -> None:
    produce(shard, HOUR_US)
    assert runtime.run_until(lambda: checkpoints(shard), 0.1)


def test_what_a_paused_topic_has_is_not_waited_for(shard: Shard, runtime: SimulatedRuntime) -> None:
    shard.call(co.PauseTopic("t", True))
    produce(shard)
    assert runtime.run_until(lambda: checkpoints(shard), 0.1)


def test_what_lies_in_runs_already_is_not_taken_for_new(
    shard: Shard, runtime: SimulatedRuntime
) -> None:
    # The same number in runs and due, and as many in the journal that are due later.
    produce(shard)
    shard.checkpoint()
    produce(shard, HOUR_US)
    assert runtime.run_until(lambda: checkpoints(shard) == 2, 0.1)


def test_who_asks_for_one_does_not_wait(shard: Shard) -> None:
    produce(shard)
    shard.checkpoint()
    assert checkpoints(shard) == 1


def test_so_few_that_writing_them_costs_nothing_are_not_waited_for(
    shard: Shard, runtime: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeper, "_SHORT_LIVED_MIN", len(SOME) + 1)
    produce(shard)
    assert runtime.run_until(lambda: checkpoints(shard), 0.1)


def test_one_that_becomes_due_right_after_another_failed_is_written_though_nothing_more_comes(
    shard: Shard, runtime: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StorageFailed("for once")

    with monkeypatch.context() as patch:
        patch.setattr(shard.housekeeper, "_checkpoint", fail)
        with pytest.raises(StorageFailed):
            shard.checkpoint()
    # It has seen that none is due.
    runtime.sleep(0.1)
    produce(shard, HOUR_US)
    assert checkpoints(shard) == 0
    assert runtime.run_until(lambda: checkpoints(shard), 5.0)


def test_where_counting_would_take_long_nothing_is_waited_for(
    shard: Shard, runtime: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_COUNTED_MAX", 0)
    produce(shard)
    assert runtime.run_until(lambda: checkpoints(shard), 0.1)
