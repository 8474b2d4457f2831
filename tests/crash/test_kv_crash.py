"""Key-value topics on a disk that loses everything that it may lose, stopped before every operation.

A story is told once to a shard on a disk that is photographed before each of its operations, as a
crash at that moment would leave it. Every photograph is opened and must show what was acknowledged,
or that and the whole step that was under way: values, versions and times to live.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.crash.test_shard_crash import PhotographedFiles, differences

from fasti.broker.kv.requests import SEPARATOR, KvKeys
from fasti.broker.local import LocalShard
from fasti.config import ShardSettings
from fasti.core.commands import CreateTopic, Transaction, When
from fasti.core.keys import Rows
from fasti.core.kv import kind as kv
from fasti.core.kv.commands import ANY_VERSION, KvDelete, KvDescribe, KvGet, KvPut
from fasti.model import DUE_MAX_US, SECOND_US, Outcome, TopicSettings
from fasti.storage import checkpoint
from fasti.storage.files import Files
from fasti.testing.disk import SimulatedFiles

START_US = 1_700_000_000 * SECOND_US
SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=256)
TOPICS = {
    "one": TopicSettings(kind="kv"),
    "three": TopicSettings(kind="kv", partitions=3),
}
KEYS = [f"key-{n}" for n in range(9)] + ["key-1\0a", "key-1\0b"]
Op = tuple[str, dict[str, Any]]


def moment(step: int) -> int:
    return START_US + step * SECOND_US


class KvShard:
    """A shard that takes operations; a checkpoint may lie between them in parts."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.shard = LocalShard(files, SETTINGS)
        self._plan: Any = None
        self._written: Any = None

    def do(self, op: Op, now_us: int) -> None:
        """When it returns, it is acknowledged."""
        name, given = op
        if name == "restart":
            self.shard.close()
            self.shard = LocalShard(self.files, SETTINGS)
            self._plan = self._written = None
        elif name == "phase":
            self._go_on(now_us)
        elif name == "tick":
            self.shard.step([], now_us, 0)
        else:
            reply = self.shard.call(self._command(name, given, now_us), now_us, 0)
            assert reply.error is None, reply.error

    def _command(self, name: str, given: dict[str, Any], now_us: int) -> Any:
        if name == "create":
            return CreateTopic(**given)
        if name == "transaction":
            parts = [self._command(*part, now_us) for part in given["parts"]]
            return Transaction(parts)
        keys = self.keys_of(given["keys"])
        versions = np.array(given["versions"], dtype=np.int64)
        if name == "delete":
            rows = Rows.of([b""] * len(keys), key=keys.values)
            return KvDelete(given["topic"], rows, keys, versions)
        lengths = [DUE_MAX_US if each is None else each for each in given["ttl_us"]]
        rows = Rows.of(given["values"], key=keys.values)
        expires = When(delay_us=np.array(lengths, dtype=np.int64))
        return KvPut(given["topic"], rows, keys, versions, expires)

    def keys_of(self, keys: list[str]) -> KvKeys:
        named = pa.array([key.split(SEPARATOR)[0] for key in keys], pa.string())
        return KvKeys(pa.array(keys, pa.string()), named, self.shard.store.seed)

    def _go_on(self, now_us: int) -> None:
        store, engine = self.shard.store, self.shard.engine
        if self._plan is None:
            self._plan = store.begin_checkpoint(engine, now_us)
        elif self._written is None:
            self._written = store.write_checkpoint(self._plan, lambda _: None, lambda _: None)
        else:
            written, finished = self._written
            for each in [*store.install(engine, written), finished]:
                self.shard.step([each], now_us, 0)
            engine.release_snapshot(self._plan.snapshot.number)
            store.clean_up(engine.snapshots)
            self._plan = self._written = None

    def dump(self, now_us: int) -> dict[str, Any]:
        """Every entry of every topic, and what each topic says of itself."""
        self.shard.step([], now_us, 0)  # What has expired by now goes first.
        return {name: self._dump(name, now_us) for name in sorted(self.shard.engine.state.by_name)}

    def _dump(self, topic: str, now_us: int) -> dict[str, Any]:
        found = self.shard.call(KvGet(topic, self.keys_of(KEYS)), now_us, 0)
        here = np.flatnonzero(found.status == Outcome.OK).tolist()
        contents = self.shard.store.payloads.gather(found.locations[here]).to_pylist()
        entries = {}
        for row, content in zip(here, contents, strict=True):
            assert content["key"] == KEYS[row]
            place = int(found.versions[row]), int(found.expires_us[row]), int(found.ids[row])
            entries[KEYS[row]] = content["payload"], content["created_us"], *place
        said = self.shard.call(KvDescribe(topic), now_us, 0).value
        assert said["entries"] == len(entries)
        partitions: Any = self.shard.engine.state.by_name[topic].partitions
        floors = [partition.floor for partition in partitions]
        return {
            "entries": entries,
            "floors": floors,
            **{name: said[name] for name in ("expired", "removed", "expiring")},
        }


def story(seed: int, steps: int) -> list[Op]:
    rng = random.Random(seed)
    made = 0
    ops: list[Op] = [("create", {"name": n, "settings": s}) for n, s in TOPICS.items()]

    def keys() -> dict[str, Any]:
        chosen = [rng.choice(KEYS) for _ in range(rng.randint(1, 5))]
        careless = rng.random() < 0.6
        versions = [ANY_VERSION if careless else rng.choice([-1, 0, 1, 2]) for _ in chosen]
        return {"topic": rng.choice(sorted(TOPICS)), "keys": chosen, "versions": versions}

    def put() -> Op:
        nonlocal made
        given = keys()
        given["values"] = []
        for _ in given["keys"]:
            made += 1
            given["values"].append(b"%d." % made + bytes(rng.choice([0, 10, 900])))
        lengths = [None, None, SECOND_US, 7 * SECOND_US, 900 * SECOND_US]
        given["ttl_us"] = [rng.choice(lengths) for _ in given["keys"]]
        return "put", given

    for _ in range(steps):
        choice = rng.random()
        if choice < 0.45:
            ops.append(put())
        elif choice < 0.55:
            ops.append(("delete", keys()))
        elif choice < 0.65:
            parts = [put(), ("delete", keys()), put()]
            ops.append(("transaction", {"parts": parts[: rng.randint(2, 3)]}))
        elif choice < 0.7:
            ops.append(("tick", {}))
        elif choice < 0.94:
            ops.append(("phase", {}))
        else:
            ops.append(("restart", {}))
    return ops


def crash_everywhere(seed: int, steps: int, every: int = 1) -> int:
    """Stops a story before every k-th operation; returns how many crashes were tried."""
    rng = random.Random(seed)
    ops, files = story(seed, steps), PhotographedFiles()
    taken: list[tuple[int, int, SimulatedFiles]] = []
    current = 0

    def photograph(operation: int) -> None:
        if operation % every == seed % every:
            taken.append((operation, current, files.crash(rng)))

    files.photograph = photograph
    shard = KvShard(files)
    sights: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for current, op in enumerate(ops):
        # What was there when it began, as of its own time: entries may have expired since.
        before = shard.dump(moment(current))
        shard.do(op, moment(current))
        sights.append((before, shard.dump(moment(current))))
    shard.shard.close()
    for operation, step, image in taken:
        opened = KvShard(image)
        seen = opened.dump(moment(step))
        unlike = [differences(sight, seen) for sight in sights[step]]
        where = f"seed {seed}, crashed before operation {operation}, in {ops[step]}"
        assert not all(unlike), "\n".join([where, *unlike[0][:6], "or", *unlike[1][:6]])
        if rng.random() < 0.1:
            # The shard lives on as if nothing had been: the rest of the story ends as it did.
            # Looked at as before, for what expires earlier or later counts for versions to come.
            for later in range(step + (not unlike[1]), len(ops)):
                opened.dump(moment(later))
                opened.do(ops[later], moment(later))
                opened.dump(moment(later))
            assert not differences(sights[-1][1], opened.dump(moment(len(ops) - 1))), where
        opened.shard.close()
    return len(taken)


@pytest.fixture(autouse=True)
def compact_often(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other story compacts as if it had had years to gather runs and deltas."""
    monkeypatch.setattr(kv, "EXPIRED_PER_CALL", 2)
    if seed % 2:
        monkeypatch.setattr(checkpoint, "_RUNS_MAX", 2)
        monkeypatch.setattr(checkpoint, "_DELTA_ROWS_MIN", 3)
        monkeypatch.setattr(checkpoint, "BLOCK_ROWS_MAX", 8)


@pytest.mark.parametrize("seed", range(3))
def test_every_crash_of_a_short_story(seed: int) -> None:
    assert crash_everywhere(seed, steps=30) > 60


@pytest.mark.parametrize("seed", range(100, 102))
def test_some_crashes_of_a_longer_story(seed: int) -> None:
    assert crash_everywhere(seed, steps=150, every=17) > 15


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_more_crashes(seed: int) -> None:
    crash_everywhere(seed, steps=60)
    crash_everywhere(seed + 1000, steps=300, every=13)
