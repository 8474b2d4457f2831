"""Shares of limits: counted, by names, and of leases by credit."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from fasti.broker import shares
from fasti.broker.caller import EMBEDDED, Caller, caller_from
from fasti.broker.placement import OneShard
from fasti.broker.shares import Bound, CountedShare, LeaseShare, NameShare
from fasti.errors import Closed, Overloaded
from fasti.testing import VirtualBroker
from fasti.testing.virtual import _SETTINGS
from tests.integration.shard_rig import held_up

ANNA, BERT, CARL = (Caller(name, authenticated=True) for name in ("anna", "bert", "carl"))


def test_a_caller_is_named_by_its_token_or_its_host() -> None:
    assert caller_from("billing", "10.0.0.1:40") == Caller(
        "billing", peer="10.0.0.1:40", authenticated=True
    )
    assert caller_from("", "10.0.0.1:40").name == "10.0.0.1"
    assert caller_from("", "[::1]:40").name == "::1"
    assert caller_from("", "unix").name == "unix"
    assert not caller_from("embedded", "10.0.0.1:40").is_local
    assert EMBEDDED.is_local


def test_a_share_and_the_whole() -> None:
    share = CountedShare(Bound("things", "limits.things_max", 4, 50))
    for caller in (ANNA, BERT):
        share.take(caller)
        share.take(caller)
    with pytest.raises(Overloaded, match=r"'anna' has 2 things.*50 %.*limits.things_max"):
        share.take(ANNA)
    with pytest.raises(Overloaded, match=r"there are 4 things.*limits.things_max") as refused:
        share.take(CARL)
    assert refused.value.details["share"] == 2
    assert share.refusals() == {"anna": 1, "carl": 1}
    share.give_back(BERT)
    share.take(CARL)
    assert share.held() == {"anna": 2, "bert": 1, "carl": 1}


def test_the_local_caller_may_use_all() -> None:
    share = CountedShare(Bound("things", "limits.things_max", 4, 50))
    for _ in range(4):
        share.take(EMBEDDED)
    with pytest.raises(Overloaded):
        share.take(EMBEDDED)


def test_refusals_of_many_callers_are_bounded() -> None:
    share = CountedShare(Bound("things", "limits.things_max", 1, 100))
    share.take(ANNA)
    for number in range(1_000):
        with pytest.raises(Overloaded):
            share.take(Caller(f"c-{number}"))
    assert len(share.refusals()) <= 101
    assert sum(share.refusals().values()) == 1_000


def test_a_read_that_is_collected_where_its_share_is_locked_is_given_back() -> None:
    """Garbage is collected in any thread, wherever that is."""
    share = CountedShare(Bound("things", "limits.things_max", 4, 50))

    def reading() -> Generator[None, None, None]:
        with share.one(ANNA):
            yield

    read, collected = reading(), threading.Event()
    next(read)

    def collect() -> None:
        with share._lock:
            read.close()
        collected.set()

    threading.Thread(target=collect, daemon=True).start()
    assert collected.wait(10)
    assert share.held() == {}


def test_names_count_while_they_exist() -> None:
    there: set[str] = {"old"}
    share = NameShare(Bound("things", "limits.things_max", 4, 50), lambda: there)
    with share.making(ANNA, "old"):
        pass
    for name in ("a", "b"):
        with share.making(ANNA, name):
            there.add(name)
    with pytest.raises(Overloaded), share.making(ANNA, "c"):
        pass
    there.discard("a")
    with pytest.raises(ValueError, match="no"), share.making(ANNA, "c"):
        raise ValueError("no")
    with share.making(ANNA, "c"):
        there.add("c")
    assert share.held() == {"anna": 2}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are counted each time."""
    monkeypatch.setattr(shares, "_LOOK_US", 0)


@pytest.mark.usefixtures("looks")
def test_leases_and_credit_stay_within_the_share() -> None:
    """Whatever sessions of one caller ask for, and whatever is leased and finished meanwhile."""
    draw = random.Random(7)
    with VirtualBroker(settings=replace(_SETTINGS, leases_max=400)) as broker:
        broker.client().create_topic("t")
        shares = LeaseShare(OneShard(broker.shard))
        sessions = [shares.open(ANNA, "t", f"c-{n}") for n in range(8)]
        held = 0
        shares.held = lambda: {"anna": held}  # type: ignore[method-assign]
        broker.shard.engine.memory.leases._free_count = 0
        refusals = 0
        for _ in range(5_000):
            session = draw.choice(sessions)
            if draw.random() < 0.5:
                try:
                    session.admit(draw.choice((1, 10, 1_000_000)))
                except Overloaded:
                    refusals += 1
                    assert held >= 100
            elif draw.random() < 0.7:
                count = draw.randint(0, session.open)
                held += count
                session.leased(count)
            elif draw.random() < 0.1:
                held -= draw.randint(0, held)
            credit = sum(each.open for each in sessions)
            assert credit <= 100 + len(sessions)
            assert held + credit <= 200 + len(sessions)
        assert refusals
        for session in sessions:
            session.close()
        assert not shares._credit
        assert not shares._sessions


@pytest.mark.usefixtures("looks")
def test_a_session_is_never_left_without_credit_below_the_share() -> None:
    with VirtualBroker(settings=replace(_SETTINGS, leases_max=400)) as broker:
        broker.client().create_topic("t")
        shares = LeaseShare(OneShard(broker.shard))
        first = shares.open(ANNA, "t", "first")
        assert first.admit(1_000_000) == 100
        others = [shares.open(ANNA, "t", f"c-{n}") for n in range(300)]
        assert [each.admit(50) for each in others] == [1] * 300
        # What the first one uses up, others may have: an equal part each.
        first.leased(100)
        assert first.admit(1_000_000) == 1
        assert shares.open(BERT, "t", "b").admit(1_000_000) == 100


def test_names_of_consumers_are_bounded() -> None:
    with VirtualBroker() as broker:
        broker.client().create_topic("t")
        shares = LeaseShare(OneShard(broker.shard))
        for number in range(5_000):
            shares.open(ANNA, "t", f"c-{number}").close()
        assert len(shares._callers) <= 1_001


def test_one_caller_does_not_fill_the_inbox() -> None:
    limits = replace(_SETTINGS.limits, batch_rows_max=100)
    settings = replace(_SETTINGS, inbox_rows_max=1_000, limits=limits)
    with VirtualBroker(settings=settings) as broker:
        broker.client().create_topic("t")
        descriptor = {"version": 1, "call": "produce", "topic": "t"}
        anna = broker.service.intake(ANNA, descriptor)
        bert = broker.service.intake(BERT, descriptor)
        batch = pa.RecordBatch.from_pydict({"payload": [b"x"] * 100})
        # The topic's bindings are asked for once.
        bert.put({}, batch)
        assert bert.next_receipt() is not None
        with held_up(broker.shard):
            for _ in range(8):
                anna.put({}, batch)
            bert.put({}, batch)
            assert broker.service.shares.inbox_rows.held() == {"anna": 500, "bert": 100}
        receipts = [anna.next_receipt() for _ in range(8)]
        refused = [each["error"] for each in receipts if each is not None and "error" in each]
        assert len(refused) == 3
        assert {each["details"]["setting"] for each in refused} == {"inbox_rows_max"}
        receipt = bert.next_receipt()
        assert receipt is not None
        assert "error" not in receipt
        assert broker.service.shares.inbox_rows.held() == {}
        for intake in (anna, bert):
            intake.finish()
            intake.end()
        assert broker.service.shares.intakes.held() == {}


CONSUME = {"version": 1, "call": "consume", "topic": "t", "consumer": "c"}


def test_credit_of_a_request_that_is_refused_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a session whose requests were refused for a while would be granted nothing any more."""
    with VirtualBroker(settings=replace(_SETTINGS, leases_max=400)) as broker:
        broker.client().create_topic("t")
        session = broker.service.exchange(ANNA, CONSUME)
        submit = broker.service.submit

        def full(shard: Any, commands: Any) -> Any:
            raise Overloaded("the inbox is full")

        ack = pa.RecordBatch.from_pydict({"id": pa.array([1]), "token": pa.array([1])})
        monkeypatch.setattr(broker.service, "submit", full)
        for number in range(20):
            session.take({"op": "ack", "request": number, "credit": 50}, ack)
            header, _ = session.next() or ({}, None)
            assert header["error"]["code"] == "overloaded"
        assert not broker.service.leases._credit
        monkeypatch.setattr(broker.service, "submit", submit)
        session.take({"op": "credit", "count": 50}, None)
        assert broker.service.leases._credit == {"anna": 50}
        broker.service.leave(session)


def test_a_session_that_was_closed_meanwhile_is_granted_nothing() -> None:
    """A caller would have less for as long as the broker runs, each time that it happens."""
    with VirtualBroker() as broker:
        broker.client().create_topic("t")
        shares = LeaseShare(OneShard(broker.shard))
        session = shares.open(ANNA, "t", "c")
        session.close()
        with pytest.raises(Closed):
            session.admit(10)
        assert not shares._credit


def test_a_frame_that_comes_while_its_session_is_called_silent_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with VirtualBroker() as broker:
        broker.client().create_topic("t")
        session: Any = broker.service.exchange(ANNA, CONSUME)
        session.take({"op": "credit", "count": 0}, None)
        submit, say_heard = broker.shard.submit, session.hearing._say_heard
        said: list[str] = []
        at_the_lock, threads = threading.Event(), []

        def take() -> None:
            session.take({"op": "clock", "request": 1}, None)
            at_the_lock.set()

        def submitted(inputs: Any, engine: Any = None, lead: bool = False) -> Any:
            said.append(type(inputs[0]).__name__)
            if said == ["Unheard"]:
                threads.append(threading.Thread(target=take))
                threads[0].start()
                assert at_the_lock.wait(10)
            return submit(inputs, engine)

        def heard(finished: bool) -> None:
            at_the_lock.set()
            say_heard(finished)

        monkeypatch.setattr(broker.shard, "submit", submitted)
        monkeypatch.setattr(session.hearing, "_say_heard", heard)
        session.hearing.fall_silent(session.hearing.frames, hold_back=True)
        threads[0].join()
        assert said == ["Unheard", "Heard"]
        broker.service.leave(session)


def test_what_was_finished_since_the_last_look_is_not_held() -> None:
    """Another caller has many leases; this one finishes each message at once."""
    settings = replace(_SETTINGS, leases_max=400)
    with VirtualBroker(settings=settings) as broker:
        shares = LeaseShare(OneShard(broker.shard))
        session = shares.open(ANNA, "t", "quick")
        broker.shard.engine.memory.leases._free_count = 0
        for _ in range(10):
            assert session.admit(100) == 100
            session.leased(100)
