"""A topic that nobody consumes: its entries leave memory when a checkpoint has written them."""

import numpy as np

from fasti.config import ShardSettings
from fasti.core.commands import Count, CreateTopic, Lease, Produce, When
from fasti.core.keys import Rows
from fasti.core.replies import Deliver
from fasti.model import DAY_US
from fasti.storage.file_storage import FileStorage
from fasti.storage.local_shard import LocalShard
from fasti.testing.disk import SimulatedFiles

NOW_US = 1_800_000_000_000_000


def test_entries_that_runs_hold_are_forgotten_and_come_back_in_time():
    shard = LocalShard(
        FileStorage(SimulatedFiles()), ShardSettings(memory_bytes=64 << 20, segment_bytes=1 << 20)
    )
    shard.call(CreateTopic("t"), NOW_US, 0)
    random = np.random.default_rng(1)
    due_us = NOW_US + 10 * DAY_US + random.integers(0, 20 * DAY_US, 5000)
    shard.call(Produce("t", Rows.of([b"x"] * 5000), When(due_us=due_us)), NOW_US, 0)
    calendar = shard.engine.state.by_name["t"].partitions[0].times.calendar
    assert calendar.entries == 5000
    shard.checkpoint(NOW_US + 1, 1)
    assert calendar.entries < 1500
    assert shard.call(Count("t"), NOW_US + 2, 2).states["scheduled"] == 5000
    got: list[int] = []
    step = shard.step([Lease("t", 1, "worker", 5000)], NOW_US + 40 * DAY_US, 3)
    for tick in range(4, 100):
        for effect in step.effects:
            if isinstance(effect, Deliver):
                got += effect.due_us.tolist()
        step = shard.step([], NOW_US + 40 * DAY_US, tick)
    assert got == sorted(due_us.tolist())
    shard.close()
