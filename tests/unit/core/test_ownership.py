"""A shard that is one of several: what it has, and what it refuses as another's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.core import commands as co
from fasti.core.engine import Engine
from fasti.core.keys import Keys, Rows
from fasti.core.kv.commands import KvDelete, KvGet, KvPut, KvRows
from fasti.core.layout import Layout, ShardPlace
from fasti.core.log import commands as lo
from fasti.core.replies import Deliver
from fasti.errors import FastiError, WrongShard
from fasti.model import Limits, Outcome, TopicSettings, make_id, partition_of

SEED = (7, 11)
NOW_US = 1_700_000_000_000_000


def keys_of(names: list[str | None]) -> Keys:
    return Keys(pa.array(names, pa.string()), SEED)


def produce(topic: str, names: list[str | None] | int, **more: Any) -> co.Produce:
    if isinstance(names, int):
        return co.Produce(topic, Rows.of([b"x"] * names), **more)
    return co.Produce(topic, Rows.of([b"x"] * len(names), key=names), keys=keys_of(names), **more)


class Rig:
    """One engine of several, with time that is passed by hand."""

    def __init__(self, number: int = 1, count: int = 3, **limits: Any) -> None:
        self.place = ShardPlace(number, count)
        self.engine = Engine(64 << 20, 1000, Limits(**limits), self.place)
        self.now_us = NOW_US
        self.engine.start(0)
        self.delivered: list[Deliver] = []

    def make(self, name: str, **settings: Any) -> Layout:
        """A topic that is just there, as if the catalogue had told of it."""
        wanted = TopicSettings(**settings)
        number = self.engine.state.next_topic
        self.engine.state.make_topic(number, name, wanted)
        self.engine.state.next_topic += 1
        return Layout.of(wanted, self.place.count)

    def call(self, *inputs: Any) -> Any:
        self.now_us += 1000
        step = self.engine.step(inputs, self.now_us, self.now_us - NOW_US)
        assert not step.faults
        self.delivered += [each for each in step.effects if isinstance(each, Deliver)]
        self.frames = step.frames
        return step.replies[0] if len(inputs) == 1 else step.replies

    def good(self, command: Any) -> Any:
        reply = self.call(command)
        assert reply.error is None, reply.error
        return reply

    def refused(self, command: Any) -> FastiError:
        """It is refused as another shard's, and nothing happened."""
        reply = self.call(command)
        assert isinstance(reply.error, WrongShard), reply
        assert not self.frames
        assert reply.error.details["topic"] == command.topic
        return reply.error


def names_on(layout: Layout, shard: int, count: int = 5) -> list[str | None]:
    found = [f"key-{n}" for n in range(1000) if layout.shard_of_key(f"key-{n}") == shard]
    return list(found[:count])


@pytest.mark.parametrize("kind", ["timeline", "priority", "log"])
def test_rows_without_a_key_take_turns_over_own_partitions(kind: str) -> None:
    rig = Rig()
    layout = rig.make("t", kind=kind, partitions=8)
    ids = [int(rig.good(produce("t", 1)).ids[0]) for _ in range(9)]
    own = layout.own(1).tolist()
    assert len(own) == 3
    assert [partition_of(each) for each in ids] == own * 3


@pytest.mark.parametrize("kind", ["timeline", "priority", "log"])
def test_rows_with_keys_are_taken_where_they_belong(kind: str) -> None:
    rig = Rig()
    layout = rig.make("t", kind=kind, partitions=8)
    mine = names_on(layout, 1)
    reply = rig.good(produce("t", [*mine, None]))
    assert (reply.status == Outcome.OK).all()
    assert {layout.shard_of(partition_of(int(each))) for each in reply.ids} == {1}
    theirs = names_on(layout, 2)
    assert rig.refused(produce("t", theirs)).details["shard"] == 2
    # Some are another's: none is taken, and no single shard would be right.
    assert "shard" not in rig.refused(produce("t", [*mine, *theirs])).details
    assert rig.good(co.Count("t")).states["ready"] == 6


def test_a_topic_without_a_partition_here_is_there_and_empty() -> None:
    rig = Rig()
    layout = rig.make("t", partitions=1)
    assert layout.all_shards != [1]
    rig.refused(produce("t", 1))
    rig.refused(produce("t", ["a"]))
    rig.refused(produce("t", 1, partition=0))
    assert sum(rig.good(co.Count("t")).states.values()) == 0
    assert len(rig.good(co.List("t")).ids) == 0
    assert rig.good(co.List("t")).next_after_id == 0
    begin = NOW_US - NOW_US % 60_000_000
    rig.good(co.Forecast("t", begin, begin + 120_000_000, 60_000_000))
    rig.good(co.Lease("t", 1, "worker", 10))
    assert rig.delivered == []


def test_partitions_that_are_named() -> None:
    rig = Rig()
    layout = rig.make("t", partitions=6)
    mine, theirs = int(layout.own(1)[0]), int(layout.own(2)[0])
    assert partition_of(int(rig.good(produce("t", 1, partition=mine)).ids[0])) == mine
    assert rig.refused(produce("t", 1, partition=theirs)).details["shard"] == 2
    assert rig.call(produce("t", 1, partition=6)).error.code == "invalid_argument"


def _by_ids(ids: Any) -> list[Any]:
    tokens = np.ones(len(ids), dtype=np.int64)
    named = co.Target(ids=ids)
    rows = Rows.of([b"y"] * len(ids))
    return [
        *(co.Get("t", named), co.List("t", target=named), co.Cancel("t", named)),
        *(co.Update("t", named, rows), co.Move("t", named, co.When(delay_us=5))),
        *(co.Ack("t", ids, tokens), co.Nack("t", ids, tokens), co.Reject("t", ids, tokens)),
        *(co.Release("t", ids, tokens), co.Extend("t", ids, tokens, 30_000_000)),
        *(co.Redrive("t", ids), co.Purge("t", ids), co.ReleaseLeases("t", ids=ids)),
    ]


def test_messages_of_another_shard_are_never_not_found() -> None:
    rig = Rig()
    layout = rig.make("t", partitions=6)
    mine = int(rig.good(produce("t", 1)).ids[0])
    theirs = make_id(int(layout.own(2)[0]), 1)
    for command in _by_ids(np.array([mine, theirs])):
        rig.refused(command)
    for command in _by_ids(np.array([theirs])):
        assert rig.refused(command).details["shard"] == 2
    # A partition that there is not is no other shard's.
    nowhere = rig.good(co.Get("t", co.Target(ids=np.array([make_id(6, 1)]))))
    assert nowhere.status.tolist() == [Outcome.NOT_FOUND]
    keys = keys_of(names_on(layout, 2))
    rig.refused(co.Get("t", co.Target(keys=keys)))
    rig.refused(co.Cancel("t", co.Target(keys=keys)))
    mine_by_key = rig.good(co.Get("t", co.Target(keys=keys_of(names_on(layout, 1)))))
    assert set(mine_by_key.status.tolist()) == {Outcome.NOT_FOUND}


def test_acks_that_are_decided_together_are_looked_at() -> None:
    rig = Rig()
    layout = rig.make("t", partitions=6)
    rig.good(produce("t", 3))
    rig.good(co.Lease("t", 1, "worker", 10))
    delivered = rig.delivered[0]
    theirs = np.array([make_id(int(layout.own(0)[0]), 1)])
    token = np.array([delivered.token])
    good, bad = (
        co.Ack("t", delivered.ids[:1], token),
        co.Ack("t", theirs, token),
    )
    replies = rig.call(good, bad, co.Ack("t", delivered.ids[1:2], token))
    assert isinstance(replies[1].error, WrongShard)
    assert [replies[0].status.tolist(), replies[2].status.tolist()] == [[Outcome.OK], [Outcome.OK]]


def test_a_transaction_with_one_foreign_row_is_refused_whole() -> None:
    rig = Rig()
    layout = rig.make("t", partitions=6)
    parts = [produce("t", names_on(layout, 1)), produce("t", names_on(layout, 0))]
    reply = rig.call(co.Transaction(parts))
    assert isinstance(reply.error, WrongShard)
    assert not reply.committed
    assert not rig.frames
    assert rig.good(co.Count("t")).states["ready"] == 0


def test_pages_go_over_own_partitions_only() -> None:
    rig = Rig()
    rig.make("t", partitions=8)
    made = [int(rig.good(produce("t", 2)).ids[0]) for _ in range(6)]
    found: list[int] = []
    after, more = 0, True
    while more:
        page = rig.good(co.List("t", after_id=after, limit=3))
        found += page.ids.tolist()
        after, more = page.next_after_id, page.next_after_id > 0
    assert found == sorted(each + n for each in made for n in (0, 1))


def test_key_value_entries() -> None:
    rig = Rig()
    layout = rig.make("t", kind="kv", partitions=6)
    mine, theirs = names_on(layout, 1), names_on(layout, 2)

    def rows(names: list[str | None]) -> Rows:
        return Rows.of([b"v"] * len(names), key=names)

    ids = rig.good(KvPut("t", rows(mine), keys_of(mine))).ids
    assert (rig.good(KvGet("t", keys_of(mine))).status == Outcome.OK).all()
    assert (rig.good(KvRows("t", ids)).status == Outcome.OK).all()
    rig.refused(KvPut("t", rows([*mine, *theirs]), keys_of([*mine, *theirs])))
    rig.refused(KvGet("t", keys_of(theirs)))
    rig.refused(KvDelete("t", rows(theirs), keys_of(theirs)))
    rig.refused(KvRows("t", np.array([make_id(int(layout.own(2)[0]), 1)])))


def test_logs_tell_of_own_partitions_only() -> None:
    rig = Rig()
    layout = rig.make("t", kind="log", partitions=8)
    own, theirs = layout.own(1).tolist(), int(layout.own(0)[0])
    for _ in own:
        rig.good(produce("t", 2))
    assert [each["partition"] for each in rig.good(lo.DescribeLog("t")).value] == own
    assert rig.good(lo.SumLog("t")).value.partitions == len(own)
    rig.refused(lo.ReadLog("t", theirs, 0))
    rig.refused(lo.FindOffset("t", theirs, NOW_US))
    rig.refused(lo.Truncate("t", theirs, 1))
    rig.good(lo.CreateGroup("t", "g"))
    described = rig.good(lo.DescribeGroups("t", "g")).value[0]["partitions"]
    assert [each["partition"] for each in described] == own
    where = np.full(8, -1, dtype=np.int64)
    where[theirs] = 1
    rig.refused(lo.CreateGroup("t", "other", where))
    rig.refused(lo.ResetGroup("t", "g", where))
    rig.refused(lo.ResetGroup("t", "g", -2, theirs))
    rig.good(lo.ResetGroup("t", "g", -2))
    lags = [each["lag"] for each in rig.good(lo.DescribeGroups("t", "g")).value[0]["partitions"]]
    assert lags == [0] * len(own)


def test_the_dead_of_a_group_are_paged_over_own_partitions() -> None:
    rig = Rig()
    layout = rig.make("t", kind="log", partitions=8)
    rig.good(lo.CreateGroup("t", "g"))
    made = [rig.good(produce("t", 2)).ids for _ in layout.own(1)]
    rig.good(co.Lease("t", 1, "worker", 100, group="g"))
    for each in rig.delivered:
        tokens = np.full(len(each.ids), each.token)
        rig.good(co.Reject("t", each.ids, tokens, "no", group="g"))
    found: list[int] = []
    after, more = 0, True
    while more:
        page = rig.good(lo.ListDead("t", "g", after, 1))
        found += page.ids.tolist()
        after, more = page.next_after_id, page.next_after_id > 0
    assert found == sorted(np.concatenate(made).tolist())


def test_the_only_shard_looks_at_nothing() -> None:
    engine = Engine()
    topic = engine.state.make_topic(1, "t", TopicSettings(partitions=8))
    assert topic.own is None
    rig = Rig()
    rig.make("here", partitions=8, home="somewhere", width=1)
    everywhere = [Engine(place=ShardPlace(n, 3)).state for n in range(3)]
    settings = TopicSettings(partitions=8, home="somewhere", width=1)
    owned = [state.make_topic(1, "here", settings).own for state in everywhere]
    assert sum(own is None for own in owned) == 1
