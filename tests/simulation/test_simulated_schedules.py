"""A shard with its schedules in virtual time, without a thread: an hour takes a moment, and twice the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from fasti.broker.cron.scheduler import Scheduler
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.cron.commands import Fire, PutSchedules
from fasti.core.cron.schedule import Schedule
from fasti.model import MINUTE_US, SECOND_US, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.memory_storage import MemoryStorage
from fasti.storage.storage_engine import StorageEngine
from tests.integration.shard_rig import SharedFiles
from tests.simulation.runtime import SimulatedRuntime

SETTINGS = ShardSettings(segment_bytes=1 << 16, memory_bytes=64 << 20, leases_max=4096)
HALF_AN_HOUR_S = 1_800.0


class Simulation:
    """A shard and its scheduler; opened again on the same storage it goes on."""

    def __init__(self, runtime: SimulatedRuntime, storage: StorageEngine) -> None:
        self.runtime = runtime
        self.shard = Shard(storage, SETTINGS, runtime)
        self.scheduler = Scheduler(self.shard)
        self.scheduler.start()

    def put_schedule(self, schedule: Schedule) -> None:
        for name, settings in (("t", TopicSettings()), ("c", TopicSettings(kind="cron"))):
            assert self.shard.call(co.CreateTopic(name, settings)).error is None
        self.shard.call(PutSchedules("c", [("often", schedule.to_json())]))

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
    first.put_schedule(Schedule(every_us=10 * MINUTE_US, target="t"))
    runtime.sleep(HALF_AN_HOUR_S)
    first.close()
    second = Simulation(runtime, storage)
    runtime.sleep(HALF_AN_HOUR_S)
    due_us = second.due_us()
    second.close()
    return due_us


def test_what_was_sent_to_an_engine_that_is_gone_is_left_to_the_scheduler() -> None:
    """It sends many occurrences at once. If the disk fails for one of them, those behind it may not be
    decided by the next engine: that would take the lost one for done.
    """
    files, runtime = SharedFiles(), SimulatedRuntime()
    simulation = Simulation(runtime, FileStorage(files))
    shard, submit = simulation.shard, simulation.shard.submit
    fires = 0

    def fail_once(inputs: Any, *engine: Any, **options: Any) -> Any:
        nonlocal fires
        answer = submit(inputs, *engine, **options)
        fires += isinstance(inputs[0], Fire)
        if fires == 3 and not shard.recoveries:
            files.faulty = ".segment"
            files.fail("sync", 1)
            assert runtime.run_until(lambda: shard.failure is not None, 60.0)
        return answer

    simulation.put_schedule(Schedule(every_us=SECOND_US // 10, target="t", misfire="all"))
    runtime.sleep(1.0)
    shard.submit = fail_once  # type: ignore[method-assign]
    # The scheduler has no turn for a while.
    runtime.clock.move(SECOND_US, SECOND_US)
    runtime.sleep(5.0)
    assert shard.recoveries == 1
    due_us = simulation.due_us()
    assert len(due_us) > 100
    assert {later - earlier for earlier, later in pairwise(due_us)} == {SECOND_US // 10}
    simulation.close()


def test_an_hour_of_schedules_across_a_restart() -> None:
    due_us = simulate(1)
    assert len(due_us) == 6
    assert {later - earlier for earlier, later in pairwise(due_us)} == {10 * MINUTE_US}
    assert due_us == simulate(1)
