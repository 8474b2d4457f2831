"""A follower beside a shard that a story is told to: it takes over in the middle, more than once, and the story
ends as if nothing had been.

The follower lags, hears of manifests late and misses some, as over a network. What the leader trims and deletes
is not read after that: what is left of it here stands for the grace that a leader gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core.engine import Engine
from fasti.core.rows.arena import FRAME_BITS, STATE_MASK
from fasti.core.rows.location import is_in_run, number_of
from fasti.model import State
from fasti.storage.file_storage import FileStorage, OpenFiles
from fasti.storage.files import Files
from fasti.storage.follower import Follower, exhaust
from fasti.storage.frames import StoredFrame
from fasti.storage.local_shard import LocalShard
from fasti.storage.manifest import Manifest
from fasti.testing.disk import SimulatedFiles
from tests.crash import photographs, shard_workload, test_kv_crash, test_log_crash
from tests.crash.photographs import Op, PhasedShard, compact_as_if_after_years, differences
from tests.crash.shard_workload import Driven, without_tokens, write_story
from tests.crash.test_kv_crash import KvShard
from tests.crash.test_log_crash import LogShard
from tests.seeds import seeds

Dump = Callable[[Any, int], dict[str, Any]]


@pytest.fixture(autouse=True)
def compact_often(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        compact_as_if_after_years(monkeypatch)


class Echo:
    """All that a leader ever wrote, and a follower that reads it at its leisure."""

    def __init__(self, leader: PhasedShard, rng: random.Random) -> None:
        self.leader, self.rng = leader, rng
        self.frames: list[StoredFrame] = []
        self.blocks: dict[str, bytes] = {}
        self.manifests: list[tuple[int, Manifest]] = []
        self.installs = self.take_overs = 0
        self.begin()

    def begin(self) -> None:
        self.record()
        settings = self.leader.settings
        engine = Engine(settings.memory_bytes, settings.leases_max, settings.limits)
        self.follower = Follower(engine, self)  # type: ignore[arg-type]
        version, manifest = self.manifests[-1]
        exhaust(self.follower.load(manifest, version))

    def record(self) -> None:
        store = self.leader.shard.store
        last = self.frames[-1].sequence if self.frames else 0
        after = max(last, store.journal.first_sequence - 1)
        for frame in store.journal.replay(after):
            self.frames.append(replace(frame, body=memoryview(bytes(frame.body))))
        for name in store.blocks.list():
            if name not in self.blocks:
                self.blocks[name] = bytes(store.blocks.get(name))
        if not self.manifests or self.manifests[-1][0] != store.version:
            self.manifests.append((store.version, Manifest.decode(store.manifest.encode())))

    # What a follower asks blocks for

    def get(self, name: str) -> memoryview:
        return memoryview(self.blocks[name])

    def list(self) -> list[str]:
        return list(self.blocks)

    # The follower's turns

    def look(self) -> None:
        """Some more frames, and sometimes the newest manifest."""
        self.record()
        if self.rng.random() < 0.7:
            self.apply(self.rng.choice([1, 3, 1000]))
        if self.rng.random() < 0.4:
            self.install()

    def apply(self, count: int) -> None:
        coming = [f for f in self.frames if f.sequence > self.follower.position]
        finished = [n for n, frame in enumerate(coming) if frame.ends_group and n < count]
        for frame in coming[: finished[-1] + 1] if finished else []:
            self.follower.apply(frame)

    def install(self) -> None:
        version, manifest = self.manifests[-1]
        known = version == self.follower.version
        if known or manifest.position > self.follower.position:
            return
        exhaust(self.follower.install(manifest, version))
        self.installs += 1
        self.check_places(manifest)

    def check_places(self, manifest: Manifest) -> None:
        """Nothing is where the leader may trim or delete."""
        runs = [block.number for block in manifest.blocks if not block.delta]
        arena = self.follower.engine.memory.arena
        for topic in self.follower.engine.state.topics.values():
            for partition in topic.partitions.made():
                for frame in partition.ledger.frames().tolist():
                    rows = slice(frame << FRAME_BITS, (frame + 1) << FRAME_BITS)
                    used = arena.flags[rows] & STATE_MASK != State.NONE
                    places = arena.location[rows][used]
                    numbers, stored = number_of(places), is_in_run(places)
                    assert np.isin(numbers[stored], runs).all()
                    assert (numbers[~stored] > manifest.position).all()

    def take_over(self) -> None:
        """As if the leader had been killed: the shard goes on with the follower's engine."""
        self.record()
        self.apply(1 << 30)
        settings, files = self.leader.settings, self.leader.files
        self.leader.shard.close()
        self.leader.shard = LocalShard(Warm(files, self.follower), settings)
        assert self.leader.shard.engine is self.follower.engine
        assert self.leader.shard.replayed == 0
        self.leader._plan = self.leader._written = None
        self.take_overs += 1
        self.begin()


class Warm:
    """A storage that was followed."""

    def __init__(self, files: Files, follower: Follower) -> None:
        self._files, self._follower = files, follower

    def open(self, settings: ShardSettings, cut_after: int | None = None) -> OpenFiles:
        opened = FileStorage(self._files).open(settings, cut_after)
        opened.follower = self._follower
        return opened


def follow(
    made: Callable[[Files], Any], ops: list[Op], dump: Dump, moment: Callable[[int], int], seed: int
) -> Echo:
    """Tells a story twice, the second time with a follower. Both must see the same all the time."""
    alone, led = made(SimulatedFiles()), made(SimulatedFiles())
    rng = random.Random(seed)
    echo = Echo(led, rng)
    for step, op in enumerate(ops):
        for told in (alone, led):
            told.do(op, moment(step))
        seen = [without_leases(dump(told, moment(step))) for told in (alone, led)]
        assert not differences(*seen), (step, op, differences(*seen)[:6])
        echo.look()
        if rng.random() < 0.06:
            echo.take_over()
    # What the last leader's memory had right must be stored right: all is read back.
    echo.take_over()
    last = moment(len(ops) - 1)
    led.shard.checkpoint(last, 0)
    expected = dump(led, last)
    led.restart()
    assert not differences(without_leases(expected), without_leases(dump(led, last)))
    return echo


def without_leases(seen: dict[str, Any]) -> dict[str, Any]:
    return without_tokens(seen) if "leases" in seen else seen


def follow_messages(seed: int, steps: int) -> Echo:
    ops, _ = write_story(seed, steps, SimulatedFiles())
    return follow(
        Driven,
        ops,
        lambda told, at: shard_workload.dump(told.shard, at),
        shard_workload.moment,
        seed,
    )


KINDS: dict[str, tuple[Any, Any]] = {
    "kv": (KvShard, test_kv_crash.story),
    "log": (LogShard, test_log_crash.story),
}


def follow_kind(kind: str, seed: int, steps: int) -> Echo:
    made, story = KINDS[kind]
    dump = lambda told, at: told.dump(at)  # noqa: E731
    return follow(made, story(seed, steps), dump, photographs.moment, seed)


@pytest.mark.parametrize("seed", seeds(1, range(4)))
def test_messages(seed: int) -> None:
    echo = follow_messages(seed, 150)
    assert echo.installs > 2
    assert echo.take_overs > 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(1, range(2)))
def test_other_kinds(kind: str, seed: int) -> None:
    echo = follow_kind(kind, seed, 150)
    assert echo.installs > 2
    assert echo.take_overs > 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_more_stories(seed: int) -> None:
    follow_messages(seed, 300)
    for kind in KINDS:
        follow_kind(kind, seed, 300)
