"""Since when the oldest ready message is due: as a scan would find it, or to the minute."""

from __future__ import annotations

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.priority.kind import PriorityPartition
from fasti.core.replies import Counts
from fasti.core.rows.arena import FRAME_BITS, STATE_MASK
from fasti.model import MINUTE_US, State, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.local_shard import LocalShard
from fasti.testing.disk import SimulatedFiles

NOW_US = 1_800_000_000_000_000
SECOND_US = 1_000_000


class Rig:
    def __init__(self, kind: str = "timeline", partitions: int = 1) -> None:
        settings = ShardSettings(memory_bytes=64 << 20, segment_bytes=1 << 20)
        self.shard = LocalShard(FileStorage(SimulatedFiles()), settings)
        self.now_us, self.tick = NOW_US, 0
        self.call(co.CreateTopic("t", TopicSettings(kind=kind, partitions=partitions)))

    def call(self, command: object) -> object:
        self.tick += 1
        reply = self.shard.call(command, self.now_us, self.tick)
        assert reply.error is None
        return reply

    def produce(self, *ages_s: float, priorities: list[int] | None = None) -> list[int]:
        due_us = np.array([self.now_us - round(age * SECOND_US) for age in ages_s])
        rows, when = Rows.of([b"x"] * len(ages_s)), co.When(due_us=due_us)
        ranks = None if priorities is None else np.array(priorities, dtype=np.uint16)
        return self.call(co.Produce("t", rows, when, priorities=ranks)).ids.tolist()  # type: ignore[attr-defined]

    def cancel(self, ids: list[int]) -> None:
        self.call(co.Cancel("t", co.Target(ids=np.array(ids))))

    def lease(self, count: int) -> None:
        self.tick += 1
        self.shard.step([co.Lease("t", 1, "worker", count)], self.now_us, self.tick)

    def oldest_us(self) -> int | None:
        found = self.call(co.Count("t"))
        assert isinstance(found, Counts)
        return found.oldest_ready_us

    def scanned_us(self) -> int | None:
        """By looking at every row."""
        found = []
        for partition in self.shard.engine.state.by_name["t"].partitions:
            for frame in partition.ledger.frames().tolist():
                rows = slice(frame << FRAME_BITS, (frame + 1) << FRAME_BITS)
                due_us = partition.arena.due[rows]
                scheduled = partition.arena.flags[rows] & STATE_MASK == State.SCHEDULED
                found += due_us[scheduled & (due_us <= self.now_us)].tolist()
        return min(found, default=None)


@pytest.mark.parametrize("kind", ["timeline", "priority"])
def test_it_is_there_before_anybody_consumes(kind: str) -> None:
    rig = Rig(kind)
    assert rig.oldest_us() is None
    rig.produce(-10, -3600)
    assert rig.oldest_us() is None
    rig.produce(2, 300, 50)
    assert rig.oldest_us() == NOW_US - 300 * SECOND_US
    rig.now_us += 600 * SECOND_US
    assert rig.oldest_us() == NOW_US - 300 * SECOND_US


def test_what_is_leased_or_cancelled_is_not_ready() -> None:
    rig = Rig()
    ids = rig.produce(500, 400, 300)
    rig.lease(1)
    assert rig.oldest_us() == NOW_US - 400 * SECOND_US
    rig.cancel(ids[1:2])
    assert rig.oldest_us() == NOW_US - 300 * SECOND_US
    rig.cancel(ids[2:])
    assert rig.oldest_us() is None


def test_behind_many_that_are_gone_it_is_known_to_the_minute() -> None:
    """A thousand entries at the head say nothing any more, and nobody goes through them all."""
    rig = Rig()
    gone = rig.produce(*([7200] * 1000))
    rig.oldest_us()  # They are in the line.
    rig.produce(3600)
    rig.cancel(gone)
    found = rig.oldest_us()
    assert found is not None
    assert found // MINUTE_US == (NOW_US - 3600 * SECOND_US) // MINUTE_US


def test_by_rank_the_oldest_stands_anywhere() -> None:
    rig = Rig("priority")
    rig.produce(5, 900, 60, priorities=[0, 9, 3])
    rig.lease(1)
    assert rig.oldest_us() == NOW_US - 900 * SECOND_US
    partition = rig.shard.engine.state.by_name["t"].partitions[0]
    assert isinstance(partition, PriorityPartition)
    assert partition.times.ranked.entries == 2
    assert rig.call(co.Count("t")).states["leased"] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_a_scan_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rig = Rig(["timeline", "priority"][seed % 2], partitions=1 + seed % 3)
    ids: list[int] = []
    for _ in range(25):
        ids += rig.produce(*rng.integers(-600, 600, int(rng.integers(1, 30))).tolist())
        rig.lease(int(rng.integers(0, 10)))
        rig.cancel(rng.choice(ids, min(len(ids), 5), replace=False).tolist())
        if rng.random() < 0.2:
            rig.shard.checkpoint(rig.now_us, rig.tick)
        rig.now_us += int(rng.integers(0, 90)) * SECOND_US
        # A consumer that still waits is served behind the count.
        expected = rig.scanned_us()
        found = rig.oldest_us()
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found // MINUTE_US == expected // MINUTE_US
            assert found <= expected
