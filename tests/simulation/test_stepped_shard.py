"""A shard with its schedules in virtual time, without a thread: engine, commit, checkpoints and cron.

Services are steps that say when they want to be called again; here the test is the driver, and time
passes as fast as it calls them. What a broker would do in an hour takes a moment, and twice the same.
"""

from __future__ import annotations

from itertools import pairwise

from fasti.broker.cron.scheduler import Scheduler
from fasti.core import commands as co
from fasti.core.cron.commands import PutSchedules
from fasti.core.cron.schedule import Schedule
from fasti.model import MINUTE_US, SECOND_US, TopicSettings
from fasti.storage.files.memory_files import MemoryFiles
from tests.properties.cron_rig import SteppedShard

START_US = 1_700_000_000 * SECOND_US


class Simulation:
    """Drives a shard and its scheduler; opened again on the same files it goes on."""

    def __init__(self, files: MemoryFiles, now_us: int) -> None:
        self.shard = SteppedShard(files, now_us)
        self.shard.step([])
        self.scheduler = Scheduler(self.shard, threaded=False)  # type: ignore[arg-type]
        self.scheduler.start()

    def run_until(self, end_us: int) -> None:
        """Time jumps from one call to the next."""
        while self.shard.now < end_us:
            wait_s = self.scheduler.poll()
            wanted_us = end_us if wait_s is None else self.shard.now + max(1, int(wait_s * 1e6))
            self.shard.now = min(wanted_us, end_us)

    def checkpoint(self) -> None:
        self.shard.local.checkpoint(self.shard.now, 0)

    def close(self) -> None:
        self.scheduler.stop()
        self.shard.local.close()

    def due_us(self) -> list[int]:
        """When the messages that are there are due."""
        page = self.shard.call(co.List("t", limit=1000))
        return sorted(page.columns["due_us"].tolist())


def simulate() -> list[int]:
    files = MemoryFiles()
    first = Simulation(files, START_US)
    for name, settings in (("t", TopicSettings()), ("c", TopicSettings(kind="cron"))):
        assert first.shard.call(co.CreateTopic(name, settings)).error is None
    schedule = Schedule(every_us=10 * MINUTE_US, target="t")
    first.shard.call(PutSchedules("c", [("often", schedule.to_json())]))
    first.run_until(START_US + 30 * MINUTE_US)
    first.checkpoint()
    first.close()
    second = Simulation(files, first.shard.now)
    second.run_until(START_US + 60 * MINUTE_US)
    due_us = second.due_us()
    second.close()
    return due_us


def test_an_hour_of_schedules_across_a_restart() -> None:
    due_us = simulate()
    assert len(due_us) == 6
    assert {later - earlier for earlier, later in pairwise(due_us)} == {10 * MINUTE_US}
    assert due_us == simulate()
