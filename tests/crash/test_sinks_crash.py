"""Sinks on a disk that loses everything that it may lose, stopped before every operation.

Every photograph shows what was acknowledged, or that and the whole step that was under way: stages and
their rows, what was published and has landed, which parcels are carried out, and of each sink the last
batch with its counts. Going on from there, the story ends as it did: nothing is published twice, and a
parcel is carried out once.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.sinks import commands as sc
from fasti.core.sinks.commands import PARCELS
from fasti.core.timeline import staging
from fasti.model import SECOND_US, TopicSettings
from fasti.storage.files import Files
from tests.crash.photographs import (
    Op,
    ToldShard,
    compact_as_if_after_years,
    crash_everywhere,
)
from tests.seeds import seeds

SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=256)
TOPICS = {
    "line": TopicSettings(stage_age_us=40 * SECOND_US),
    "urgent": TopicSettings(kind="priority", partitions=3, stage_age_us=60 * SECOND_US),
    PARCELS: TopicSettings(),
}
KEYS = [f"key-{n}" for n in range(30)]


class SinksShard(ToldShard):
    """A shard with sinks."""

    def __init__(self, files: Files) -> None:
        super().__init__(files, SETTINGS)

    def command(self, name: str, given: dict[str, Any]) -> Any:
        made = {
            "create": co.CreateTopic,
            "publish": sc.PublishBatch,
            "drop": sc.DropStages,
            "forget": sc.ForgetSink,
        }.get(name)
        return made(**given) if made is not None else getattr(self, f"_{name}")(**given)

    def _stage(self, topic: str, keys: list[str | None], values: list[bytes], **given: Any) -> Any:
        columns = {"key": keys} if any(keys) else {}
        command = co.Produce(topic, Rows.of(values, **columns), co.When(delay_us=10**12))
        command.keys = self._keys(keys) if columns else None
        return self._placed(command, topic, "produce", **given)

    def _stage_cancels(self, topic: str, parcels: list[list[str]], **given: Any) -> Any:
        counts = np.array([len(each) for each in parcels], dtype=np.int64)
        rows = Rows.of([json.dumps(each).encode() for each in parcels])
        command = co.Produce(PARCELS, rows, co.When(due_us=counts))
        return self._placed(command, topic, "cancel", **given)

    def _placed(
        self, command: co.Produce, topic: str, operation: str, sink: str, batch: int, number: int
    ) -> co.Produce:
        command.stage = f"{sink}/{topic}/{batch}/{number}/0"
        stage = self.shard.engine.state.stages.get(command.stage)
        offset = 0 if stage is None else stage.total
        command.staging = co.Staging(sink, batch, operation, topic, offset)
        return command

    def _carry(self) -> Any:
        """The next parcel of whatever there is."""
        state = self.shard.engine.state
        for name, stage in state.publishing.items():
            if stage.is_parcels:
                batch = stage.batches[0]
                partition = state.topics[stage.topic].partitions[batch.partition]
                place = partition.arena.location.take(partition.ledger.slots(batch.sequences[:1]))
                keys = json.loads(self.shard.store.payloads.gather(place).to_pylist()[0]["payload"])
                cancel = co.Cancel(
                    state.topics[stage.target].name, co.Target(keys=self._keys(keys))
                )
                return sc.Carry(name, int(batch.sequences[0]), [cancel])
        return co.Count("line")

    def _keys(self, keys: Any) -> Keys:
        return Keys(pa.array(keys, pa.string()), self.shard.store.seed)

    def dump(self, now_us: int) -> dict[str, Any]:
        """What can be seen when all that is published has landed. Parcels wait for their turn."""
        state = self.shard.engine.state
        self.shard.step([], now_us, 0)
        while state.dropping or any(not s.is_parcels for s in state.publishing.values()):
            self.shard.step([], now_us, 0)
        return {
            "topics": {name: self._dump(topic) for name, topic in state.by_name.items()},
            "stages": {name: _seen(stage) for name, stage in sorted(state.stages.items())},
            "sinks": {
                name: (s.batch, s.operation, s.published_us, dict(s.outcomes), sorted(s.left))
                for name, s in sorted(state.sinks.all.items())
            },
        }

    def _dump(self, topic: Any) -> dict[str, Any]:
        rows: dict[int, Any] = {}
        for partition in topic.partitions:
            first, last = 1, partition.ledger.next_sequence
            sequences = np.arange(first, last, dtype=np.int64)
            slots = partition.ledger.slots(sequences)
            states = partition.states(slots)
            here = np.flatnonzero(states != 0)
            found = self.shard.store.payloads.gather(partition.arena.location.take(slots[here]))
            for place, content in zip(here.tolist(), found.to_pylist(), strict=True):
                key = content["key"]
                owner = 0
                if key is not None:
                    owner = int(partition.find_keys(self._keys([key]).hashes)[0])
                    owner = owner if partition.is_live(np.array([owner]))[0] else 0
                number = partition.number << 51 | int(sequences[place])
                due = int(partition.arena.due[slots[place]])
                rows[number] = int(states[place]), content["payload"], key, due, owner
        return rows


def _seen(stage: Any) -> dict[str, Any]:
    names = ("topic", "opened_at_us", "published", "dropping", "skip", "sink", "batch", "operation")
    seen = {name: getattr(stage, name) for name in (*names, "target", "owner", "total")}
    return {**seen, "rows": [(b.partition, b.sequences.tolist()) for b in stage.batches]}


def story(seed: int, steps: int) -> list[Op]:
    """What a few drivers would do, some of which die and begin again."""
    rng = random.Random(seed)
    ops: list[Op] = [("create", {"name": n, "settings": s}) for n, s in TOPICS.items()]
    made = 0
    batches: dict[str, int] = {}

    def stage(sink: str, batch: int, number: int) -> str:
        nonlocal made
        topic = "line" if sink != "b" else "urgent"
        place = {"topic": topic, "sink": sink, "batch": batch, "number": number}
        if sink == "c":
            parcels = [rng.sample(KEYS, rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
            ops.append(("stage_cancels", {**place, "parcels": parcels}))
        else:
            made += 6
            # Where one without a key goes, of several partitions, is not remembered.
            none = None if topic == "line" else rng.choice(KEYS)
            keys = [rng.choice([none, rng.choice(KEYS)]) for _ in range(6)]
            values = [b"%d." % (made + n) + bytes(rng.choice([0, 300])) for n in range(6)]
            ops.append(("stage", {**place, "keys": keys, "values": values}))
        return f"{sink}/{topic}/{batch}/{number}/0"

    while len(ops) < steps:
        sink = rng.choice("abbcc")
        batch = batches.get(sink, -1) + 1
        staged = [stage(sink, batch, number) for number in range(rng.randint(0, 2))]
        if rng.random() < 0.3:
            # An attempt that nobody commits.
            stage(sink, batch, 7)
        _between(rng, ops)
        if rng.random() < 0.85:
            operation = "cancel" if sink == "c" else "produce"
            given = {"sink": sink, "batch": batch, "operation": operation, "skip": True}
            ops.append(("publish", {**given, "stages": staged}))
            batches[sink] = batch
            for _ in range(rng.randint(0, 5)):
                _between(rng, ops)
            # All is carried out before the next batch; the driver died and asks again.
            ops += [("carry", {})] * 6 + [("tick", {})] * 8
            ops.append(("publish", {**given, "stages": staged}))
        if rng.random() < 0.05:
            ops.append(("forget", {"sink": sink}))
            batches.pop(sink, None)
    return ops


def _between(rng: random.Random, ops: list[Op]) -> None:
    choice = rng.random()
    if choice < 0.3:
        ops.append(("carry", {}))
    elif choice < 0.4:
        ops.append(("restart", {}))
    elif choice < 0.8:
        ops.append(("phase", {}))
    else:
        ops.append(("tick", {}))


def crash(seed: int, steps: int, every: int = 1) -> int:
    return crash_everywhere(SinksShard, story(seed, steps), seed, every, going_on=0.1)


@pytest.fixture(autouse=True)
def small_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "LANDED_PER_STEP", 5)
    if seed % 2:
        compact_as_if_after_years(monkeypatch)


@pytest.mark.parametrize("seed", seeds(2, range(3)))
def test_every_crash_of_a_short_story(seed: int) -> None:
    assert crash(seed, steps=60) > 60


@pytest.mark.parametrize("seed", seeds(1, range(100, 102)))
def test_some_crashes_of_a_longer_story(seed: int) -> None:
    assert crash(seed, steps=250, every=17) > 15


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_more_crashes(seed: int) -> None:
    crash(seed, steps=100)
    crash(seed + 1000, steps=400, every=13)
