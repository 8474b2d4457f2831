"""Consumer groups on a disk that loses everything that it may lose, stopped before every operation.

A story is told to a shard on a disk that is photographed before each of its operations, as a crash
at that moment would leave it. Every photograph is opened and must show each group exactly as it was
acknowledged, or that and the whole step that was under way: no lease, ack or death is lost, and
`committed` never goes back. Then the rest is drained: every row comes once more, or not at all if
it was finished.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.log import commands as lo
from fasti.core.log.group import GroupPartition
from fasti.core.log.window import ACKED, LEASED
from fasti.core.replies import Deliver
from fasti.model import SECOND_US, SEQUENCE_BITS, RetryPolicy, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files import Files
from fasti.storage.local_shard import LocalShard
from fasti.testing.disk import SimulatedFiles
from tests.crash.photographs import (
    START_US,
    PhasedShard,
    PhotographedFiles,
    differences,
    moment,
)
from tests.seeds import seeds

LONG_US = 24 * 3_600 * SECOND_US
SETTINGS = ShardSettings(segment_bytes=16_384, memory_bytes=16 << 20, leases_max=256)
TOPIC = TopicSettings(
    kind="log", partitions=2, max_attempts=3, retry=RetryPolicy(base_us=2 * SECOND_US)
)
GROUPS = ("plain", "ordered")
Row = tuple[str, int, int]


def int64s(values: Any) -> Any:
    return np.array(values, dtype=np.int64)


class Story(PhasedShard):
    """A shard, and whoever invents what happens to it by looking at what it has handed out."""

    def __init__(self, files: Files, seed: int) -> None:
        super().__init__(files, SETTINGS)
        self.rng = random.Random(seed)
        # Rows that somebody has, as far as the story knows: (group, id, token).
        self.held: list[Row] = []

    def begin(self) -> None:
        self.shard.call(co.CreateTopic("log", TOPIC), START_US, 0)
        self.shard.call(lo.CreateGroup("log", "plain", -1), START_US, 0)
        self.shard.call(lo.CreateGroup("log", "ordered", -1, ordered=True), START_US, 0)

    def go_on(self, now_us: int) -> str:
        """One more thing happens; returns what."""
        name = self.rng.choice(
            ["produce"] * 4
            + ["lease"] * 5
            + ["ack"] * 4
            + ["nack", "nack", "reject", "release"]
            + ["expire", "dead", "dead", "reset", "truncate", "transaction"]
            + ["phase"] * 3
            + ["restart"]
        )
        getattr(self, f"_{name}")(now_us)
        return str(name)

    def _do(self, command: Any, now_us: int, tick: int = 0) -> None:
        step = self.shard.step([] if command is None else [command], now_us, tick)
        for effect in step.effects:
            if isinstance(effect, Deliver):
                self.held += [(effect.group, i, effect.token) for i in effect.ids.tolist()]

    def _rows(self, count: int) -> Rows:
        keys = [self.rng.choice(["a", "b", "c", None]) for _ in range(count)]
        return Rows.of([b"x" * 40] * count, key=pa.array(keys, pa.string()))

    def _produce_command(self) -> co.Produce:
        rows = self._rows(self.rng.randint(1, 12))
        keys = Keys(rows.batch.column("key"), self.shard.store.seed)
        return co.Produce("log", rows, keys=keys, partition=self.rng.randrange(2))

    def _produce(self, now_us: int) -> None:
        self._do(self._produce_command(), now_us)

    def _lease(self, now_us: int) -> None:
        group, consumer = self.rng.choice(GROUPS), self.rng.choice(["w1", "w2"])
        # Nobody waits beyond a step, so that a step is one group of frames: whole, or not at all.
        session = self.rng.randrange(1, 1 << 30)
        self._do(co.Lease("log", session, consumer, self.rng.randint(1, 9), False, group), now_us)
        self._do(co.Detach(session), now_us)

    def _some(self) -> tuple[str, Any, Any]:
        group = self.rng.choice(GROUPS)
        mine = [row for row in self.held if row[0] == group]
        chosen = self.rng.sample(mine, min(len(mine), self.rng.randint(1, 6)))
        if chosen and self.rng.random() < 0.8:
            self.held = [row for row in self.held if row not in chosen]
        return group, int64s([i for _, i, _ in chosen]), int64s([t for *_, t in chosen])

    def _ack(self, now_us: int) -> None:
        group, ids, tokens = self._some()
        self._do(co.Ack("log", ids, tokens, group=group), now_us)

    def _nack(self, now_us: int) -> None:
        group, ids, tokens = self._some()
        self._do(co.Nack("log", ids, tokens, "broken", group=group), now_us)

    def _reject(self, now_us: int) -> None:
        group, ids, tokens = self._some()
        self._do(co.Reject("log", ids, tokens, "bad", group=group), now_us)

    def _release(self, now_us: int) -> None:
        group, ids, tokens = self._some()
        when = co.When(delay_us=self.rng.choice([0, 5 * SECOND_US]))
        self._do(co.Release("log", ids, tokens, when, group=group), now_us)

    def _expire(self, now_us: int) -> None:
        self._do(None, now_us, LONG_US)

    def _dead(self, now_us: int) -> None:
        group = self.rng.choice(GROUPS)
        page = self.shard.call(lo.ListDead("log", group, 0, 3), now_us, 0)
        kind = self.rng.choice([co.Redrive, co.Purge])
        self._do(kind("log", page.ids, group=group), now_us)

    def _reset(self, now_us: int) -> None:
        if self.rng.random() < 0.3:
            group, to = self.rng.choice(GROUPS), self.rng.choice([-1, -2])
            self._do(lo.ResetGroup("log", group, to), now_us)

    def _truncate(self, now_us: int) -> None:
        partition = self.shard.engine.state.by_name["log"].body.partitions[0]
        before = min(partition.earliest + self.rng.randint(0, 5), partition.next_offset)
        self._do(lo.Truncate("log", 0, before), now_us)
        for group in GROUPS:
            self._do(lo.ResetGroup("log", group, -1), now_us)

    def _transaction(self, now_us: int) -> None:
        group, ids, tokens = self._some()
        ack = co.Ack("log", ids, tokens, group=group)
        self._do(co.Transaction([ack, self._produce_command()]), now_us)

    def _phase(self, now_us: int) -> None:
        self.phase(now_us)

    def _restart(self, now_us: int) -> None:
        self.restart()


def dump(shard: LocalShard) -> dict[str, Any]:
    """All that is durable of the groups, as plain values."""
    body = shard.engine.state.by_name["log"].body if shard.engine.state.by_name else None
    if body is None:
        return {}
    shown: dict[str, Any] = {"ends": [(log.earliest, log.next_offset) for log in body.partitions]}
    for name, group in body.groups.by_name.items():
        places = [_dump_place(shard, place) for place in group.partitions]
        shown[name] = {"number": group.number, "behind": group.is_behind} | dict(enumerate(places))
    return shown


def _dump_place(shard: LocalShard, place: GroupPartition) -> dict[str, Any]:
    columns = place.columns()
    leases, consumers = shard.engine.memory.leases, shard.engine.memory.consumers
    reasons = shard.engine.memory.reasons
    held = {}
    for offset in [*range(place.committed, place.next), *place.strays]:
        slot = np.asarray(place.lease[place.slots(int64s([offset]))])[0]
        if place.state[place.slots(int64s([offset]))][0] == LEASED:
            held[offset] = consumers.name(int(leases.consumer[slot])), int(leases.token[slot])
    again = sorted(zip(columns["due"].tolist(), columns["again"].tolist(), strict=True))
    strays = ("stray", "stray_state", "stray_attempts")
    dead = zip(
        *(columns[f"dead_{n}"].tolist() for n in ("offset", "at_us", "attempts")), strict=True
    )
    return {
        "numbers": place.numbers(),
        "state": columns["state"].tolist(),
        # Of finished rows nobody asks.
        "attempts": np.where(columns["state"] < ACKED, columns["attempts"], 0).tolist(),
        "again": again,
        "strays": sorted(zip(*(columns[name].tolist() for name in strays), strict=True)),
        "dead": list(dead),
        "reasons": [reasons.name(number) for number in columns["dead_reason"].tolist()],
        "held": held,
    }


def check_drained(shard: LocalShard) -> None:
    """Every row that is not finished comes once and is acked; then nothing is left."""
    now_us = moment(10_000)
    shard.step([], now_us, LONG_US)
    for group in GROUPS:
        shard.call(lo.DescribeGroups("log", group), now_us, LONG_US)
        if shard.engine.state.by_name["log"].body.groups.by_name[group].is_behind:
            shard.call(lo.ResetGroup("log", group, -1), now_us, LONG_US)
        seen: list[int] = []
        told: dict[str, Any] = {}
        for session in range(1, 200):
            command = co.Lease("log", session, f"drain-{session}", 50, False, group)
            step = shard.step([command], now_us, LONG_US)
            for effect in step.effects:
                if isinstance(effect, Deliver):
                    seen += effect.ids.tolist()
                    tokens = np.full(len(effect.ids), effect.token)
                    ack = co.Ack("log", effect.ids, tokens, group=group)
                    assert not shard.call(ack, now_us, LONG_US).status.any()
            told = shard.call(lo.DescribeGroups("log", group), now_us, LONG_US).value[0]
            if not any(place["lag"] for place in told["partitions"]):
                break
        else:
            raise AssertionError(f"{group} is never done: {told}")
        assert len(set(seen)) == len(seen)
        assert all(place["committed"] == place["end"] for place in told["partitions"])
        assert {i >> SEQUENCE_BITS for i in seen} <= {0, 1}


def crash_everywhere(seed: int, steps: int, every: int) -> int:
    """Stops a story before every k-th operation; returns how many crashes were tried."""
    rng = random.Random(seed)
    files = PhotographedFiles()
    taken: list[tuple[int, int, SimulatedFiles]] = []
    current = -1

    def photograph(operation: int) -> None:
        if current >= 0 and operation % every == seed % every:
            taken.append((operation, len(sights) - 1, files.crash(rng)))

    files.photograph = photograph
    story = Story(files, seed)
    story.begin()
    sights, told = [dump(story.shard)], ["begin"]
    real = story._do

    def watched(command: Any, now_us: int, tick: int = 0) -> None:
        real(command, now_us, tick)
        sights.append(dump(story.shard))
        told.append(repr(command)[:200])

    story._do = watched  # type: ignore[method-assign]
    for current in range(steps):
        story.go_on(moment(current))
    sights.append(dump(story.shard))
    for operation, step, image in taken:
        shard = LocalShard(FileStorage(image), SETTINGS)
        unlike = [differences(sight, dump(shard)) for sight in sights[step : step + 2]]
        assert not all(unlike), (seed, operation, step, told[step : step + 2], unlike)
        if rng.random() < 0.2:
            check_drained(shard)
        shard.close()
    return len(taken)


@pytest.mark.parametrize("seed", seeds(2, range(3)))
def test_every_crash_of_a_short_story(seed: int) -> None:
    assert crash_everywhere(seed, steps=40, every=1) > 60


@pytest.mark.parametrize("seed", seeds(1, range(100, 103)))
def test_some_crashes_of_a_longer_story(seed: int) -> None:
    assert crash_everywhere(seed, steps=250, every=9) > 40


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_more_crashes(seed: int) -> None:
    crash_everywhere(seed, steps=400, every=5)
