"""Schedules on a disk that loses everything that it may lose, stopped before every operation.

A story of some seconds is told to a scheduler and an engine: schedules fire, a consumer acks, there
are checkpoints and changes. The disk is photographed before its operations, as a crash at that moment
would leave it. Every photograph is opened some seconds later and goes on for a while; then each
occurrence since the beginning has exactly one message, finished or not.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pytest

from fasti.broker.cron.scheduler import Scheduler
from fasti.core import commands as co
from fasti.core.cron import commands as cc
from fasti.core.cron.schedule import Schedule
from fasti.model import SECOND_US, TopicSettings
from fasti.testing.disk import SimulatedFiles
from tests.crash.photographs import PhotographedFiles
from tests.properties.cron_rig import START, SteppedShard
from tests.seeds import seeds

BEGIN_US = START * SECOND_US + SECOND_US // 2
TEXT = b"{{schedule}} {{occurrence}}"
# Whatever is missed is made up for: every occurrence counts.
ALL = {"misfire": "all", "misfire_max": 1_000, "payload": TEXT, "template": True}
SCHEDULES = {
    "ahead": Schedule("t", every_us=SECOND_US, **ALL),  # type: ignore[arg-type]
    "cron": Schedule("t", cron="*/5 * * * * *", timezone="Europe/Paris", **ALL),  # type: ignore[arg-type]
    "strict": Schedule("t", every_us=2 * SECOND_US, overlap="skip", **ALL),  # type: ignore[arg-type]
}
STEPS = {"ahead": 1, "cron": 5, "strict": 2}


@dataclass
class Believed:
    """What the consumer was told."""

    acked: set[str] = field(default_factory=set)
    acking: set[str] = field(default_factory=set)

    def copy(self) -> Believed:
        return Believed(set(self.acked), set(self.acking))


class Told:
    """A scheduler, an engine and a consumer, second by second."""

    def __init__(self, files: SimulatedFiles, now_us: int, believed: Believed) -> None:
        self.believed = believed
        self.shard = SteppedShard(files, now_us)
        self.shard.step([])
        self.scheduler = Scheduler(self.shard, threaded=False)  # type: ignore[arg-type]
        self.scheduler.start()
        self.scheduler.catch_up()

    def do(self, command: object) -> None:
        reply = self.shard.call(command)
        assert reply.error is None, reply.error
        self.scheduler.catch_up()

    def pass_seconds(self, seconds: int) -> None:
        until_us = self.shard.now + seconds * SECOND_US
        while (at_us := self.scheduler.next_us()) is not None and at_us < until_us:
            self._move_to(max(at_us, self.shard.now))
        self._move_to(until_us)

    def _move_to(self, now_us: int) -> None:
        self.shard.now = now_us
        self.shard.step([])
        self.scheduler.catch_up()

    def consume(self, count: int) -> list[str]:
        """Leases some that are due, and acks them."""
        shard = self.shard
        shard.delivered.clear()
        shard.call(co.Lease("t", 1, "w", count, wait=False))
        texts: list[str] = []
        for found in shard.delivered:
            rows = shard.local.store.payloads.gather(found.location)
            mine = [payload.decode() for payload in rows.column("payload").to_pylist()]
            self.believed.acking = set(mine)
            tokens = np.full(len(mine), found.token, dtype=np.int64)
            assert shard.call(co.Ack("t", found.ids, tokens)).all_ok
            self.believed.acked |= self.believed.acking
            self.believed.acking = set()
            texts += mine
        self.scheduler.catch_up()
        return texts


def occurrences(name: str, until_us: int) -> list[str]:
    seconds = range(START + 1, until_us // SECOND_US + 1)
    moments = [datetime.fromtimestamp(s, UTC) for s in seconds if s % STEPS[name] == 0]
    return [f"{name} {moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments]


def check(image: SimulatedFiles, now_us: int, before: Believed, downtime: int) -> None:
    """Opens a photograph, goes on, and looks at every occurrence since the beginning."""
    believed = before.copy()
    unsure = set(believed.acking)
    told = Told(image, now_us + downtime * SECOND_US, believed)
    told.pass_seconds(3)
    drained: Counter[str] = Counter()
    while found := told.consume(10_000):
        drained.update(found)
    until_us = told.shard.now
    counts = told.shard.call(co.Count("t")).states
    assert counts["ready"] == counts["leased"] == 0
    seen = drained + Counter(dict.fromkeys(before.acked, 1))
    assert not {text: times for text, times in seen.items() if times > 1}, "a second message"
    lost_acks = {text for text in unsure if text not in drained}
    assert counts["done"] == seen.total() + len(lost_acks)
    for name in ("ahead", "cron"):
        missing = set(occurrences(name, until_us)) - set(seen) - lost_acks
        assert not missing, "an occurrence without a message"
    page = told.shard.call(cc.ReadSchedules("c", "strict")).value
    decided = int(page.fired[0]) + int(page.skipped[0])
    assert decided == len(occurrences("strict", until_us))
    told.shard.local.close()


@pytest.mark.parametrize("seed", seeds(2, range(4)))
def test_every_occurrence_has_one_message_whenever_it_crashes(seed: int) -> None:
    rng = random.Random(seed)
    files = PhotographedFiles()
    told = Told(files, BEGIN_US, Believed())
    # Nobody gets anything ahead of its time, so that what is due can be counted.
    told.do(co.CreateTopic("t", TopicSettings(lookahead_us=0, partitions=2)))
    told.do(co.CreateTopic("c", TopicSettings(kind="cron")))
    told.do(cc.PutSchedules("c", [(name, each.to_json()) for name, each in SCHEDULES.items()]))
    taken: list[tuple[SimulatedFiles, int, Believed]] = []

    def photograph(operation: int) -> None:
        if operation % 3 == seed % 3:
            taken.append((files.crash(rng), told.shard.now, told.believed.copy()))

    files.photograph = photograph
    for second in range(14):
        told.pass_seconds(1)
        if rng.random() < 0.7:
            told.consume(rng.choice([1, 3, 100]))
        if second == 6:
            told.shard.local.checkpoint(told.shard.now, 0)
        if second in (3, 9):
            # Another header: what was emitted ahead is taken back and emitted anew.
            changed = {**SCHEDULES["ahead"].to_dict(), "headers": {"at": str(second)}}
            definition = Schedule.from_dict(changed).to_json()
            told.do(cc.PutSchedules("c", [("ahead", definition)]))
    assert len(taken) > 15
    for image, now_us, believed in taken:
        check(image, now_us, believed, rng.choice([0, 1, 5, 30]))


def test_what_came_due_while_a_broker_ran_stays_whatever_the_misfire_policy() -> None:
    """Nobody consumed it in time; that is no reason to take it back after a restart."""
    files = SimulatedFiles()
    told = Told(files, BEGIN_US, Believed())
    told.do(co.CreateTopic("t", TopicSettings(lookahead_us=0)))
    told.do(co.CreateTopic("c", TopicSettings(kind="cron")))
    schedule = Schedule("t", every_us=60 * SECOND_US, misfire="skip", payload=TEXT, template=True)
    told.do(cc.PutSchedules("c", [("minutely", schedule.to_json())]))
    told.pass_seconds(61)
    told.shard.local.close()
    later = Told(files, told.shard.now + 90 * SECOND_US, Believed())
    first = datetime.fromtimestamp(START // 60 * 60 + 60, UTC)
    # The second one fell due while nobody was there, and is passed over.
    assert later.consume(10) == [f"minutely {first:%Y-%m-%dT%H:%M:%SZ}"]
    page = later.shard.call(cc.ReadSchedules("c", "minutely")).value
    assert (int(page.fired[0]), int(page.skipped[0])) == (1, 1)
