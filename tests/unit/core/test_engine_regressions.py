"""Every bug that the engine had and that a test found, once and deterministically.

Most of them were met by tests/properties; each test says what a user would have seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.core import commands
from fasti.core.calendar import wheel as calendar
from fasti.core.calendar.wheel import Calendar
from fasti.core.commands import Target, When
from fasti.core.engine import Engine
from fasti.core.keys import Keys, Rows
from fasti.core.replies import Deliver, Step
from fasti.core.rows.arena import STATE_MASK
from fasti.core.timeline import staging
from fasti.model import (
    DUE_MAX_US,
    MINUTE_US,
    SECOND_US,
    OnConflict,
    Outcome,
    RetryPolicy,
    State,
    TopicSettings,
)

NOW_US = 1_000_000_000_000_000
SEED = (1, 2)


class Shard:
    """An engine with a clock that the test moves."""

    def __init__(self, leases_max: int = 1000, **settings: Any) -> None:
        self.engine = Engine(memory_bytes=64 << 20, leases_max=leases_max)
        self.now_us, self.tick = NOW_US, 1_000
        self.frames: list[Any] = []
        self.last = Step()
        self.create("t", **settings)

    def create(self, name: str, **settings: Any) -> None:
        done = self.do(commands.CreateTopic(name, TopicSettings(**settings)))
        assert done.error is None

    def step(self, *inputs: Any) -> list[Any]:
        self.last = self.engine.step(inputs, self.now_us, self.tick)
        self.frames += self.last.frames
        return self.last.replies

    def do(self, command: Any) -> Any:
        return self.step(command)[0]

    def wait(self, span_us: int) -> None:
        self.now_us += span_us
        self.tick += span_us

    def produce(self, *payloads: bytes, keys: list[str | None] | None = None, **given: Any) -> Any:
        when = When(due_us=given.pop("due_us", None), delay_us=given.pop("delay_us", None))
        topic = given.pop("topic", "t")
        found = None if keys is None else names(*keys)
        return self.do(commands.Produce(topic, Rows.of(list(payloads)), when, found, **given))

    def lease(self, count: int = 1, session: int = 1, **given: Any) -> list[Deliver]:
        given = {"topic": "t", "consumer": f"w{session}", **given}
        done = self.do(commands.Lease(session=session, count=count, **given))
        assert done.error is None
        return self.delivered

    @property
    def delivered(self) -> list[Deliver]:
        return [effect for effect in self.last.effects if isinstance(effect, Deliver)]

    def restarted(self) -> Shard:
        twin = Shard.__new__(Shard)
        twin.engine = Engine(memory_bytes=64 << 20, leases_max=1000)
        for frame in self.frames:
            twin.engine.replay(frame.sequence, frame.events)
        twin.engine.start(self.tick)
        twin.now_us, twin.tick, twin.frames = self.now_us, self.tick, list(self.frames)
        twin.last = Step()
        return twin


def names(*keys: str | None) -> Keys:
    return Keys(pa.array(keys, pa.string()), SEED)


def ids(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def words(reply: Any) -> list[str]:
    assert reply.error is None, reply.error
    return [Outcome(int(status)).word for status in reply.status]


# Handing out


def test_a_cancelled_message_does_not_stand_in_the_way() -> None:
    """The line of ready messages began with stale entries only, and taking more of them failed."""
    shard = Shard()
    shard.produce(b"1", b"2", b"3")
    shard.do(commands.Count("t"))  # brings them into the line of the ready
    shard.do(commands.Cancel("t", Target(ids=ids(1, 2))))
    assert [d.ids.tolist() for d in shard.lease()] == [[3]]


def test_landed_messages_go_to_those_who_wait() -> None:
    """The event names a stage and no topic, so nobody looked whether somebody waited there."""
    shard = Shard()
    shard.lease(count=5)
    shard.produce(b"1", stage="s")
    shard.do(commands.Publish("s"))
    assert [d.ids.tolist() for d in shard.delivered] == [[1]]


def test_a_message_due_at_the_beginning_of_time_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A moment of 0 was taken for no moment at all: the rest of a long line waited for ever."""
    monkeypatch.setattr("fasti.core.delivery.turns.SERVED_PER_STEP", 2)
    shard = Shard()
    shard.produce(b"1", b"2", b"3", due_us=0)
    shard.lease(count=10)
    assert shard.last.more
    shard.step()
    assert [d.ids.tolist() for d in shard.delivered] == [[3]]


def test_no_room_for_leases_is_no_reason_to_wake_up() -> None:
    """The engine asked to be stepped again at once, for as long as the lease table was full."""
    shard = Shard(leases_max=1)
    shard.produce(b"1", b"2")
    assert len(shard.lease(count=2)) == 1
    assert shard.last.wake_at_us is None
    assert shard.last.wake_at_tick is not None
    shard.tick = shard.last.wake_at_tick
    shard.step()
    assert [d.ids.tolist() for d in shard.delivered] == [[1]]


def test_taking_what_is_there_leaves_the_credit_alone() -> None:
    """A session that waited lost its credit when it also asked without waiting."""
    shard = Shard()
    shard.lease(count=2)
    assert shard.lease(count=3, wait=False) == []
    shard.produce(b"1", b"2", b"3")
    assert [d.ids.tolist() for d in shard.delivered] == [[1, 2]]


def crowded(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> int:
    """500 messages in one slice of the calendar, of which a call takes a part only; its start."""
    monkeypatch.setattr(calendar, "ROWS_PER_CALL", 100)
    start_us = ((NOW_US >> 20) + 40) << 20
    for part in range(5):
        due_us = start_us + 10 * np.arange(100, dtype=np.int64) + part
        shard.produce(*([b"x"] * 100), due_us=due_us)
    return start_us


def drain(shard: Shard) -> list[int]:
    got: list[int] = []
    shard.lease(count=1000)
    for _ in range(200):
        got += [i for d in shard.delivered for i in d.ids.tolist()]
        shard.step()
    return got


def test_time_leaps_over_a_slice_that_was_spread_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor passed what had been spread: later messages were handed out before it."""
    shard = Shard()
    start_us = crowded(shard, monkeypatch)
    partition = shard.engine.state.by_name["t"].partitions[0]
    while partition.times.advance(start_us - 1):
        pass
    shard.now_us = start_us + (1 << 21)
    order = sorted(range(500), key=lambda n: (n % 100, n // 100))
    assert drain(shard) == [n + 1 for n in order]


def test_a_session_waits_under_one_name() -> None:
    """Messages that it asked for under its second name were leased to the first."""
    shard = Shard()
    shard.lease(consumer="ann")
    reply = shard.do(commands.Lease("t", session=1, consumer="bob", count=1))
    assert reply.error.code == "invalid_argument"


def test_a_sweep_keeps_rows_of_a_slice_that_is_half_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that had left the calendar ahead of its cursor were swept away and never delivered."""
    monkeypatch.setattr("fasti.core.timeline.partition._STALE_MIN", 0)
    shard = Shard()
    start_us = crowded(shard, monkeypatch)
    partition = shard.engine.state.by_name["t"].partitions[0]
    shard.now_us = start_us + (1 << 21)
    while not partition.times.ready.entries:
        partition.times.advance(shard.now_us)
    assert partition.times.ready.entries < 500
    assert partition.times.calendar.cursor_us <= start_us
    doomed = [s for s in range(1, 501) if s % 10]
    shard.do(commands.Cancel("t", Target(ids=ids(*doomed))))
    assert partition.times.ready.entries < 100
    assert sorted(drain(shard)) == list(range(10, 501, 10))


def test_moving_one_message_for_ever_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old entries of a message that is moved again and again looked alive and stayed."""
    monkeypatch.setattr("fasti.core.timeline.partition._STALE_MIN", 64)
    shard = Shard()
    shard.produce(b"1", delay_us=MINUTE_US)
    for turn in range(2_000):
        when = When(due_us=NOW_US + MINUTE_US * (2 + turn % 7) + turn)
        assert words(shard.do(commands.Move("t", Target(ids=ids(1)), when))) == ["ok"]
    partition = shard.engine.state.by_name["t"].partitions[0]
    assert partition.times.calendar.entries + partition.times.ready.entries < 200
    shard.lease()
    shard.wait(20 * MINUTE_US)
    shard.step()
    assert [d.ids.tolist() for d in shard.delivered] == [[1]]


def test_a_slice_keeps_its_generations_apart_when_it_is_swept() -> None:
    """What a checkpoint has written may be forgotten after a sweep, what came later may not."""
    index = Calendar()
    due = ids(5 << 26, 5 << 26)
    index.insert(ids(1, 1), due)
    index.generation = 2
    index.insert(ids(2, 2), due)

    def resolve(sequences: Any) -> Any:
        return sequences, np.full(len(sequences), 5 << 26)

    index.sweep(resolve)
    index.sweep(resolve)
    assert index.entries == 2
    index.forget(1, 0)
    assert index.entries == 1


# Definite answers


def test_the_second_row_counts_if_the_first_was_refused() -> None:
    """It was called a duplicate although nothing had been done."""
    shard = Shard()
    shard.produce(b"1")
    move = commands.Move("t", Target(ids=ids(1, 1)), When(delay_us=5), versions=ids(7, 1))
    assert words(shard.do(move)) == ["conflict", "ok"]
    shard.wait(5)
    (delivered,) = shard.lease()
    ack = commands.Ack("t", ids(1, 1, 1), ids(99, delivered.token, delivered.token))
    assert words(shard.do(ack)) == ["stale_lease", "ok", "duplicate"]


def test_a_redrive_names_the_conflict_on_every_row() -> None:
    """A row that named its message again was a duplicate of one that had been refused."""
    shard = Shard()
    shard.produce(b"1", keys=["k"])
    (delivered,) = shard.lease()
    shard.do(commands.Reject("t", ids(1), ids(delivered.token)))
    shard.produce(b"2", keys=["k"], delay_us=MINUTE_US)
    redrive = commands.Redrive("t", ids(1, 1), names("k", "k"))
    assert words(shard.do(redrive)) == ["conflict", "conflict"]


def test_a_redrive_with_too_few_keys_is_refused() -> None:
    """It raised an error of numpy's, which would have stopped the shard."""
    shard = Shard(partitions=2)
    reply = shard.do(commands.Redrive("t", ids(1, 2), names("k")))
    assert reply.error.code == "invalid_argument"


def test_a_finished_message_has_no_version() -> None:
    """The answer depended on whether its row still lay around."""
    shard = Shard()
    shard.produce(b"1", b"2", keys=["a", "b"])
    shard.do(commands.Cancel("t", Target(ids=ids(1))))
    reply = shard.do(commands.Cancel("t", Target(ids=ids(1, 2))))
    assert words(reply) == ["cancelled", "ok"]
    assert reply.versions.tolist() == [0, 2]
    assert reply.at_us.tolist()[0] == NOW_US


def test_a_key_that_names_nothing_has_no_id() -> None:
    """An old message's id was shown for as long as the key index happened to know it."""
    shard = Shard(outcome_age_us=MINUTE_US)
    shard.produce(b"1", keys=["a"])
    shard.do(commands.Cancel("t", Target(keys=names("a"))))
    shard.wait(2 * MINUTE_US)
    reply = shard.do(commands.Cancel("t", Target(keys=names("a"))))
    assert words(reply) == ["not_found"]
    assert reply.ids.tolist() == [0]
    assert shard.do(commands.Get("t", Target(keys=names("a")))).ids.tolist() == [0]


def test_a_replace_is_told_who_has_the_message() -> None:
    """`leased` came without `by` and `until`."""
    shard = Shard(lease_us=30 * SECOND_US)
    shard.produce(b"1", keys=["a"])
    shard.lease()
    reply = shard.produce(b"2", keys=["a"], on_conflict=OnConflict.REPLACE)
    assert words(reply) == ["leased"]
    assert reply.by == {0: "w1"}
    assert reply.at_us.tolist() == [NOW_US + 30 * SECOND_US]


def test_redrive_and_purge_are_told_who_has_the_message() -> None:
    """`leased` came without `by` and `until`."""
    shard = Shard()
    shard.produce(b"1")
    shard.lease()
    assert shard.do(commands.Redrive("t", ids(1))).by == {0: "w1"}
    assert shard.do(commands.Purge("t", ids(1))).by == {0: "w1"}


def test_a_forecast_beyond_all_numbers_is_refused() -> None:
    """It raised an OverflowError, which would have stopped the shard."""
    shard = Shard()
    shard.produce(b"1")
    for from_us, to_us, bucket_us in (
        (0, 1 << 61, MINUTE_US << 40),
        (0, 1 << 80, MINUTE_US << 35),
        (-MINUTE_US, MINUTE_US, MINUTE_US),
    ):
        reply = shard.do(commands.Forecast("t", from_us, to_us, bucket_us))
        assert reply.error.code == "invalid_argument"


def test_a_snapshot_shows_who_had_a_message_then() -> None:
    """It showed whoever has the slot of that lease now."""
    shard = Shard()
    shard.produce(b"1", b"2")
    (delivered,) = shard.lease()
    snapshot = shard.do(commands.TakeSnapshot(NOW_US + MINUTE_US)).value
    shard.do(commands.Reject("t", delivered.ids, ids(delivered.token), "why"))
    shard.lease(session=2)
    (place,) = snapshot.ledgers
    (rows,) = snapshot.rows(*place)
    leased = rows["lease"][rows["flags"] & STATE_MASK == State.LEASED]
    assert [snapshot.names["consumer"][n] for n in snapshot.leases.consumer[leased]] == ["w1"]


def test_the_dead_answer_to_their_key() -> None:
    """By key it was `dead` until the key index was rebuilt, and `not_found` from then on."""
    shard = Shard()
    shard.produce(b"1", keys=["dead"])
    (delivered,) = shard.lease()
    shard.do(commands.Reject("t", delivered.ids, ids(delivered.token), "why"))
    for begin in range(0, 2_000, 50):
        keys = [f"k{n}" for n in range(begin, begin + 50)]
        shard.produce(*([b"x"] * 50), keys=keys, delay_us=MINUTE_US)
    assert words(shard.do(commands.Cancel("t", Target(keys=names("dead"))))) == ["dead"]


# Leases


def test_a_heartbeat_never_shortens_a_lease() -> None:
    """It took an extended lease back to its hold, and one sent ahead to before its due time."""
    shard = Shard(lease_us=SECOND_US, hold_us=SECOND_US, lookahead_us=MINUTE_US)
    shard.produce(b"1", delay_us=30 * SECOND_US)
    (delivered,) = shard.lease()
    shard.do(commands.Heartbeat("t", "w1"))
    shard.wait(20 * SECOND_US)
    shard.step()
    assert shard.engine.memory.leases.active == 1
    extend = commands.Extend("t", delivered.ids, ids(delivered.token), 10 * MINUTE_US)
    assert words(shard.do(extend)) == ["ok"]
    shard.do(commands.Heartbeat("t", "w1"))
    shard.wait(5 * MINUTE_US)
    shard.step()
    assert shard.engine.memory.leases.active == 1


def test_a_retry_is_never_beyond_all_times() -> None:
    """A long retry limit gave a due time that later sums could not hold."""
    for_ever = RetryPolicy(base_us=DUE_MAX_US, limit_us=DUE_MAX_US, jitter=0)
    shard = Shard(retry=for_ever)
    shard.produce(b"1")
    (delivered,) = shard.lease()
    assert words(shard.do(commands.Nack("t", delivered.ids, ids(delivered.token)))) == ["ok"]
    found = shard.do(commands.Get("t", Target(ids=ids(1))))
    assert found.columns["due_us"].tolist() == [DUE_MAX_US]
    for settings in (
        TopicSettings(hold_us=DUE_MAX_US + 1),
        TopicSettings(retry=RetryPolicy(limit_us=1 << 70)),
    ):
        reply = shard.do(commands.CreateTopic("other", settings))
        assert reply.error.code == "invalid_argument"


# Transactions


def test_a_key_of_a_failed_transaction_can_be_used_and_found() -> None:
    """The next message under that key got a second entry, and the first one named nobody."""
    shard = Shard()
    fails = [
        commands.Produce("t", Rows.of([b"1"]), keys=names("a")),
        commands.Cancel("t", Target(ids=ids(99))),
    ]
    reply = shard.do(commands.Transaction(fails))
    assert not reply.committed
    assert words(shard.produce(b"2", keys=["a"])) == ["ok"]
    assert words(shard.produce(b"3", keys=["a"])) == ["conflict"]
    assert words(shard.do(commands.Cancel("t", Target(keys=names("a"))))) == ["ok"]


def test_a_failed_transaction_takes_an_extension_back() -> None:
    """The lease's length stayed, so that every renewal gave the longer one."""
    shard = Shard(lease_us=SECOND_US)
    shard.produce(b"1")
    (delivered,) = shard.lease()
    fails = [
        commands.Extend("t", delivered.ids, ids(delivered.token), 10 * MINUTE_US),
        commands.Cancel("t", Target(ids=ids(99))),
    ]
    assert not shard.do(commands.Transaction(fails)).committed
    shard.do(commands.Heartbeat("t", "w1"))
    shard.wait(2 * SECOND_US)
    shard.step()
    assert shard.engine.memory.leases.active == 0


def test_a_transaction_that_keeps_what_is_there_stands() -> None:
    """`keep` on a taken key made the whole transaction fail, though that is what was asked."""
    shard = Shard()
    shard.produce(b"1", keys=["a"])
    keep = OnConflict.KEEP
    reply = shard.produce(b"2", b"3", keys=["a", "b"], on_conflict=keep, atomic=True)
    assert words(reply) == ["duplicate", "ok"]
    # A batch that was sent before is something else: the rest must not happen twice.
    once = {"keys": names("c"), "on_conflict": keep, "producer": "p", "producer_sequence": 1}
    for committed in (True, False):
        parts = [
            commands.Produce("t", Rows.of([b"4"]), **once),
            commands.Produce("t", Rows.of([b"5"])),
        ]
        assert shard.do(commands.Transaction(parts)).committed is committed


# Producers


def test_a_producer_that_began_anew_gets_its_new_receipts() -> None:
    """A receipt from before it was forgotten answered for a new batch of the same number."""
    shard = Shard(producer_age_us=MINUTE_US)
    for number in range(1, 4):
        shard.produce(b"x", producer="p", producer_sequence=number)
    shard.wait(2 * MINUTE_US)
    for number in range(1, 4):
        shard.produce(b"y", producer="p", producer_sequence=number)
    again = shard.produce(b"y", producer="p", producer_sequence=3)
    assert (words(again), again.sent_before) == (["ok"], True)
    assert again.ids.tolist() == [6]


def test_a_batch_that_kept_what_was_there_says_so_again() -> None:
    """Asked again it could not be told from one that was stored: both said `duplicate`."""
    shard = Shard()
    shard.produce(b"1", keys=["a"])
    batch = {"keys": ["a", "b"], "on_conflict": OnConflict.KEEP, "producer": "p"}
    for atomic in (False, True):
        number = {**batch, "producer_sequence": 1 + atomic, "atomic": atomic}
        first = shard.produce(b"2", b"3", **number)
        again = shard.produce(b"2", b"3", **number)
        assert words(again) == words(first) == ["duplicate", "duplicate" if atomic else "ok"]
        assert again.sent_before
        assert again.ids.tolist() == first.ids.tolist()


def test_an_atomic_batch_that_did_not_happen_uses_up_its_number() -> None:
    """The producer's next batch was refused, because one in between was missing."""
    shard = Shard()
    shard.produce(b"1", keys=["a"], producer="p", producer_sequence=1)
    whole = {"keys": ["b", "a"], "producer": "p", "producer_sequence": 2, "atomic": True}
    assert words(shard.produce(b"2", b"3", **whole)) == ["aborted", "conflict"]
    shard.do(commands.Cancel("t", Target(ids=ids(1))))
    again = shard.produce(b"2", b"3", **whole)
    assert (words(again), again.sent_before) == (["aborted", "conflict"], True)
    assert words(shard.produce(b"4", producer="p", producer_sequence=3)) == ["ok"]
    reopened = shard.restarted()
    assert words(reopened.produce(b"4", producer="p", producer_sequence=4)) == ["ok"]


def test_batches_are_numbered_from_1() -> None:
    """Batch 0 of a known producer was called a duplicate of one that never was."""
    shard = Shard()
    shard.produce(b"x", producer="p", producer_sequence=1)
    reply = shard.produce(b"y", producer="p", producer_sequence=0)
    assert reply.error.code == "invalid_argument"


def test_another_topics_age_does_not_forget_a_producer() -> None:
    """Traffic on a topic with a short age made a topic with a long one say `unknown_producer`."""
    shard = Shard(producer_age_us=60 * MINUTE_US)
    shard.create("short", producer_age_us=SECOND_US)
    shard.produce(b"x", producer="p", producer_sequence=1)
    shard.wait(MINUTE_US)
    shard.produce(b"y", topic="short", producer="q", producer_sequence=1)
    assert words(shard.produce(b"z", producer="p", producer_sequence=2)) == ["ok"]


# Stages


def test_half_a_stage_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large stage expires over several steps, and what was left of it could be published."""
    monkeypatch.setattr(staging, "LANDED_PER_STEP", 2)
    shard = Shard(stage_age_us=MINUTE_US)
    shard.produce(b"1", b"2", b"3", stage="s")
    shard.wait(MINUTE_US)
    shard.step()
    assert shard.last.more
    refused, again = shard.step(
        commands.Publish("s"), commands.Produce("t", Rows.of([b"4"]), stage="s")
    )
    assert refused.error.code == "not_found"
    assert again.error.code == "invalid_argument"
    assert shard.engine.state.stages == {}
    assert shard.restarted().engine.state.stages == {}


# Messages that expire


def until(*spans_us: int) -> commands.Expires:
    return commands.Expires(at_us=ids(*(NOW_US + span_us for span_us in spans_us)))


def run_idle(shard: Shard) -> int:
    """Steps until there is nothing to do at once; how many it took."""
    steps = 0
    while shard.last.more or not steps:
        shard.step()
        steps += 1
    return steps


def test_a_message_that_was_leased_while_its_moment_came_near_expires() -> None:
    """Its entry was taken for stale while it was leased: when it had come back it lay there for ever,
    neither dead nor handed out.
    """
    shard = Shard(retry=RetryPolicy(10 * MINUTE_US), lease_us=60 * MINUTE_US)
    shard.produce(b"a", expires=until(5 * MINUTE_US))
    (delivered,) = shard.lease()
    # The calendar looks at the hour's entries, and then at the minute's.
    for _ in range(49):
        shard.wait(6 * SECOND_US)
        shard.step()
    nack = commands.Nack("t", delivered.ids, ids(delivered.token))
    assert words(shard.do(nack)) == ["ok"]
    shard.wait(6 * SECOND_US)
    run_idle(shard)
    assert shard.do(commands.Count("t")).states["dead"] == 1


def test_moments_of_messages_that_are_done_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each left an entry in the calendar of moments, until the moment came: weeks, perhaps."""
    monkeypatch.setattr("fasti.core.timeline.partition._STALE_MIN", 100)
    shard = Shard()
    for _ in range(50):
        shard.produce(*[b"x"] * 10, expires=commands.Expires(after_us=ids(*[60 * MINUTE_US] * 10)))
        (delivered,) = shard.lease(count=10)
        shard.do(commands.Ack("t", delivered.ids, np.full(10, delivered.token)))
        run_idle(shard)
    (topic,) = shard.engine.state.topics.values()
    (expiries,) = [p.times.expiries for p in topic.partitions if p.times.expiries is not None]
    assert expiries._calendar.entries <= 110


def test_a_far_moment_is_planned_once() -> None:
    """With each message that expired before it, one more entry was made for the one far away."""
    shard = Shard()
    shard.produce(b"far", expires=until(24 * 60 * MINUTE_US))
    for _ in range(500):
        span_us = shard.now_us - NOW_US + SECOND_US
        shard.produce(b"near", expires=until(span_us))
        shard.wait(2 * SECOND_US)
        run_idle(shard)
    assert shard.do(commands.Count("t")).states["dead"] == 500
    assert len(shard.engine.memory.plans._heap) <= 64


def test_what_expires_at_once_is_looked_at_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step went through all that were over and waited for their turn, to bury a few of them."""
    monkeypatch.setattr("fasti.core.delivery.expiry._LAPSED_PER_STEP", 100)
    monkeypatch.setattr(calendar, "ROWS_PER_CALL", 500)
    monkeypatch.setattr(calendar, "_CHUNK_MAX", 500)
    shard = Shard()
    (topic,) = shard.engine.state.topics.values()
    for _ in range(100):
        shard.produce(*[b"x"] * 100, expires=until(*[MINUTE_US] * 100))
    (expiries,) = [p.times.expiries for p in topic.partitions if p.times.expiries is not None]
    looked: list[int] = []
    resolve = expiries._resolve

    def counted(sequences: Any) -> Any:
        looked.append(len(sequences))
        return resolve(sequences)

    monkeypatch.setattr(expiries, "_resolve", counted)
    shard.wait(MINUTE_US)
    run_idle(shard)
    assert shard.do(commands.Count("t")).states["dead"] == 10_000
    assert max(looked) < 2_000


def test_what_is_due_and_not_read_back_from_a_run_yet_is_counted_as_ready() -> None:
    """For a moment after a start, `count` said that nothing was ready."""
    shard = Shard()
    shard.produce(b"", due_us=NOW_US + SECOND_US)
    # As after a start: the entry is in a run, and what was read back ends just before it, in the
    # middle of a slice of the calendar.
    partition = shard.engine.state.by_name["t"].partitions[0]
    partition.times.calendar.forget(partition.times.calendar.generation, 0)
    partition.times.loaded_until_us = NOW_US + SECOND_US
    shard.wait(SECOND_US)
    assert shard.do(commands.Count("t")).states["ready"] == 1
