"""When messages leave, in what pieces, and to whom: by hand, at the engine's own moments."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from fasti.core import commands as co
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.replies import Deliver, Step
from fasti.errors import Overloaded
from fasti.model import Limits, Outcome, RetryPolicy, TopicSettings

NOW_US = 1_000_000_000_000_000
AHEAD_US = 60_000


class Shard:
    """An engine, a topic `t`, and a clock that the test moves."""

    def __init__(self, limits: Limits | None = None, **settings: Any) -> None:
        self.engine = Engine(memory_bytes=64 << 20, leases_max=100_000, limits=limits)
        self.now_us = NOW_US
        self.last = Step()
        self.frames: list[Any] = []
        settings.setdefault("lookahead_us", AHEAD_US)
        self.do(co.CreateTopic("t", TopicSettings(**settings)))

    def step(self, *inputs: Any) -> list[Deliver]:
        self.last = self.engine.step(inputs, self.now_us, self.now_us - NOW_US)
        self.frames += self.last.frames
        return [effect for effect in self.last.effects if isinstance(effect, Deliver)]

    def do(self, command: Any) -> Any:
        self.step(command)
        (reply,) = self.last.replies
        assert reply.error is None, reply.error
        return reply

    def settle(self) -> list[Deliver]:
        """Steps until there is no more to do at this moment."""
        found = self.step()
        while self.last.more:
            found += self.step()
        return found

    def produce(self, due_us: Any, **given: Any) -> list[Deliver]:
        dues = np.atleast_1d(np.asarray(due_us, dtype=np.int64))
        rows = Rows.of([b"x"] * len(dues))
        return self.step(co.Produce("t", rows, co.When(due_us=dues), **given))

    def wait(self, session: int = 1, credit: int = 1_000_000) -> list[Deliver]:
        return self.step(co.Lease("t", session, f"w{session}", credit))

    def give_back(self, command: type, delivered: Deliver, **more: Any) -> list[Deliver]:
        tokens = np.full(len(delivered.ids), delivered.token)
        found = self.step(command("t", delivered.ids, tokens, **more))
        assert self.last.replies[0].all_ok
        return found

    def leases_end(self) -> list[int]:
        """The ticks at which the leases that are out run out."""
        leases = self.engine.memory.leases
        return sorted((leases.until[leases.live()]).tolist())


def ids(delivered: list[Deliver]) -> list[int]:
    return [message_id for each in delivered for message_id in each.ids.tolist()]


# When


def test_messages_that_trickle_in_leave_in_batches_and_in_time() -> None:
    shard = Shard()
    shard.wait()
    dues = NOW_US + 1_000_000 + np.arange(1_000) * 100
    shard.produce(dues)
    left_at: dict[int, int] = {}
    steps = 0
    while len(left_at) < len(dues):
        assert shard.last.wake_at_us is not None
        shard.now_us = max(shard.now_us, shard.last.wake_at_us)
        left_at |= dict.fromkeys(ids(shard.settle()), shard.now_us)
        steps += 1
    ahead = dues - np.array([left_at[message_id] for message_id in range(1, 1_001)])
    assert ahead.max() <= AHEAD_US
    assert ahead.min() >= AHEAD_US * 2 // 3
    # A tenth of a second of messages, a third of the lookahead at a time, and a few looks at
    # coarse slices of the calendar on the way.
    assert len(set(left_at.values())) <= 7
    assert steps <= 16


def test_without_lookahead_messages_leave_when_they_are_due() -> None:
    shard = Shard(lookahead_us=0)
    shard.wait()
    shard.produce([NOW_US + 5_000, NOW_US + 9_000])
    left: list[tuple[int, int]] = []
    while len(left) < 2:
        shard.now_us = max(shard.now_us, shard.last.wake_at_us or 0)
        left += [(message_id, shard.now_us - NOW_US) for message_id in ids(shard.settle())]
    assert left == [(1, 5_000), (2, 9_000)]


@pytest.mark.parametrize("delay_us", [0, AHEAD_US // 2, AHEAD_US])
def test_what_is_produced_within_the_lookahead_leaves_in_the_same_step(delay_us: int) -> None:
    shard = Shard()
    shard.wait()
    assert ids(shard.produce(NOW_US + delay_us)) == [1]
    assert shard.produce(NOW_US + AHEAD_US + 1) == []


def test_whoever_comes_gets_at_once_what_is_within_the_lookahead() -> None:
    shard = Shard()
    shard.produce([NOW_US + AHEAD_US - 1, NOW_US + AHEAD_US + 1])
    assert ids(shard.wait()) == [1]


def test_credit_beside_others_who_wait_breaks_no_batch() -> None:
    shard = Shard()
    shard.produce(NOW_US + AHEAD_US + 10_000)
    shard.wait(session=1)
    shard.now_us += 15_000
    assert shard.wait(session=2) == []
    shard.now_us = NOW_US + 10_000 + AHEAD_US // 3
    assert shard.last.wake_at_us is not None
    assert shard.last.wake_at_us <= shard.now_us
    assert ids(shard.settle()) == [1]


def test_a_longer_lookahead_counts_at_once() -> None:
    shard = Shard(lookahead_us=0)
    shard.wait()
    assert shard.produce(NOW_US + 30_000) == []
    assert ids(shard.step(co.ChangeTopic("t", TopicSettings(lookahead_us=AHEAD_US)))) == [1]


def test_messages_given_back_leave_again_when_they_are_near() -> None:
    shard = Shard(retry=RetryPolicy(base_us=AHEAD_US // 2, factor=1, jitter=0), max_attempts=0)
    shard.wait()
    (first,) = shard.produce(NOW_US + AHEAD_US // 2)
    (again,) = shard.give_back(co.Release, first, when=co.When(due_us=NOW_US + AHEAD_US))
    # Unopened: it is the first attempt still, at the time that it was given back for.
    assert (again.attempts.tolist(), again.due_us.tolist()) == ([1], [NOW_US + AHEAD_US])
    (failed,) = shard.give_back(co.Nack, again)
    assert (failed.attempts.tolist(), failed.due_us.tolist()) == ([2], [NOW_US + AHEAD_US // 2])
    assert shard.give_back(co.Release, failed, when=co.When(due_us=NOW_US + 10 * AHEAD_US)) == []


def test_an_idle_topic_asks_for_no_step() -> None:
    shard = Shard()
    shard.wait()
    shard.settle()
    assert shard.last.wake_at_us is None
    (delivered,) = shard.produce(NOW_US)
    shard.give_back(co.Ack, delivered)
    assert shard.last.wake_at_us is None
    assert not shard.last.more


# Leases of messages sent ahead


def test_a_lease_runs_from_the_due_time_or_from_when_it_was_handed_over() -> None:
    shard = Shard(lease_us=1_000_000)
    shard.wait()
    shard.produce([NOW_US - 5_000, NOW_US + 20_000])
    assert shard.leases_end() == [1_000_000, 1_020_000]
    shard.now_us = NOW_US + 1_019_999
    shard.settle()
    trusted = co.Heard("t", 1, "w1", finished=True)
    assert ids(shard.step(trusted)) == [1]
    shard.now_us += 1
    shard.settle()
    (again,) = shard.step(trusted)
    assert (again.ids.tolist(), again.attempts.tolist()) == ([2], [2])


def test_resumed_leases_and_those_of_a_new_process_run_from_the_due_time_too() -> None:
    shard = Shard(lease_us=1_000_000)
    shard.wait()
    shard.produce(NOW_US + 50_000)
    (resumed,) = shard.step(co.Lease("t", 2, "w1", 5))
    assert (resumed.session, ids([resumed])) == (2, [1])
    assert shard.leases_end() == [1_050_000]
    twin = Engine(memory_bytes=64 << 20)
    for frame in shard.frames:
        twin.replay(frame.sequence, frame.events)
    twin.start(tick=7)
    assert twin.memory.leases.until[twin.memory.leases.live()].tolist() == [1_050_007]


def test_a_message_sent_ahead_is_leased_to_readers_and_can_not_be_changed() -> None:
    shard = Shard()
    shard.wait()
    shard.produce([NOW_US + 50_000, NOW_US + 500_000])
    counts = shard.do(co.Count("t")).states
    assert (counts["leased"], counts["scheduled"], counts["ready"]) == (1, 1, 0)
    listed = shard.do(co.List("t", state="leased"))
    assert listed.ids.tolist() == [1]
    cancelled = shard.do(co.Cancel("t", co.Target(ids=np.array([1, 2]))))
    assert [Outcome(s) for s in cancelled.status] == [Outcome.LEASED, Outcome.OK]


# To whom


def test_a_burst_is_shared_evenly() -> None:
    shard = Shard()
    for session in range(10):
        shard.wait(session)
    found = shard.produce(np.full(30_000, NOW_US))
    found += shard.settle()
    shares = Counter[int]()
    for delivered in found:
        shares[delivered.session] += len(delivered.ids)
    assert set(shares.values()) == {3_000}
    assert len(found) == 10


def test_few_messages_are_not_divided_and_the_next_ones_go_to_the_next() -> None:
    shard = Shard()
    for session in (1, 2, 3):
        shard.wait(session)
    sessions = [[d.session for d in shard.produce(np.full(50, NOW_US))] for _ in range(4)]
    assert sessions == [[1], [2], [3], [1]]


def test_partitions_take_turns_by_the_piece() -> None:
    shard = Shard(partitions=4)
    for partition in range(4):
        shard.produce(NOW_US + 4 * np.arange(2_000) + partition, partition=partition)
    found = shard.wait(credit=8_000) + shard.settle()
    assert sorted(ids(found)) == sorted(set(ids(found)))
    assert len(ids(found)) == 8_000
    # Messages of the partitions alternate; a lease for each would be eight thousand.
    assert len(found) <= 16
    for delivered in found:
        assert (np.diff(delivered.due_us) > 0).all()


def test_topics_share_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasti.core.delivery.turns.SERVED_PER_STEP", 1_000)
    shard = Shard()
    shard.do(co.CreateTopic("u", TopicSettings()))
    shard.produce(np.full(5_000, NOW_US))
    shard.step(co.Produce("u", Rows.of([b"x"] * 5_000)))
    found = shard.step(co.Lease("t", 1, "w", 9_999), co.Lease("u", 1, "w", 9_999))
    assert Counter(d.topic for d in found for _ in d.ids) == {"t": 500, "u": 500}
    assert shard.last.more


# Who waits


def test_sessions_come_and_go() -> None:
    shard = Shard()
    for session in range(1_000):
        shard.wait(session, credit=1)
    for session in range(0, 1_000, 2):
        shard.step(co.Detach(session))
    found = shard.produce(np.full(600, NOW_US))
    assert [d.session for d in found] == list(range(1, 1_000, 2))
    assert shard.settle() == []


def test_credit_that_is_withdrawn_is_gone_and_the_name_stays() -> None:
    shard = Shard()
    shard.wait(1, credit=5)
    shard.wait(2, credit=1)
    shard.step(co.Withdraw(1))
    assert [d.session for d in shard.produce(np.full(3, NOW_US))] == [2]
    (found,) = shard.step(co.Lease("t", 1, "w1", 1))
    assert (found.session, len(found.ids)) == (1, 1)
    # One that never waited has nothing to withdraw.
    shard.step(co.Withdraw(99))
    assert shard.last.replies[0].error is None


def test_a_full_line_takes_credit_but_nobody_new() -> None:
    shard = Shard(Limits(consumers_waiting_max=2))
    shard.wait(1, credit=1)
    shard.wait(2, credit=1)
    shard.step(co.Lease("t", 3, "w3", 1))
    assert isinstance(shard.last.replies[0].error, Overloaded)
    shard.do(co.Lease("t", 1, "w1", 1))
    shard.step(co.Detach(2))
    shard.do(co.Lease("t", 3, "w3", 1))
    assert [d.session for d in shard.produce(np.full(9, NOW_US))] == [1, 3]


def test_many_topics_are_woken_each_in_its_time() -> None:
    shard = Shard()
    names = [f"t{n}" for n in range(300)]
    shard.step(*[co.CreateTopic(name, TopicSettings(lookahead_us=0)) for name in names])
    shard.step(*[co.Lease(name, n, "w", 5) for n, name in enumerate(names)])
    for n, name in enumerate(reversed(names)):
        due = co.When(due_us=NOW_US + 1_000 * (n + 1))
        shard.step(co.Produce(name, Rows.of([b"x"]), due))
    left: list[tuple[str, int]] = []
    while len(left) < len(names):
        assert shard.last.wake_at_us is not None
        shard.now_us = max(shard.now_us, shard.last.wake_at_us)
        left += [(d.topic, shard.now_us - NOW_US) for d in shard.settle()]
    assert left == [(name, 1_000 * (n + 1)) for n, name in enumerate(reversed(names))]


# Acks that are decided together


def acked(shard: Shard, *commands: Any) -> list[list[str]]:
    shard.step(*commands)
    return [
        [Outcome(s).word for s in reply.status] if hasattr(reply, "status") else []
        for reply in shard.last.replies
    ]


def test_acks_of_a_step_are_one_event_and_each_is_answered() -> None:
    shard = Shard()
    for session in range(5):
        shard.wait(session, credit=2)
    found = shard.produce(np.full(10, NOW_US))
    acks = [co.Ack("t", d.ids, np.full(2, d.token), NOW_US + d.session) for d in found]
    credits = [co.Lease("t", d.session, f"w{d.session}", 1) for d in found]
    words = acked(shard, *[each for pair in zip(acks, credits, strict=True) for each in pair])
    assert words == [["ok", "ok"], []] * 5
    (frame,) = shard.last.frames
    (event,) = frame.events
    assert event.sequence.tolist() == list(range(1, 11))
    assert event.started_us.tolist() == [NOW_US + s for s in range(5) for _ in range(2)]
    assert [reply.ids.tolist() for reply in shard.last.replies[::2]] == [
        d.ids.tolist() for d in found
    ]


def test_acks_that_are_not_all_ok_are_decided_one_by_one() -> None:
    shard = Shard()
    shard.wait(credit=4)
    (found,) = shard.produce(np.full(4, NOW_US))
    good, bad = np.full(2, found.token), np.full(2, found.token + 1)
    first, last = found.ids[:2], found.ids[2:]
    words = acked(
        shard,
        co.Ack("t", first, good),
        co.Ack("t", last, bad),
        co.Ack("t", first, good),
        co.Ack("none", first, good),
        co.Ack("t", last, good),
    )
    assert words == [["ok"] * 2, ["stale_lease"] * 2, ["done"] * 2, [], ["ok"] * 2]
    assert shard.last.replies[3].error.code == "not_found"


def test_acks_don_t_pass_a_session_that_takes_the_name() -> None:
    shard = Shard()
    shard.wait(1, credit=2)
    (found,) = shard.produce(np.full(2, NOW_US))
    token = np.array([found.token])
    words = acked(
        shard,
        co.Ack("t", found.ids[:1], token),
        co.Lease("t", 2, "w1", 1),
        co.Ack("t", found.ids[1:], token),
    )
    assert words == [["ok"], [], ["stale_lease"]]
