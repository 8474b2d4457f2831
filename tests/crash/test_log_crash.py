"""Logs on a disk that loses everything that it may lose, stopped before every operation.

A story is told once to a shard on a disk that is photographed before each of its operations, as a
crash at that moment would leave it. Every photograph is opened and must show what was acknowledged,
or that and the whole step that was under way: every row once, in its place, and no holes.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from tests.crash.test_shard_crash import PhotographedFiles, differences

from fasti.broker.local import LocalShard
from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.log.commands import DescribeLog, ReadLog, Truncate
from fasti.model import SECOND_US, TopicSettings
from fasti.storage import log_blocks
from fasti.storage.files import Files
from fasti.storage.log_rows import read_piece
from fasti.testing.disk import SimulatedFiles

START_US = 1_700_000_000 * SECOND_US
SETTINGS = ShardSettings(segment_bytes=16_384, memory_bytes=16 << 20, leases_max=256)
TOPICS = {
    "one": TopicSettings(kind="log", segment_age_us=40 * SECOND_US),
    "three": TopicSettings(kind="log", partitions=3, retained_bytes=32_768),
}
Op = tuple[str, dict[str, Any]]


def moment(step: int) -> int:
    return START_US + step * SECOND_US


class LogShard:
    """A shard that takes operations; a checkpoint may lie between them in parts."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.shard = LocalShard(files, SETTINGS)
        self._plan: Any = None
        self._written: Any = None

    def do(self, op: Op, now_us: int) -> None:
        """When it returns, it is acknowledged."""
        name, given = op
        self.shard.step([], now_us, 0)  # What is too old goes first, whoever has looked before.
        if name == "restart":
            self.shard.close()
            self.shard = LocalShard(self.files, SETTINGS)
            self._plan = self._written = None
        elif name == "phase":
            self._go_on(now_us)
        elif name == "tick":
            self.shard.step([], now_us, 0)
        else:
            reply = self.shard.call(self._command(name, given), now_us, 0)
            assert reply.error is None, reply.error

    def _command(self, name: str, given: dict[str, Any]) -> Any:
        if name == "create":
            return co.CreateTopic(**given)
        if name == "truncate":
            place = given["topic"], given["partition"]
            described = self.shard.call(DescribeLog(place[0]), 0, 0).value[place[1]]
            before = described["earliest"] + int(given["share"] * described["rows"])
            return Truncate(*place, before)
        if name == "transaction":
            return co.Transaction([self._command("produce", part) for part in given["parts"]])
        given = dict(given)
        keys = given.pop("keys")
        rows = Rows.of(given.pop("payloads"), key=keys)
        hashed = None if keys is None else Keys(pa.array(keys, pa.string()), self.shard.store.seed)
        # Partitions are named where no key does: a turn is not durable, and a crash begins anew.
        return co.Produce(given.pop("topic"), rows, keys=hashed, **given)

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


def crash_everywhere(seed: int, steps: int, every: int = 1) -> int:
    """Stops a story before every k-th operation; returns how many crashes were tried."""
    ops = story(seed, steps)
    rng = random.Random(seed)
    files = PhotographedFiles()
    taken: list[tuple[int, int, SimulatedFiles]] = []
    current = 0

    def photograph(operation: int) -> None:
        if operation % every == seed % every:
            taken.append((operation, current, files.crash(rng)))

    files.photograph = photograph
    driven = LogShard(files)
    sights = []
    for current, op in enumerate(ops):
        before = driven.dump(moment(current))
        driven.do(op, moment(current))
        sights.append((before, driven.dump(moment(current))))
    for operation, step, image in taken:
        try:
            _check(image, ops, sights, step, go_on=rng.random() < 0.2)
        except BaseException as error:
            error.add_note(f"seed {seed}, crashed before operation {operation}, in {step}: ")
            error.add_note(repr(ops[step])[:500])
            raise
    return len(taken)


def _check(image: SimulatedFiles, ops: list[Op], sights: list[Any], step: int, go_on: bool) -> None:
    driven = LogShard(image)
    seen = driven.dump(moment(step))
    unlike = [differences(sight, seen) for sight in sights[step]]
    assert not all(unlike), "\n".join(["", *unlike[0][:6], "or", *unlike[1][:6]])
    if go_on:
        for later in range(step + (not unlike[1]), len(ops)):
            driven.do(ops[later], moment(later))
        end = driven.dump(moment(len(ops) - 1))
        assert not differences(sights[-1][1], end)
    driven.shard.close()


@pytest.mark.parametrize("seed", range(3))
def test_every_crash_of_a_short_story(seed: int) -> None:
    assert crash_everywhere(seed, steps=30) > 50


@pytest.mark.parametrize("seed", range(100, 102))
def test_some_crashes_of_a_longer_story(seed: int) -> None:
    assert crash_everywhere(seed, steps=150, every=17) > 12


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_more_crashes(seed: int) -> None:
    crash_everywhere(seed, steps=60)
    crash_everywhere(seed + 1000, steps=300, every=13)
