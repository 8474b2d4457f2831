"""Key-value topics and logs on several shards, beside a dict and a list: nothing is lost or doubled."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.kv.commands import KvDelete, KvGet, KvPut
from fasti.core.layout import Layout
from fasti.core.log import commands as lo
from fasti.core.replies import Deliver
from fasti.core.replies import Reply as EngineReply
from fasti.errors import WrongShard
from fasti.model import Outcome, TopicSettings, make_id
from tests.properties.shards_rig import ShardsRig
from tests.seeds import seeds

KEYS = [f"k{n}" for n in range(20)]


class Kinds:
    """Shards with one topic, and what is said to it."""

    def __init__(self, seed: int, kind: str) -> None:
        self.random = random.Random(seed)
        self.count = self.random.choice([2, 3, 4])
        self.rig = ShardsRig(self.count, self.random)
        settings = TopicSettings(kind=kind, partitions=self.random.choice([1, self.count, 7]))
        self.layout = Layout.of(settings, self.count)
        self.rig.shards[0].call(co.CreateTopic("t", settings), self.rig.now_us, self.rig.tick)
        for number in range(1, self.count):
            self.rig.follow(number)

    def call(self, number: int, command: Any) -> Any:
        self.rig.now_us += 1000
        return self.rig.shards[number].call(command, self.rig.now_us, self.rig.tick)

    def split(self, names: list[str | None]) -> dict[int, list[int]]:
        """Rows by shard; those without a key go to any that has a partition."""
        shards = self.layout.shards_of_keys(pa.array(names, pa.string())).tolist()
        free = self.random.choice(self.layout.all_shards)
        shards = [free if name is None else its for name, its in zip(names, shards, strict=True)]
        return {n: [row for row, its in enumerate(shards) if its == n] for n in sorted(set(shards))}

    def keys(self, number: int, names: list[str | None]) -> Keys:
        return Keys(pa.array(names, pa.string()), self.rig.shards[number].store.seed)

    def break_something(self) -> None:
        number = self.random.randrange(self.count)
        if self.random.random() < 0.5:
            self.rig.checkpoint(number)
        self.rig.shards[number].close()
        self.rig.shards[number] = self.rig.opened(number)


@pytest.mark.parametrize("seed", seeds(6, range(60)))
def test_entries_are_those_of_one_dict(seed: int) -> None:
    shards = Kinds(seed, "kv")
    entries: dict[str, bytes] = {}
    for turn in range(60):
        names: list[Any] = shards.random.sample(KEYS, shards.random.choice([1, 3, 12]))
        deletes = shards.random.random() < 0.3
        for number, places in shards.split(names).items():
            mine = [names[place] for place in places]
            rows = Rows.of([b"%d" % turn] * len(mine), key=mine)
            make = KvDelete if deletes else KvPut
            reply: EngineReply = shards.call(number, make("t", rows, shards.keys(number, mine)))
            there = [name in entries for name in mine]
            ok = [not deletes or known for known in there]
            assert [status == Outcome.OK for status in reply.status.tolist()] == ok
            for name in mine:
                entries.pop(name, None)
                if not deletes:
                    entries[name] = b"%d" % turn
        if shards.random.random() < 0.15:
            shards.break_something()
    found: dict[str, bytes] = {}
    for number, places in shards.split(list(KEYS)).items():
        mine: list[Any] = [KEYS[place] for place in places]
        reply = shards.call(number, KvGet("t", shards.keys(number, mine)))
        at = np.flatnonzero(reply.status == Outcome.OK)
        values = shards.rig.shards[number].store.payloads.gather(reply.locations[at])
        found |= dict(zip([mine[row] for row in at], values["payload"].to_pylist(), strict=True))
        for other in set(range(shards.count)) - {number}:
            refused = shards.call(other, KvGet("t", shards.keys(other, mine)))
            assert isinstance(refused.error, WrongShard)
    assert found == entries
    shards.rig.close()


@pytest.mark.parametrize("seed", seeds(6, range(60)))
def test_rows_of_a_log_are_read_and_consumed_once(seed: int) -> None:
    shards = Kinds(seed, "log")
    for number in range(shards.count):
        assert shards.call(number, lo.CreateGroup("t", "g")).error is None
    sent: dict[int, bytes] = {}
    acked: list[int] = []
    serial = 0
    for _ in range(60):
        names: list[Any] = [
            shards.random.choice([None, *KEYS]) for _ in range(shards.random.choice([1, 4, 9]))
        ]
        for number, places in shards.split(names).items():
            mine = [names[place] for place in places]
            payloads = [b"%d" % (serial + n) for n in range(len(mine))]
            serial += len(mine)
            command = co.Produce("t", Rows.of(payloads, key=mine), keys=shards.keys(number, mine))
            reply = shards.call(number, command)
            assert reply.error is None, reply.error
            assert not set(reply.ids.tolist()) & sent.keys()
            sent |= dict(zip(reply.ids.tolist(), payloads, strict=True))
        acked += _consume(shards, shards.random.randrange(shards.count), 5)
        if shards.random.random() < 0.15:
            shards.break_something()
    assert _read_all(shards) == sent
    # Leases that were lost with their holder run out.
    shards.rig.tick += 100_000_000
    for number in range(shards.count):
        while more := _consume(shards, number, 1_000):
            acked += more
    assert sorted(acked) == sorted(sent)
    shards.rig.close()


def _consume(shards: Kinds, number: int, count: int) -> list[int]:
    """Some rows of a shard are leased and acked, by a session that is then gone."""
    rig, shard = shards.rig, shards.rig.shards[number]
    rig.now_us += 1000
    rig.last_session += 1
    lease = co.Lease("t", rig.last_session, "worker", count, wait=False, group="g")
    step = shard.step([lease], rig.now_us, rig.tick)
    acked: list[int] = []
    for effect in step.effects:
        if isinstance(effect, Deliver):
            tokens = np.full(len(effect.ids), effect.token)
            reply = shards.call(number, co.Ack("t", effect.ids, tokens, group="g"))
            assert (reply.status == Outcome.OK).all()
            acked += effect.ids.tolist()
    shards.call(number, co.Detach(rig.last_session))
    return acked


def _read_all(shards: Kinds) -> dict[int, bytes]:
    """Each partition on its shard, from its first row to its end; no other shard has it."""
    found: dict[int, bytes] = {}
    for number in range(shards.count):
        described = shards.call(number, lo.DescribeLog("t")).value
        assert [each["partition"] for each in described] == shards.layout.own(number).tolist()
        for each in described:
            partition = each["partition"]
            ids = np.array([make_id(partition, n + 1) for n in range(each["end"])], dtype=np.int64)
            if not len(ids):
                continue
            reply = shards.call(number, co.Get("t", co.Target(ids=ids)))
            payloads = shards.rig.shards[number].store.payloads
            rows = payloads.gather(reply.columns["location"]).column("payload").to_pylist()
            found |= dict(zip(ids.tolist(), rows, strict=True))
            for other in set(range(shards.count)) - {number}:
                refused = shards.call(other, lo.ReadLog("t", partition, 0))
                assert isinstance(refused.error, WrongShard)
    return found
