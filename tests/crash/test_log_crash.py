"""Logs on a disk that loses everything that it may lose, stopped before every operation.

A story is told to a shard on a disk that is photographed before each of its operations. Every
photograph shows what was acknowledged, or that and the whole step that was under way: every row
once, in its place, and no holes.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.log.commands import DescribeLog, ReadLog, Truncate
from fasti.model import SECOND_US, TopicSettings
from fasti.storage import log_blocks
from fasti.storage.files import Files
from fasti.storage.log_rows import read_piece
from tests.crash.photographs import Op, ToldShard, crash_everywhere
from tests.seeds import seeds

SETTINGS = ShardSettings(segment_bytes=16_384, memory_bytes=16 << 20, leases_max=256)
TOPICS = {
    "one": TopicSettings(kind="log", segment_age_us=40 * SECOND_US),
    "three": TopicSettings(kind="log", partitions=3, retained_bytes=32_768),
}


class LogShard(ToldShard):
    """A shard with logs."""

    def __init__(self, files: Files) -> None:
        super().__init__(files, SETTINGS)

    def command(self, name: str, given: dict[str, Any]) -> Any:
        if name == "create":
            return co.CreateTopic(**given)
        if name == "truncate":
            place = given["topic"], given["partition"]
            described = self.shard.call(DescribeLog(place[0]), 0, 0).value[place[1]]
            before = described["earliest"] + int(given["share"] * described["rows"])
            return Truncate(*place, before)
        if name == "transaction":
            return co.Transaction([self.command("produce", part) for part in given["parts"]])
        given = dict(given)
        keys = given.pop("keys")
        rows = Rows.of(given.pop("payloads"), key=keys)
        hashed = None if keys is None else Keys(pa.array(keys, pa.string()), self.shard.store.seed)
        # Partitions are named where no key does: a turn is not durable, and a crash begins anew.
        return co.Produce(given.pop("topic"), rows, keys=hashed, **given)

    def dump(self, now_us: int) -> dict[str, Any]:
        """Every row of every log, and what each partition says of itself."""
        seen: dict[str, Any] = {}
        self.shard.step([], now_us, 0)  # What is too old by now goes first.
        for name in sorted(self.shard.engine.state.by_name):
            described = self.shard.call(DescribeLog(name), now_us, 0).value
            for number, said in enumerate(described):
                rows = self._rows(name, number, said["earliest"], said["end"], now_us)
                seen[f"{name}-{number}"] = {"said": said, "rows": rows}
        return seen

    def _rows(
        self, name: str, number: int, reached: int, end: int, now_us: int
    ) -> dict[int, tuple[Any, ...]]:
        rows = {}
        while reached < end:
            for piece in self.shard.call(ReadLog(name, number, reached), now_us, 0).pieces:
                assert piece.first_offset == reached, "a hole"
                for row in read_piece(self.shard.store.payloads, piece).to_pylist():
                    rows[reached] = row["payload"], row["key"], row["created_us"]
                    reached += 1
        return rows


def story(seed: int, steps: int) -> list[Op]:
    rng = random.Random(seed)
    sent = 0
    ops: list[Op] = [("create", {"name": n, "settings": s}) for n, s in TOPICS.items()]

    def batch() -> dict[str, Any]:
        nonlocal sent
        topic = rng.choice(sorted(TOPICS))
        payloads = []
        for _ in range(rng.randint(1, 5)):
            sent += 1
            payloads.append(b"%d." % sent + bytes(rng.choice([0, 10, 900])))
        given: dict[str, Any] = {"topic": topic, "payloads": payloads, "keys": None}
        if rng.random() < 0.5:
            given["keys"] = [rng.choice("abcdef") for _ in payloads]
        else:
            given["partition"] = rng.randrange(TOPICS[topic].partitions)
        return given

    numbers = {"p": 0}
    for _ in range(steps):
        choice = rng.random()
        if choice < 0.4:
            ops.append(("produce", batch()))
        elif choice < 0.48:
            numbers["p"] += 1
            numbered = {"producer": "p", "producer_sequence": numbers["p"]}
            ops.append(("produce", batch() | numbered))
        elif choice < 0.56:
            ops.append(("transaction", {"parts": [batch() for _ in range(rng.randint(2, 3))]}))
        elif choice < 0.63:
            topic = rng.choice(sorted(TOPICS))
            partition = rng.randrange(TOPICS[topic].partitions)
            given = {"topic": topic, "partition": partition, "share": rng.random()}
            ops.append(("truncate", given))
        elif choice < 0.7:
            ops.append(("tick", {}))
        elif choice < 0.95:
            ops.append(("phase", {}))
        else:
            ops.append(("restart", {}))
    return ops


@pytest.fixture(autouse=True)
def small_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other story has many blocks, some of them too small to stay."""
    if seed % 2:
        monkeypatch.setattr(log_blocks, "BLOCK_ROWS_MAX", 8)
        monkeypatch.setattr(log_blocks, "_SMALL_ROWS", 6)


def crash(seed: int, steps: int, every: int = 1) -> int:
    return crash_everywhere(LogShard, story(seed, steps), seed, every, going_on=0.2)


@pytest.mark.parametrize("seed", range(2))
def test_every_crash_of_a_short_story(seed: int) -> None:
    assert crash(seed, steps=30) > 50


@pytest.mark.parametrize("seed", seeds(1, range(100, 102)))
def test_some_crashes_of_a_longer_story(seed: int) -> None:
    assert crash(seed, steps=150, every=17) > 12


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_more_crashes(seed: int) -> None:
    crash(seed, steps=60)
    crash(seed + 1000, steps=300, every=13)
