"""Consumer groups of a log, rule by rule. The property test has them in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Keys, Rows
from fasti.core.log import commands as lo
from fasti.core.log import dead as log_dead
from fasti.core.log import group_events as ge
from fasti.core.log import serving as log_serving
from fasti.core.log import window as log_window
from fasti.core.replies import ConsumerReplaced, Deliver, Step
from fasti.errors import AlreadyExists, Gone, InvalidArgument, NotFound, Overloaded
from fasti.model import SECOND_US, Limits, Outcome, RetryPolicy, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard

NOW_US = 1_700_000_000 * SECOND_US


class Groups:
    """A log and those who consume it, at a time that stands unless it is moved."""

    def __init__(self, limits: Limits | None = None, **settings: Any) -> None:
        self.files, self.now_us, self.tick = MemoryFiles(), NOW_US, 0
        self.settings = ShardSettings(limits=limits or Limits())
        self.shard = LocalShard(FileStorage(self.files), self.settings)
        retry = RetryPolicy(base_us=10 * SECOND_US, jitter=0)
        self.call(co.CreateTopic("log", TopicSettings(kind="log", retry=retry, **settings)))

    def step(self, *inputs: Any) -> Step:
        return self.shard.step(inputs, self.now_us, self.tick)

    def call(self, command: Any) -> Any:
        reply = self.step(command).replies[0]
        if reply.error is not None:
            raise reply.error
        return reply

    def produce(self, count: int, keys: list[str | None] | None = None, partition: int = 0) -> None:
        column = pa.array(keys or [None] * count, pa.string())
        rows = Rows.of([b"x"] * count, key=column)
        key = Keys(column, self.shard.store.seed)
        self.call(co.Produce("log", rows, keys=key, partition=partition))

    def lease(
        self, count: int, session: int = 1, consumer: str = "w", group: str = "g"
    ) -> list[Deliver]:
        step = self.step(co.Lease("log", session, consumer, count, group=group))
        if step.replies[0].error is not None:
            raise step.replies[0].error
        return deliveries(step)

    def ack(self, delivery: Deliver, rows: Any = slice(None)) -> list[str]:
        return words(self.call(ack(delivery, rows)))

    def describe(self, group: str = "g", partition: int = 0) -> dict[str, Any]:
        value = self.call(lo.DescribeGroups("log", group)).value
        told: dict[str, Any] = value[0]["partitions"][partition]
        return told

    def restart(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), self.settings, self.tick)


def ack(delivery: Deliver, rows: Any = slice(None)) -> co.Ack:
    ids = delivery.ids[rows]
    return co.Ack("log", ids, np.full(len(ids), delivery.token), group=delivery.group)


def deliveries(step: Step) -> list[Deliver]:
    return [effect for effect in step.effects if isinstance(effect, Deliver)]


def offsets(delivery: Deliver) -> list[int]:
    return (delivery.ids - 1).tolist()


def words(reply: Any) -> list[str]:
    return [Outcome(int(code)).word for code in reply.status]


def test_a_new_group_begins_at_the_earliest_and_tells_where_it_is() -> None:
    groups = Groups()
    groups.produce(10)
    (got,) = groups.lease(6)
    assert offsets(got) == [0, 1, 2, 3, 4, 5]
    assert got.group == "g"
    assert got.attempts.tolist() == [1] * 6
    assert groups.ack(got, [0, 1, 3]) == ["ok"] * 3
    told = groups.describe()
    assert (told["committed"], told["consumed"], told["end"]) == (2, 5, 10)
    assert (told["lag"], told["leased"], told["behind"]) == (7, 3, 0)
    assert groups.ack(got, [0, 2, 2]) == ["done", "ok", "duplicate"]
    assert groups.describe()["committed"] == 4


def test_groups_are_independent_of_each_other() -> None:
    groups = Groups()
    groups.produce(3)
    (first,) = groups.lease(3, group="a")
    (second,) = groups.lease(3, session=2, group="b")
    assert offsets(first) == offsets(second) == [0, 1, 2]
    other = co.Ack("log", first.ids, np.full(3, first.token), group="b")
    assert words(groups.call(other)) == ["stale_lease"] * 3
    assert groups.ack(first) == ["ok"] * 3
    assert (groups.describe("a")["lag"], groups.describe("b")["lag"]) == (0, 3)


def test_new_rows_and_redeliveries_share_a_turn() -> None:
    groups = Groups()
    groups.produce(40)
    (got,) = groups.lease(20)
    nack = co.Nack("log", got.ids, np.full(20, got.token), "no", group="g")
    assert words(groups.call(nack)) == ["ok"] * 20
    assert groups.describe()["again"] == 20
    groups.now_us += 60 * SECOND_US
    again, fresh = groups.lease(10)
    assert offsets(again) == [0, 1, 2, 3, 4]
    assert offsets(fresh) == [20, 21, 22, 23, 24]
    assert again.attempts.tolist() == [2] * 5


def test_with_room_for_one_row_a_broken_one_holds_nothing_up() -> None:
    groups = Groups(max_attempts=0)
    groups.produce(4)
    seen = []
    for _ in range(8):
        (got,) = groups.lease(1)
        seen += offsets(got)
        if seen[-1] == 0:
            release = co.Release("log", got.ids, np.full(1, got.token), group="g")
            groups.call(release)
        else:
            groups.ack(got)
    assert set(seen) == {0, 1, 2, 3}


def test_a_full_window_stops_new_rows_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (log_window, log_serving):
        monkeypatch.setattr(module, "WINDOW_ROWS", 8)
    groups = Groups()
    groups.produce(20)
    (got,) = groups.lease(20)
    assert len(got.ids) == 8
    assert groups.describe()["window_full"]
    groups.ack(got, slice(1, None))
    assert groups.describe()["window_full"]
    assert not deliveries(groups.step())
    step = groups.step(ack(got, [0]))
    assert [offsets(each) for each in deliveries(step)] == [list(range(8, 16))]
    assert groups.describe()["committed"] == 8


def test_a_lease_that_expires_is_handed_out_again_and_dies_after_the_last_attempt() -> None:
    groups = Groups(max_attempts=2, lease_us=10 * SECOND_US)
    groups.produce(1)
    (got,) = groups.lease(5)
    groups.tick += 10 * SECOND_US
    (again,) = deliveries(groups.step())
    assert again.attempts.tolist() == [2]
    assert groups.ack(got) == ["stale_lease"]
    groups.tick += 10 * SECOND_US
    groups.step()
    told = groups.describe()
    assert (told["dead"], told["committed"], told["lag"]) == (1, 1, 0)
    page = groups.call(lo.ListDead("log", "g"))
    assert page.names["reason"][int(page.columns["reason"][0])] == "the lease expired"
    assert groups.ack(again) == ["dead"]


def test_a_consumer_that_comes_back_gets_its_leases_again_and_the_old_session_ends() -> None:
    groups = Groups()
    groups.produce(4)
    (got,) = groups.lease(6, session=1)
    step = groups.step(co.Lease("log", 2, "w", 1, group="g"))
    (again,) = deliveries(step)
    assert offsets(again) == offsets(got)
    assert again.token > got.token
    assert again.attempts.tolist() == [1] * 4
    ended = [effect for effect in step.effects if isinstance(effect, ConsumerReplaced)]
    assert [(each.session, each.error) for each in ended] == [(1, None)]
    assert groups.ack(got) == ["stale_lease"] * 4
    # What the old one had written before it heard of it doesn't take the name back.
    step = groups.step(co.Lease("log", 1, "w", 1, group="g"))
    assert not step.effects
    assert step.replies[0].error is not None
    assert step.replies[0].error.code == "fenced"
    assert groups.ack(again) == ["ok"] * 4


def test_leases_outlive_a_restart_for_their_full_length() -> None:
    groups = Groups(lease_us=10 * SECOND_US)
    groups.produce(4)
    (got,) = groups.lease(4)
    groups.tick += 9 * SECOND_US
    groups.restart()
    groups.tick += 9 * SECOND_US
    groups.step()
    assert groups.ack(got) == ["ok"] * 4


def test_a_retry_waits_its_time_also_after_a_replay() -> None:
    """A replay leaves the entry of the first retry behind: it must not let the second one go."""
    groups = Groups()
    groups.produce(1)
    (first,) = groups.lease(1)
    groups.call(co.Nack("log", first.ids, np.full(1, first.token), "no", group="g"))
    groups.now_us += 10 * SECOND_US
    (second,) = groups.lease(1)
    groups.restart()
    groups.call(co.Nack("log", second.ids, np.full(1, second.token), "no", group="g"))
    assert groups.lease(1, session=2) == []
    groups.now_us += 20 * SECOND_US - 1
    assert deliveries(groups.step()) == []
    groups.now_us += 1
    (third,) = deliveries(groups.step())
    assert third.attempts.tolist() == [3]


def test_a_heartbeat_renews_a_consumer_s_leases_in_one_group_only() -> None:
    groups = Groups(lease_us=10 * SECOND_US)
    groups.produce(1)
    (mine,) = groups.lease(1, group="a")
    (other,) = groups.lease(1, group="b")
    groups.tick += 6 * SECOND_US
    assert groups.call(co.Heartbeat("log", "w", group="a")).value == 1
    groups.tick += 6 * SECOND_US
    groups.step()
    assert groups.ack(mine) == ["ok"]
    assert groups.ack(other) == ["stale_lease"]


def test_rows_of_a_key_go_one_after_another_and_hold_no_others_up() -> None:
    groups = Groups()
    groups.call(lo.CreateGroup("log", "g", ordered=True))
    groups.produce(6, ["a", "a", "b", None, "b", "a"])
    (got,) = groups.lease(10)
    assert offsets(got) == [0, 2, 3]
    nack = co.Nack("log", got.ids[:1], np.full(1, got.token), "no", group="g")
    assert not deliveries(groups.step(nack)), "the key stays busy"
    (freed,) = deliveries(groups.step(ack(got, [1, 2])))
    assert offsets(freed) == [4]
    groups.now_us += 60 * SECOND_US
    (again,) = deliveries(groups.step())
    assert offsets(again) == [0]
    (following,) = deliveries(groups.step(ack(again)))
    assert offsets(following) == [1]
    reject = co.Reject("log", following.ids, np.full(1, following.token), "no", group="g")
    (last,) = deliveries(groups.step(reject))
    assert offsets(last) == [5], "a dead row holds its key no longer"


def test_order_is_worked_out_anew_after_a_restart() -> None:
    groups = Groups()
    groups.call(lo.CreateGroup("log", "g", ordered=True))
    groups.produce(6, ["a", "a", "b", "a", "b", "c"])
    (got,) = groups.lease(10)
    assert offsets(got) == [0, 2, 5]
    groups.restart()
    assert not groups.lease(10, session=2, consumer="other"), "busy keys are busy still"
    assert groups.describe()["again"] == 3
    (freed,) = deliveries(groups.step(ack(got, [0])))
    assert offsets(freed) == [1]


def test_a_group_that_lost_rows_to_retention_learns_it_until_it_is_reset() -> None:
    groups = Groups()
    groups.produce(10)
    (got,) = groups.lease(20)
    groups.ack(got, [0, 1])
    groups.step(co.Lease("log", 2, "x", 5, group="g"))
    step = groups.step(lo.Truncate("log", 0, 6))
    ended = [effect for effect in step.effects if isinstance(effect, ConsumerReplaced)]
    assert sorted(each.session for each in ended) == [1, 2]
    error = ended[0].error
    assert isinstance(error, Gone)
    wanted = {"topic": "log", "group": "g", "partition": 0, "earliest": 6, "lost": 4}
    assert error.details == wanted
    with pytest.raises(Gone) as refused:
        groups.lease(1)
    assert refused.value.details == wanted
    assert groups.ack(got, [2, 7]) == ["gone", "ok"]
    groups.restart()
    with pytest.raises(Gone):
        groups.lease(1)
    groups.call(lo.ResetGroup("log", "g", -1))
    assert groups.describe()["behind"] == 0
    (again,) = groups.lease(10)
    assert offsets(again) == [6, 7, 8, 9]


def test_retention_of_what_is_finished_goes_unnoticed() -> None:
    groups = Groups()
    groups.produce(10)
    (got,) = groups.lease(5)
    groups.ack(got)
    groups.call(lo.Truncate("log", 0, 5))
    assert groups.describe()["behind"] == 0
    (following,) = groups.lease(2)
    assert offsets(following) == [5, 6]


def test_a_reset_ends_leases_and_goes_on_elsewhere() -> None:
    groups = Groups(partitions=2)
    groups.produce(10)
    (got,) = groups.lease(4)
    groups.call(lo.ResetGroup("log", "g", np.array([8]), 0))
    assert groups.ack(got) == ["done"] * 4
    assert groups.describe()["committed"] == 8
    groups.call(lo.ResetGroup("log", "g", -1))
    assert groups.ack(got) == ["stale_lease"] * 4
    groups.call(lo.ResetGroup("log", "g", -2))
    assert groups.describe()["committed"] == 10
    with pytest.raises(InvalidArgument, match="0 to 10") as refused:
        groups.call(lo.ResetGroup("log", "g", np.array([11, 0])))
    assert refused.value.field == "offset"


def test_dead_rows_are_listed_redriven_and_purged() -> None:
    groups = Groups(partitions=2)
    groups.produce(4)
    groups.produce(4, partition=1)
    for got in groups.lease(8):
        tokens = np.full(len(got.ids), got.token)
        groups.call(co.Reject("log", got.ids[:3], tokens[:3], "bad card", group="g"))
        groups.call(co.Reject("log", got.ids[3:], tokens[3:], "no route", group="g"))
    found, after_id = [], 0
    while True:
        page = groups.call(lo.ListDead("log", "g", after_id, 2, reason="card"))
        found += page.ids.tolist()
        after_id = page.next_after_id
        if not after_id:
            break
    assert found == [1, 2, 3, 1 + (1 << 51), 2 + (1 << 51), 3 + (1 << 51)]
    redrive = co.Redrive("log", np.array([1, 2, 99]), group="g")
    assert words(groups.call(redrive)) == ["ok", "ok", "not_found"]
    assert groups.describe()["committed"] == 4
    assert groups.describe()["lag"] == 2
    (again,) = groups.lease(5, session=2, consumer="x")
    assert offsets(again) == [0, 1]
    assert again.attempts.tolist() == [1, 1]
    assert words(groups.call(co.Purge("log", np.array([1, 3]), group="g"))) == ["leased", "ok"]
    assert groups.ack(again) == ["ok", "ok"]
    assert groups.ack(again, [0]) == ["done"]
    assert groups.describe()["dead"] == 1


def test_a_transaction_that_fails_leaves_acks_and_strays_as_they_were() -> None:
    groups = Groups()
    groups.produce(4)
    (got,) = groups.lease(4)
    tokens = np.full(4, got.token)
    groups.call(co.Reject("log", got.ids[:1], tokens[:1], "bad", group="g"))
    groups.call(co.Redrive("log", got.ids[:1], group="g"))
    (stray,) = groups.lease(1, session=2, consumer="x")
    before = groups.describe()
    broken = co.Ack("log", np.array([99]), np.array([1]), group="g")
    parts = [ack(stray), ack(got, slice(1, 3)), broken]
    reply = groups.step(co.Transaction(parts)).replies[0]
    assert not reply.committed
    assert groups.describe() == before
    reply = groups.step(co.Transaction(parts[:2])).replies[0]
    assert reply.committed
    told = groups.describe()
    assert (told["committed"], told["lag"], told["leased"]) == (3, 1, 1)
    groups.restart()
    assert groups.describe() == told


def test_dead_rows_that_a_transaction_gives_back_are_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_dead, "_UNSORTED_MAX", 2)
    dead = log_dead.Dead()
    dead.add(np.arange(4), 0, np.ones(4, dtype=np.uint16), NOW_US)
    positions = dead.find(np.array([1, 2]))
    dead.remove(positions)
    dead.add(np.arange(8, 12), 0, np.ones(4, dtype=np.uint16), NOW_US)
    assert dead.find(np.array([1, 9])).tolist() == [-1, 5]
    dead.take_back(4)
    dead.restore(positions)
    assert dead.find(np.array([1, 2, 9])).tolist() == [1, 2, -1]
    assert dead.take("offset", dead.after(0, 5)).tolist() == [1, 2, 3]


def test_acks_of_one_step_are_one_event() -> None:
    groups = Groups()
    groups.produce(30)
    got = [groups.lease(1, session=n, consumer=f"w{n}")[0] for n in range(1, 31)]
    step = groups.step(*(ack(each) for each in reversed(got)))
    assert [words(reply) for reply in step.replies] == [["ok"]] * 30
    events = [event for frame in step.frames for event in frame.events]
    acked = [event for event in events if isinstance(event, ge.GroupAcked)]
    assert [event.offset.tolist() for event in acked] == [list(range(30))]
    assert groups.describe()["committed"] == 30
    step = groups.step(ack(got[0]), ack(got[1]))
    assert [words(reply) for reply in step.replies] == [["done"], ["done"]]


def test_a_deleted_group_is_gone_with_its_leases_and_whoever_waits_is_told() -> None:
    groups = Groups()
    groups.produce(2)
    (got,) = groups.lease(5)
    step = groups.step(lo.DeleteGroup("log", "g"))
    (ended,) = [effect for effect in step.effects if isinstance(effect, ConsumerReplaced)]
    assert isinstance(ended.error, Gone)
    assert groups.shard.engine.memory.leases.active == 0
    with pytest.raises(NotFound) as refused:
        groups.ack(got)
    assert refused.value.details == {"topic": "log", "group": "g"}
    # What it asked for before it knew doesn't make the group again.
    with pytest.raises(Gone, match="deleted"):
        groups.lease(5)
    assert groups.call(lo.DescribeGroups("log")).value == []
    (anew,) = groups.lease(5, session=2)
    assert offsets(anew) == [0, 1], "a new group of that name"
    # A session that is over and done with is forgotten.
    groups.step(co.Detach(1))
    assert groups.lease(5, session=1, consumer="other") == []


def test_credit_that_is_withdrawn_is_gone_and_the_name_stays() -> None:
    groups = Groups()
    assert groups.lease(5) == []
    groups.step(co.Withdraw(1))
    assert groups.step(co.Produce("log", Rows.of([b"x"]))).effects == []
    (got,) = groups.lease(1)
    assert offsets(got) == [0]


def test_what_is_refused() -> None:
    groups = Groups(limits=Limits(groups_max=2))
    groups.produce(1)
    for name in ("", "x" * 256, "tab\t"):
        with pytest.raises(InvalidArgument) as refused:
            groups.lease(1, group=name)
        assert refused.value.field == "group"
    groups.call(lo.CreateGroup("log", "a"))
    with pytest.raises(AlreadyExists):
        groups.call(lo.CreateGroup("log", "a"))
    with pytest.raises(InvalidArgument, match="2 offsets for 1 partitions"):
        groups.call(lo.CreateGroup("log", "b", np.array([0, 0])))
    groups.call(lo.CreateGroup("log", "b", np.array([1])))
    with pytest.raises(Overloaded, match="2 groups"):
        groups.lease(1, group="c")
    with pytest.raises(NotFound):
        groups.call(co.Heartbeat("log", "w", group="c"))
    groups.call(co.CreateTopic("timeline"))
    with pytest.raises(InvalidArgument, match="groups are for log topics"):
        groups.call(co.Lease("timeline", 1, "w", 1, group="a"))


def test_a_checkpoint_keeps_all_of_a_group() -> None:
    groups = Groups(partitions=2, max_attempts=3)
    groups.produce(50)
    groups.produce(9, partition=1)
    got = groups.lease(40)
    groups.ack(got[0], slice(0, 30, 3))
    nack = co.Nack("log", got[0].ids[1:3], np.full(2, got[0].token), "no", group="g")
    groups.call(nack)
    reject = co.Reject("log", got[0].ids[4:6], np.full(2, got[0].token), "bad", group="g")
    groups.call(reject)
    groups.call(co.Redrive("log", got[0].ids[4:5], group="g"))
    before = [groups.describe(partition=n) for n in range(2)]
    groups.shard.checkpoint(groups.now_us, groups.tick)
    groups.restart()
    assert [groups.describe(partition=n) for n in range(2)] == before
    page = groups.call(lo.ListDead("log", "g"))
    assert [page.names["reason"][int(n)] for n in page.columns["reason"]] == ["bad"]
    assert groups.ack(got[0], [7]) == ["ok"]
    assert groups.ack(got[0], [1]) == ["stale_lease"]
