"""Key-value topics on a disk that loses everything that it may lose, stopped before every operation.

A story is told to a shard on a disk that is photographed before each of its operations. Every
photograph shows what was acknowledged, or that and the whole step that was under way: values,
versions and times to live.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.broker.kv.requests import SEPARATOR, KvKeys
from fasti.config import ShardSettings
from fasti.core.commands import CreateTopic, Transaction, When
from fasti.core.keys import Rows
from fasti.core.kv import kind as kv
from fasti.core.kv.commands import ANY_VERSION, KvDelete, KvDescribe, KvGet, KvPut
from fasti.model import DUE_MAX_US, SECOND_US, Outcome, TopicSettings
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
    "one": TopicSettings(kind="kv"),
    "three": TopicSettings(kind="kv", partitions=3),
}
KEYS = [f"key-{n}" for n in range(9)] + ["key-1\0a", "key-1\0b"]


class KvShard(ToldShard):
    """A shard with key-value topics."""

    def __init__(self, files: Files) -> None:
        super().__init__(files, SETTINGS)

    def command(self, name: str, given: dict[str, Any]) -> Any:
        if name == "create":
            return CreateTopic(**given)
        if name == "transaction":
            return Transaction([self.command(*part) for part in given["parts"]])
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


def crash(seed: int, steps: int, every: int = 1) -> int:
    return crash_everywhere(KvShard, story(seed, steps), seed, every, going_on=0.1)


@pytest.fixture(autouse=True)
def compact_often(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other story compacts as if it had had years to gather runs and deltas."""
    monkeypatch.setattr(kv, "EXPIRED_PER_CALL", 2)
    if seed % 2:
        compact_as_if_after_years(monkeypatch)


@pytest.mark.parametrize("seed", range(2))
def test_every_crash_of_a_short_story(seed: int) -> None:
    assert crash(seed, steps=30) > 60


@pytest.mark.parametrize("seed", seeds(1, range(101, 103)))
def test_some_crashes_of_a_longer_story(seed: int) -> None:
    assert crash(seed, steps=150, every=17) > 15


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_more_crashes(seed: int) -> None:
    crash(seed, steps=60)
    crash(seed + 1000, steps=300, every=13)
