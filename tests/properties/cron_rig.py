"""A scheduler and an engine in one thread, on files that outlive them, beside the naive model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from fasti.broker.cron.emission import occurrence_text, one_row
from fasti.broker.cron.fire_counts import FireCounts
from fasti.broker.cron.scheduler import Scheduler
from fasti.broker.faults import Faults
from fasti.broker.threads import Threads
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.cron import commands as cc
from fasti.core.cron.schedule import Schedule
from fasti.core.replies import Deliver, SchedulesChanged, Step
from fasti.model import SECOND_US, Outcome, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard
from tests.models.cron import CronModel, Emitted

START = 1_800_000_000
SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=4096)
TARGETS = {
    # Nobody gets anything ahead of its time: what is due is what the model has emitted.
    "t": TopicSettings(lookahead_us=0, lease_us=3_600 * SECOND_US, hold_us=3_600 * SECOND_US),
    "two": TopicSettings(lookahead_us=0, partitions=3),
}


class SteppedShard:
    """As much of a `Shard` as a scheduler sees, without threads."""

    def __init__(self, files: Files, now_us: int) -> None:
        self.now = now_us
        self.local = LocalShard(FileStorage(files), SETTINGS)
        self.engine = self.local.engine
        self.clock = self
        self.recoveries = 0
        self.failed = False
        self.fire_counts = FireCounts()
        self.faults = Faults(self)
        # None of them is started.
        self.threads = Threads(30.0)
        self.on_schedules: Callable[[int], None] | None = None
        self.delivered: list[Deliver] = []

    def label(self, name: str) -> str:
        """The name of a thread that is not started."""
        return name

    def now_us(self) -> int:
        """It is its own clock."""
        return self.now

    def tick(self) -> int:
        """Monotonic time, which goes as the other does."""
        return self.now

    def submit(self, inputs: Sequence[Any], engine: Any = None) -> Future[list[Any]]:
        answer: Future[list[Any]] = Future()
        answer.set_result(self.step(inputs).replies)
        return answer

    def call(self, command: Any) -> Any:
        return self.step([command]).replies[0]

    def ask(self, query: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(self.call(query).value)
        return answer

    def step(self, inputs: Sequence[Any]) -> Step:
        step = self.local.step(inputs, self.now, 0)
        for effect in step.effects:
            if isinstance(effect, SchedulesChanged) and self.on_schedules is not None:
                self.on_schedules(effect.topic)
            if isinstance(effect, Deliver):
                self.delivered.append(effect)
        return step


class CronRig:
    """Both, told the same."""

    def __init__(self, files: Files | None = None) -> None:
        self.files = files or MemoryFiles()
        self.now_us = START * SECOND_US + SECOND_US // 2
        self.model = CronModel(self.now_us / SECOND_US)
        self.broken = False
        self.leased: dict[tuple[str, int], tuple[int, Emitted]] = {}
        self._open()
        for name, settings in TARGETS.items():
            self._ok(co.CreateTopic(name, settings))
        self._ok(co.CreateTopic("c", TopicSettings(kind="cron")))

    def _open(self) -> None:
        self.shard = SteppedShard(self.files, self.now_us)
        self.shard.step([])
        self.scheduler = Scheduler(self.shard, threaded=False)  # type: ignore[arg-type]
        self.scheduler.start()
        self.scheduler.catch_up()

    def _ok(self, command: Any) -> Any:
        reply = self.shard.call(command)
        assert reply.error is None, reply.error
        self.scheduler.catch_up()
        return reply

    # What may happen

    def put(self, name: str, schedule: Schedule) -> None:
        reply = self._ok(cc.PutSchedules("c", [(name, schedule.to_json())]))
        assert reply.value[0][0] == Outcome.OK
        self.model.put(name, schedule)

    def delete(self, name: str) -> None:
        self._ok(cc.DeleteSchedule("c", name))
        self.model.delete(name)

    def pause(self, name: str, paused: bool) -> None:
        reply = self._ok(cc.PauseSchedule("c", name, paused))
        assert reply.value == (self.model.known[name].paused != paused)
        self.model.pause(name, paused)

    def run_now(self, name: str) -> None:
        schedule = self.model.known[name].schedule
        # No two are asked for at the same moment: their payloads tell them apart.
        self.now_us += 1
        self._move_to(self.now_us)
        reply = self._ok(cc.RunSchedule("c", name, one_row(name, schedule, self.now_us)))
        asked = self.model.run_now(name, self.now_us)
        expected = Outcome.OK if asked else Outcome.CONFLICT
        assert reply.outcome() == expected

    def advance(self, seconds: int) -> None:
        until_us = self.now_us + seconds * SECOND_US
        while (at_us := self.scheduler.next_us()) is not None and at_us < until_us:
            self._move_to(max(at_us, self.now_us))
        self._move_to(until_us)
        self.model.advance(seconds)

    def _move_to(self, now_us: int) -> None:
        self.now_us = self.shard.now = now_us
        self.shard.step([])
        self.scheduler.catch_up()

    def restart(self, seconds: int, checkpoint: bool) -> None:
        if checkpoint:
            self.checkpoint()
        self.shard.local.close()
        self.now_us += seconds * SECOND_US
        self._open()
        self.model.restart(seconds)

    def checkpoint(self) -> None:
        self.shard.local.checkpoint(self.now_us, 0)

    def lease(self, count: int, finish: bool) -> None:
        """Takes some that are due; each must be one that the model has emitted."""
        for topic in TARGETS:
            self.shard.delivered.clear()
            self._ok(co.Lease(topic, 1, "w", count, wait=False))
            for delivered in self.shard.delivered:
                texts = self._payloads(delivered)
                for number, text in zip(delivered.ids.tolist(), texts, strict=True):
                    # What this consumer has already comes again, under a new token.
                    known = self.leased.get((topic, number))
                    message = self._find(text) if known is None else known[1]
                    message.state = "leased"
                    self.leased[topic, number] = (delivered.token, message)
        if finish:
            self.finish()

    def finish(self) -> None:
        """Acks everything that is out."""
        for (topic, number), (token, message) in list(self.leased.items()):
            reply = self._ok(co.Ack(topic, np.array([number]), np.array([token])))
            assert reply.all_ok
            message.state = "done"
        self.leased.clear()

    def _payloads(self, delivered: Deliver) -> list[str]:
        rows = self.shard.local.store.payloads.gather(delivered.location)
        return [payload.decode() for payload in rows.column("payload").to_pylist()]

    def _find(self, text: str) -> Emitted:
        name, _, occurrence = text.partition(" ")
        for message in self.model.of_state("ready"):
            at_us = message.mark or message.occurrence * SECOND_US
            if message.schedule == name and occurrence_text(at_us) == occurrence:
                return message
        raise AssertionError(f"{text!r} is ready, but the model has {self._ready()}")

    def _ready(self) -> Counter[tuple[str, int]]:
        return Counter((m.schedule, m.occurrence) for m in self.model.of_state("ready"))

    # What must hold

    def check(self) -> None:
        """Compares; after a difference there is nothing more to be learnt."""
        self.broken = True
        self._compare()
        self.broken = False

    def _compare(self) -> None:
        counts: Counter[str] = Counter()
        for topic in TARGETS:
            counts.update(self.shard.call(co.Count(topic)).states)
        assert counts["ready"] == len(self.model.of_state("ready")), self._ready()
        assert counts["leased"] == len(self.model.of_state("leased"))
        page = self.shard.call(cc.ReadSchedules("c")).value
        assert set(page.names) == set(self.model.known)
        for row, name in enumerate(page.names):
            known = self.model.known[name]
            assert bool(page.paused[row]) == known.paused
            assert int(page.skipped[row]) == known.skipped, name
            # Some are emitted ahead.
            assert int(page.fired[row]) >= known.fired, name

    def drain(self) -> None:
        """Everything that was emitted is there, once."""
        for name in list(self.model.known):
            if not self.model.known[name].paused:
                self.pause(name, True)
        self.finish()
        while ready := len(self.model.of_state("ready")):
            self.lease(100, finish=True)
            assert len(self.model.of_state("ready")) < ready, self._ready()
        self.check()
        for topic in TARGETS:
            left = self.shard.call(co.Count(topic)).states
            assert left["scheduled"] == left["ready"] == left["leased"] == 0
