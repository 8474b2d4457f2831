"""Faults of the program in a threaded shard: whose request meets one is told, the others are served."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from fasti.broker.metrics.counts import Metrics
from fasti.broker.shard import Shard
from fasti.core import commands as co
from fasti.core.cron.commands import ReadSchedules
from fasti.core.idle import Idle
from fasti.core.keys import Rows
from fasti.core.kind import Kind
from fasti.core.log.commands import DescribeGroups
from fasti.core.timeline import change, turns
from fasti.core.timeline.kind import TimelineKind
from fasti.core.work import Work
from fasti.errors import Closed, InternalError, OutcomeUnknown
from fasti.storage.store import ShardStore
from tests.integration.shard_rig import (
    NOW_US,
    FakeClock,
    SharedFiles,
    cancel,
    held_up,
    int64s,
    make_topic,
    produce,
    serving,
    shown,
)

Handler = Callable[[Work, Any], Any]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def shard(clock: FakeClock) -> Iterator[Shard]:
    with serving(SharedFiles(), clock=clock) as made:
        make_topic(made)
        yield made


def submit_together(shard: Shard, *requests: Sequence[Any]) -> list[Future[list[Any]]]:
    with held_up(shard):
        return [shard.submit(request) for request in requests]


def new(payload: bytes, topic: str = "t") -> co.Produce:
    return co.Produce(topic, Rows.of([payload]), co.When(due_us=NOW_US + 10**9))


def raise_early(work: Work, command: Any) -> Any:
    raise ZeroDivisionError("before anything")


def raise_late(handler: Handler) -> Handler:
    """After something was applied."""

    def decide(work: Work, command: Any) -> Any:
        handler(work, command)
        raise ZeroDivisionError("after an event")

    return decide


def faults(shard: Shard) -> dict[tuple[str, str], int]:
    return shard.faults.counts()


def recoveries(shard: Shard) -> int:
    """As many as there were, when all of them are over: answers may leave before."""
    assert shard.call(co.Count("t"), 60).error is None
    return shard.recoveries


# Commands on kinds that don't know them


def test_a_credit_on_any_kind_may_share_a_step(shard: Shard) -> None:
    kinds = ("timeline", "priority", "log", "kv", "cron")
    for kind in kinds:
        make_topic(shard, kind, kind=kind)
    names = (*kinds, "missing")
    credits = [co.Lease(name, 1, "c", 1, group=group) for name in names for group in ("", "g")]
    acks = [co.Ack(name, int64s(*ids), int64s(*ids)) for name in names for ids in ((), (), (1,))]
    other = [co.Count("t"), ReadSchedules("cron"), DescribeGroups("log")]
    asked = [*credits, *acks, *other]
    answers = submit_together(shard, *([command] for command in asked))
    for command, answer in zip(asked, answers, strict=True):
        code = getattr(answer.result(60)[0].error, "code", "ok")
        if command.topic == "missing":
            assert code == "not_found"
        elif command.topic in ("kv", "cron") and command not in other:
            assert code == "invalid_argument"
        else:
            assert code in ("ok", "invalid_argument", "not_found")
    assert (recoveries(shard), faults(shard)) == (0, {})


# Nothing was applied


def test_a_command_that_raises_is_refused_and_the_others_are_not(
    shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    shard.engine._by_kind[co.Cancel]["timeline"] = raise_early
    bad = co.Cancel("t", co.Target(ids=int64s(1)))
    with caplog.at_level(logging.ERROR, "fasti.broker.faults"):
        first, mixed, last = submit_together(
            shard, [new(b"a")], [new(b"b"), bad, new(b"c")], [new(b"d")]
        )
        assert first.result(60)[0].all_ok
        before, refused, after = mixed.result(60)
        assert before.all_ok
        assert after.all_ok
        assert last.result(60)[0].all_ok
        for _ in range(3):
            assert shard.call(bad, 60).error.code == "internal"
    assert isinstance(refused.error, InternalError)
    assert not refused.error.retryable
    assert refused.error.details == {"command": "Cancel", "topic": "t"}
    assert sorted(shown(shard).values()) == [b"a", b"b", b"c", b"d"]
    assert recoveries(shard) == 0
    # Counted each time, logged once with the traceback.
    assert faults(shard) == {("Cancel", "kept"): 4}
    assert 'fasti_faults_total{command="Cancel",engine="kept"} 4.0' in Metrics().text(shard)
    [line] = caplog.records
    assert "Cancel on 't'" in line.getMessage()
    assert line.exc_info is not None


def test_what_a_transaction_did_before_it_raised_is_taken_back(shard: Shard) -> None:
    [message] = produce(shard, b"there", due_us=NOW_US + 10**9)
    shard.engine._by_kind[co.Update]["timeline"] = raise_early
    target = co.Target(ids=int64s(message))
    parts = [new(b"new"), co.Cancel("t", target), co.Update("t", target, Rows.of([b"x"]))]
    sent, answer = submit_together(shard, [new(b"beside")], [co.Transaction(parts)])
    assert sent.result(60)[0].all_ok
    assert answer.result(60)[0].error.code == "internal"
    assert sorted(shown(shard).values()) == [b"beside", b"there"]
    assert cancel(shard, message).all_ok
    assert recoveries(shard) == 0


def test_acks_that_can_not_be_decided_together_are_decided_alone(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(shard, b"a", b"b")
    session = shard.open_session()
    session.lease("t", "c", 2)
    delivery = session.receive(60)
    assert delivery is not None
    monkeypatch.setattr("fasti.core.engine.ack_together", raise_early)
    token = delivery.leased.token
    acks = [[co.Ack("t", int64s(each), int64s(token))] for each in delivery.leased.ids.tolist()]
    answers = submit_together(shard, *acks)
    assert all(answer.result(60)[0].all_ok for answer in answers)
    assert (recoveries(shard), faults(shard)) == (0, {("Ack", "kept"): 1})


# Something was applied


def test_only_the_request_that_raised_late_is_told_and_nothing_of_it_remains(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    [message] = produce(shard, b"there", due_us=NOW_US + 10**9)
    shard.engine._by_kind[co.Cancel]["timeline"] = raise_late(change.cancel)
    bad = [new(b"with it"), co.Cancel("t", co.Target(ids=int64s(message)))]
    before, refused, after = submit_together(shard, [new(b"a")], bad, [new(b"b")])
    with pytest.raises(InternalError, match="Cancel"):
        refused.result(60)
    # Decided by the next engine: nobody else hears of it.
    assert before.result(60)[0].all_ok
    assert after.result(60)[0].all_ok
    assert sorted(shown(shard).values()) == [b"a", b"b", b"there"]
    assert (recoveries(shard), faults(shard)) == (1, {("Cancel", "dropped"): 1})


def test_who_waits_is_told_that_the_session_is_lost(shard: Shard) -> None:
    session = shard.open_session()
    session.lease("t", "c", 2)
    shard.engine._by_kind[co.Cancel]["timeline"] = raise_late(lambda work, _: touch(work))
    refused, lease = submit_together(
        shard,
        [co.Cancel("t", co.Target(ids=int64s(1)))],
        [co.Lease("t", session.number, "c", 1)],
    )
    with pytest.raises(InternalError):
        refused.result(60)
    with pytest.raises(OutcomeUnknown):
        lease.result(60)
    with pytest.raises(Closed):
        session.receive(60)


def touch(work: Work) -> None:
    work.touched = True


def test_a_command_that_made_the_shard_recover_twice_is_refused_at_the_door(
    shard: Shard, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        TimelineKind, "handlers", with_handler(co.Cancel, raise_late(change.cancel))
    )
    ids = [produce(shard, b"x", due_us=NOW_US + 10**9)[0]]
    shard.engine._by_kind[co.Cancel]["timeline"] = raise_late(change.cancel)
    for _ in range(8):
        with pytest.raises(InternalError):
            cancel(shard, *ids)
    assert recoveries(shard) == 2
    # Other commands are not refused; and after a while it may be tried again.
    assert produce(shard, b"y")
    clock.advance(shard, 1_000_001)
    for times, pause_us in ((3, 2_000_001), (4, 4_000_001)):
        with pytest.raises(InternalError):
            cancel(shard, *ids)
        with pytest.raises(InternalError, match="made the broker recover"):
            cancel(shard, *ids)
        assert recoveries(shard) == times
        clock.advance(shard, pause_us)
    monkeypatch.undo()
    shard.engine._by_kind[co.Cancel]["timeline"] = change.cancel
    assert cancel(shard, *ids).all_ok


def with_handler(command: type, handler: Handler) -> Callable[[Any], dict[type, Handler]]:
    handlers = TimelineKind.handlers
    return lambda kind: {**handlers(kind), command: handler}


def test_what_is_to_happen_whole_is_still_so_when_it_is_decided_again(shard: Shard) -> None:
    [taken] = produce(shard, b"there", due_us=NOW_US + 10**9, key=["taken"])
    rows = Rows.of([b"new", b"twice"], key=["new", "taken"])
    keys = rows.keys(shard.store.seed)
    whole = co.Produce("t", rows, co.When(due_us=NOW_US + 10**9), keys=keys, atomic=True)
    shard.engine._by_kind[co.Cancel]["timeline"] = raise_late(change.cancel)
    bad = [co.Cancel("t", co.Target(ids=int64s(taken)))]
    refused, answer = submit_together(shard, bad, [whole])
    with pytest.raises(InternalError):
        refused.result(60)
    assert not answer.result(60)[0].all_ok
    assert list(shown(shard).values()) == [b"there"]


# No command was at fault


def test_a_topic_that_can_not_be_served_is_closed_to_consumers_only(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = turns.serve_line

    def fail(work: Work, topic: Any, line: Any, budget: int) -> tuple[int, bool]:
        if topic.name == "bad":
            raise ZeroDivisionError("handing out")
        return serve(work, topic, line, budget)

    make_topic(shard, "bad")
    monkeypatch.setattr(turns, "serve_line", fail)
    assert shard.call(co.Produce("bad", Rows.of([b"x"])), 60).all_ok
    told = []
    for _ in range(6):
        session = shard.open_session()
        try:
            session.lease("bad", "c", 1)
            with pytest.raises(Closed):
                session.receive(60)
        except (OutcomeUnknown, InternalError) as error:
            told.append(error.code)
    # A consumer that comes again and again has its answer: it is not to come again.
    assert recoveries(shard) == 2
    assert told[-4:] == ["internal"] * 4
    assert faults(shard) == {("serve", "dropped"): 2}
    good = shard.open_session()
    produce(shard, b"served")
    good.lease("t", "c", 1)
    assert good.receive(60) is not None
    assert shard.call(co.Produce("bad", Rows.of([b"y"])), 60).all_ok


@pytest.mark.parametrize(
    ("holder", "method"),
    [
        ("fasti.core.engine.verbs.expire", None),
        ("fasti.core.engine.Engine.tidy", None),
        ("fasti.core.engine.Slices.ask", None),
        (Idle, "look"),
        (Kind, "before"),
    ],
)
def test_a_phase_that_fails_once_costs_nobody_an_answer(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, holder: Any, method: str | None
) -> None:
    failed = threading.Event()

    def fail_once(*arguments: Any) -> bool:
        if failed.is_set():
            return False
        failed.set()
        raise ZeroDivisionError("a phase")

    shard.call(co.CreateTopic("idle", co.TopicSettings(idle_age_us=10**9)), 60)
    if holder is Kind:
        monkeypatch.setattr(TimelineKind, "before", fail_once, raising=False)
        shard.engine._before = [shard.engine.kind("timeline")]
    elif method is None:
        if holder.endswith("expire"):
            shard.engine.memory.leases.expiry_bound = 0
        if holder.endswith("ask"):
            shard.engine.slices.agenda.first_us = 0
        monkeypatch.setattr(holder, fail_once)
    else:
        monkeypatch.setattr(holder, method, fail_once)
    answers = submit_together(shard, [new(b"a")], [co.Count("t")], [new(b"b")])
    assert all(answer.result(60)[0].error is None for answer in answers)
    assert failed.is_set()
    assert sorted(shown(shard).values()) == [b"a", b"b"]
    assert (recoveries(shard), faults(shard)) == (1, {("step", "dropped"): 1})


def test_what_can_not_be_written_is_found_by_deciding_requests_alone(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = ShardStore.encode

    def fail(store: ShardStore, frames: Any) -> Any:
        contents = [
            f.rows.batch.column("payload").to_pylist() for f in frames if f.rows is not None
        ]
        if any(b"poison" in payloads for payloads in contents):
            raise ZeroDivisionError("encoding")
        return encode(store, frames)

    monkeypatch.setattr(ShardStore, "encode", fail)
    good, bad, other = submit_together(shard, [new(b"a")], [new(b"poison")], [new(b"b")])
    with pytest.raises(InternalError, match="encoding"):
        bad.result(60)
    assert good.result(60)[0].all_ok
    assert other.result(60)[0].all_ok
    assert sorted(shown(shard).values()) == [b"a", b"b"]
    assert recoveries(shard) == 2


def test_who_could_not_be_answered_is_told_unknown_and_the_shard_goes_on(shard: Shard) -> None:
    durable = shard.feed.durable

    def fail(frames: Any) -> None:
        shard.feed.durable = durable  # type: ignore[method-assign]
        raise ZeroDivisionError("telling")

    shard.feed.durable = fail  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        produce(shard, b"durable all the same")
    assert list(shown(shard).values()) == [b"durable all the same"]
    assert recoveries(shard) == 1


def test_a_request_in_step_after_step_that_fails_is_answered_in_the_end(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fasti.core.engine.Engine.tidy", lambda engine: 1 / 0)
    # Loading an engine tidies too: only steps are to fail.
    monkeypatch.setattr("fasti.core.engine.Engine.replay", replay_untidily)
    answers = submit_together(shard, [new(b"a")], [new(b"b")])
    for answer in answers:
        with pytest.raises(InternalError):
            answer.result(60)
    monkeypatch.undo()
    assert shown(shard) == {}


def replay_untidily(engine: Any, frame: int, events: Sequence[Any]) -> None:
    for event in events:
        engine.state.apply(event, frame)
    engine.state.next_frame = frame + 1
