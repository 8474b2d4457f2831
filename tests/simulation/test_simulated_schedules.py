"""A shard with its schedules in virtual time, without a thread: an hour takes a moment, and twice the same."""

from __future__ import annotations

from itertools import pairwise

from fasti.broker.cron.scheduler import Scheduler
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.cron.commands import PutSchedules
from fasti.core.cron.schedule import Schedule
from fasti.model import MINUTE_US, TopicSettings
from fasti.storage.memory_storage import MemoryStorage
from tests.simulation.runtime import SimulatedRuntime

SETTINGS = ShardSettings(memory_bytes=64 << 20, leases_max=4096)
HALF_AN_HOUR_S = 1_800.0


class Simulation:
    """A shard and its scheduler; opened again on the same storage it goes on."""

    def __init__(self, runtime: SimulatedRuntime, storage: MemoryStorage) -> None:
        self.runtime = runtime
        self.shard = Shard(storage, SETTINGS, runtime)
        self.scheduler = Scheduler(self.shard)
        self.scheduler.start()

    def close(self) -> None:
        self.scheduler.stop()
        self.shard.close()

    def due_us(self) -> list[int]:
        """When the messages that are there are due."""
        page = self.shard.call(co.List("t", limit=1000))
        return sorted(page.columns["due_us"].tolist())


def simulate(seed: int) -> list[int]:
    runtime, storage = SimulatedRuntime(seed), MemoryStorage()
    first = Simulation(runtime, storage)
    for name, settings in (("t", TopicSettings()), ("c", TopicSettings(kind="cron"))):
        assert first.shard.call(co.CreateTopic(name, settings)).error is None
    schedule = Schedule(every_us=10 * MINUTE_US, target="t")
    first.shard.call(PutSchedules("c", [("often", schedule.to_json())]))
    runtime.sleep(HALF_AN_HOUR_S)
    first.close()
    second = Simulation(runtime, storage)
    runtime.sleep(HALF_AN_HOUR_S)
    due_us = second.due_us()
    second.close()
    return due_us


def test_an_hour_of_schedules_across_a_restart() -> None:
    due_us = simulate(1)
    assert len(due_us) == 6
    assert {later - earlier for earlier, later in pairwise(due_us)} == {10 * MINUTE_US}
    assert due_us == simulate(1)
