"""The protocol from outside: a consumer's session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import (
    Client,
    Refused,
    returned,
    rows,
    statuses,
)

MakeTopic = Callable[..., str]
HOUR_US = 3_600_000_000
LEASED = {
    "id": pa.int64(),
    "due_us": pa.int64(),
    "version": pa.int64(),
    "attempts": pa.int32(),
    "priority": pa.int32(),
    "last_reason": pa.string(),
    "expires_us": pa.int64(),
    "created_us": pa.int64(),
    "key": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "content_type": pa.string(),
    "subject": pa.string(),
    "payload": pa.binary(),
}


def ready(client: Client, topic: str, count: int, **columns: Any) -> list[int]:
    """Messages that are due now; their ids."""
    payloads = [b"%d" % n for n in range(count)]
    (outcomes,) = client.send(topic, rows(payload=payloads, **columns))
    assert statuses(outcomes) == ["ok"] * count
    return [outcome.id for outcome in outcomes]


def counts(client: Client, topic: str) -> dict[str, int]:
    return client.call("count", {"topic": topic})["counts"]


def ids_of(messages: list[dict[str, Any]]) -> list[int]:
    return [message["id"] for message in messages]


# Credit


def test_nothing_comes_without_credit(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ready(client, topic, 10)
    session = client.consume(topic, "worker")
    assert session.pending() == []
    assert counts(client, topic)["leased"] == 0
    assert session.finish() == []


def test_never_more_comes_than_credit(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    for partition in range(3):
        client.send(topic, rows(payload=[b"x"] * 40), metadata={"partition": partition})
    session = client.consume(topic, "worker")
    got = session.take(10)
    assert session.pending() == []
    assert counts(client, topic)["leased"] == 10
    session.credit(3)
    session.credit(4)
    got += session.leased(7)
    # An ack is not credit.
    assert statuses(session.use("ack", ids_of(got))) == ["ok"] * 17
    assert session.pending() == []
    session.credit(1000)
    got += session.leased(103)
    assert len(set(ids_of(got))) == 120
    assert counts(client, topic)["leased"] == 103
    assert session.finish() == []


def test_credit_waits_for_what_is_to_come(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    session = client.consume(topic, "worker")
    session.credit(3)
    assert session.pending() == []
    ids = ready(client, topic, 2)
    assert ids_of(session.leased(2)) == ids
    ids = ready(client, topic, 2)
    assert ids_of(session.leased(1)) == ids[:1]
    assert session.pending() == []
    session.finish()


def test_credit_can_be_withdrawn(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    session = client.consume(topic, "worker")
    first = ready(client, topic, 1)
    session.credit(10)
    assert ids_of(session.leased(1)) == first
    assert session.ask("withdraw")["kind"] == "withdrawn"
    left = ready(client, topic, 3)
    assert session.pending() == []
    # The name and the leases stay: nothing comes again, and what came can be finished.
    session.credit(2)
    assert ids_of(session.leased(2)) == left[:2]
    assert statuses(session.use("ack", first)) == ["ok"]
    with pytest.raises(Refused, match="invalid_argument"):
        session.ask("withdraw", count=3)
    session.finish()


def test_credit_is_shared_between_sessions(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    sessions = [client.consume(topic, f"worker-{n}") for n in range(4)]
    for session in sessions:
        session.credit(5)
        session.pending()
    ids = ready(client, topic, 20)
    got = [id_ for session in sessions for id_ in ids_of(session.leased(5))]
    assert sorted(got) == ids
    for session in sessions:
        session.finish()


@pytest.mark.parametrize("count", [-1, 1.5, "3", None, True, 1 << 63, -(1 << 63)])
def test_credit_that_can_not_be_is_refused(
    client: Client, make_topic: MakeTopic, count: Any
) -> None:
    topic = make_topic()
    ready(client, topic, 5)
    session = client.consume(topic, "worker")
    with pytest.raises(Refused) as info:
        session.ask("credit", count=count)
    assert info.value.code == "invalid_argument"
    assert session.pending() == []
    assert counts(client, topic)["leased"] == 0
    session.finish()


def test_credit_may_go_with_other_requests(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = ready(client, topic, 6)
    session = client.consume(topic, "worker")
    assert session.ask("heartbeat", credit=2)["held"] == 0
    got = session.leased(2)
    assert statuses(session.use("ack", ids_of(got), credit=3)) == ["ok", "ok"]
    assert len(session.leased(3)) == 3
    for wrong in (-1, 1 << 21, "1"):
        with pytest.raises(Refused) as info:
            session.use("ack", ids[2:5], credit=wrong)
        assert info.value.code == "invalid_argument"
    assert session.pending() == []
    assert statuses(session.use("ack", ids[2:5])) == ["ok"] * 3, "what was refused was not done"
    session.finish()


# What comes


def test_the_columns_of_leased_messages(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(lease_us=60_000_000)
    columns = {"key": ["k", None], "headers": [[("h", "1")], None], "content_type": ["x/y", None]}
    ids = ready(client, topic, 2, **columns)
    session = client.consume(topic, "worker")
    first, second = session.take(2)
    assert session.schema is not None
    names, types = session.schema.names, session.schema.types
    assert dict(zip(names, types, strict=True)) == LEASED
    assert [first["id"], second["id"]] == ids
    assert (first["payload"], first["key"], first["content_type"]) == (b"0", "k", "x/y")
    assert dict(first["headers"]) == {"h": "1"}
    assert (second["payload"], second["key"], second["content_type"]) == (b"1", None, None)
    assert (first["version"], first["attempts"]) == (1, 1)
    assert first["due_us"] == first["created_us"] > 1_700_000_000_000_000
    assert first["token"] > 0
    session.finish()


def test_messages_come_in_the_order_of_their_due_times(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    due_us = [50, 10, 40, 10, 30, 20]
    ids = ready(client, topic, 6, due_us=due_us)
    session = client.consume(topic, "worker")
    got = session.take(6)
    assert ids_of(got) == [ids[n] for n in (1, 3, 5, 4, 2, 0)]
    session.finish()


def test_without_lookahead_nothing_comes_before_it_is_due(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(lookahead_us=0)
    session = client.consume(topic, "worker")
    session.credit(20)
    delays = [(n * 7919) % 200_000 for n in range(20)]
    client.send(topic, rows(payload=[b""] * 20, delay_us=delays))
    seen = 0
    while seen < 20:
        chunk = session.expect(lambda chunk: chunk.kind == "leased")
        assert all(row["due_us"] <= chunk.metadata["now_us"] for row in chunk.rows)
        seen += len(chunk.rows)
    session.finish()


# Using leases


def test_acks_are_answered_with_outcomes(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ready(client, topic, 4)
    session = client.consume(topic, "worker")
    got = session.take(4)
    ids, token = ids_of(got), got[0]["token"]
    now_us = session.ask("clock")["now_us"]
    part = rows(
        id=[*ids[:2], 77, ids[2]],
        token=[token, token, token, token + 1],
        started_us=[now_us, None, None, None],
        due_us=[None] * 4,
    )
    answer = session.ask("ack", part)
    assert answer["kind"] == "outcomes"
    assert statuses(answer) == ["ok", "ok", "not_found", "stale_lease"]
    assert statuses(session.use("ack", ids)) == ["done", "done", "ok", "ok"]
    assert counts(client, topic)["done"] == 4
    session.finish()


def test_requests_without_waiting(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ready(client, topic, 50)
    session = client.consume(topic, "worker")
    got = session.take(50)
    numbers = [1 << 40, 7, 0, *range(100, 147)]
    for number, message in zip(numbers, got, strict=True):
        part = returned([message["id"]], [message["token"]], due_us=[None])
        session.write({"op": "ack", "request": number}, part)
    # What was written before the end is still answered.
    answers = session.finish()
    assert sorted(answer.metadata["request"] for answer in answers) == sorted(numbers)
    assert all(statuses(answer.metadata) == ["ok"] for answer in answers)
    assert counts(client, topic)["done"] == 50


def test_release_gives_back_without_an_attempt(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ready(client, topic, 4)
    session = client.consume(topic, "worker")
    got = session.take(4)
    ids = ids_of(got)
    now_us = session.ask("clock")["now_us"]
    due_us = [now_us + HOUR_US, now_us + 2 * HOUR_US]
    assert statuses(session.use("release", ids[:2], due_us=due_us)) == ["ok", "ok"]
    assert statuses(session.use("release", ids[2:3], delay_us=HOUR_US)) == ["ok"]
    found = {row["id"]: row for row in client.list(topic, state="scheduled")}
    assert [found[id_]["due_us"] for id_ in ids[:2]] == due_us
    assert found[ids[2]]["due_us"] >= now_us + HOUR_US
    assert {row["attempts"] for row in found.values()} == {0}
    # Unopened: with its own due time, and it comes again.
    assert statuses(session.use("release", ids[3:], due_us=[got[3]["due_us"]])) == ["ok"]
    (again,) = session.take(1)
    assert (again["id"], again["attempts"], again["due_us"]) == (ids[3], 1, got[3]["due_us"])
    session.finish()


def test_nack_leads_to_another_try_and_to_the_end(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(max_attempts=2, retry={"base_us": 1000, "factor": 1.0, "jitter": 0.0})
    ready(client, topic, 1, key=["k"])
    session = client.consume(topic, "worker")
    (first,) = session.take(1)
    assert statuses(session.use("nack", [first["id"]], reason="no luck")) == ["ok"]
    (second,) = session.take(1)
    assert (second["id"], second["attempts"]) == (first["id"], 2)
    assert second["due_us"] > first["due_us"]
    assert second["token"] != first["token"]
    (outcome,) = session.use("nack", [first["id"]], reason="no luck again")
    assert outcome.status == "ok"
    (row,) = client.list(topic, state="dead")
    assert (row["id"], row["reason"], row["attempts"]) == (first["id"], "no luck again", 2)
    session.finish()


def test_reject_is_the_end(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = ready(client, topic, 2)
    session = client.consume(topic, "worker")
    session.take(2)
    assert statuses(session.use("reject", ids, reason="nonsense")) == ["ok", "ok"]
    assert {row["reason"] for row in client.list(topic, state="dead")} == {"nonsense"}
    assert statuses(session.use("ack", ids)) == ["dead", "dead"]
    session.finish()


def test_extend_and_heartbeat_renew_leases(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(lease_us=60_000_000)
    ids = ready(client, topic, 3)
    session = client.consume(topic, "worker")
    session.take(3)

    def until() -> list[int]:
        found = client.outcomes("cancel", {"topic": topic}, rows(id=ids))
        assert statuses(found) == ["leased"] * 3
        return [outcome.at_us or 0 for outcome in found]

    before = until()
    assert statuses(session.use("extend", ids[:1], length_us=600_000_000)) == ["ok"]
    extended = until()
    assert extended[0] >= before[0] + 500_000_000
    # The moment is worked out from two clocks at each asking: give or take what may lie between
    # two looks at them.
    near_us = 1_000_000
    assert all(abs(a - b) < near_us for a, b in zip(extended[1:], before[1:], strict=True))
    # Each heartbeat renews from its own moment: sooner or later the end lies clearly behind.
    renewed = before
    give_up_at = time.monotonic() + 30
    while renewed[1] < before[1] + 100_000:
        assert time.monotonic() < give_up_at, "a heartbeat renews nothing"
        answer = session.ask("heartbeat")
        assert (answer["kind"], answer["held"]) == ("heartbeat", 3)
        renewed = until()
    assert renewed[0] > extended[0] - near_us, "a heartbeat shortens nothing"
    assert statuses(session.use("ack", ids)) == ["ok"] * 3
    assert session.ask("heartbeat")["held"] == 0
    session.finish()


def test_the_clock_is_told(client: Client, make_topic: MakeTopic) -> None:
    session = client.consume(make_topic(), "worker")
    before_us = client.call("clock")["now_us"]
    answer = session.ask("clock")
    assert answer["kind"] == "clock"
    assert before_us <= answer["now_us"] <= client.call("clock")["now_us"]
    session.finish()


def test_credit_of_nothing_takes_the_name(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = ready(client, topic, 2)
    before = client.consume(topic, "worker")
    assert ids_of(before.take(1)) == ids[:1]
    session = client.consume(topic, "worker")
    session.credit(0)
    # What it had comes again, and nothing more.
    assert ids_of(session.leased(1)) == ids[:1]
    assert session.ask("heartbeat")["held"] == 1
    assert session.pending() == []
    session.finish()


def test_what_nobody_can_have_opened_is_no_attempt(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(lease_us=2_000_000)
    ids = ready(client, topic, 1)
    silent, living = client.consume(topic, "silent"), client.consume(topic, "living")
    silent.take(1)
    (again,) = living.take(1)
    assert (again["id"], again["attempts"]) == (ids[0], 1)
    assert again["last_reason"] == "not opened: its consumer fell silent"
    assert statuses(living.use("ack", ids)) == ["ok"]
    silent.finish()
    living.finish()


def test_an_expired_lease_is_stale(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(lease_us=2_000_000)
    ids = ready(client, topic, 1)
    slow, quick = client.consume(topic, "slow"), client.consume(topic, "quick")
    slow.take(1)
    # It shows that it is there, so the attempt counts.
    slow.ask("clock")
    (again,) = quick.take(1)
    assert statuses(quick.use("extend", ids, length_us=60_000_000)) == ["ok"]
    assert (again["id"], again["attempts"]) == (ids[0], 2)
    assert statuses(slow.use("ack", ids)) == ["stale_lease"]
    assert statuses(slow.use("extend", ids, length_us=5_000_000)) == ["stale_lease"]
    assert statuses(quick.use("ack", ids)) == ["ok"]
    slow.finish()
    quick.finish()


# Names


def test_a_consumer_that_comes_back_gets_its_leases(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ready(client, topic, 3)
    first = client.consume(topic, "worker")
    got = first.take(3)
    # The name is taken with the first credit.
    second = client.consume(topic, "worker")
    second.credit(2)
    again = second.leased(3)
    assert sorted(ids_of(again)) == sorted(ids_of(got))
    assert {m["token"] for m in again}.isdisjoint(m["token"] for m in got)
    assert {m["attempts"] for m in again} == {1}
    assert {m["payload"] for m in again} == {m["payload"] for m in got}
    assert second.pending() == []
    error = first.ended()
    assert error.code == "fenced"
    assert error.retryable is False
    old = returned(ids_of(got), [m["token"] for m in got])
    assert statuses(client.call("ack", {"topic": topic}, old)) == ["stale_lease"] * 3
    assert statuses(second.use("ack", ids_of(got))) == ["ok"] * 3
    # Leases that came back used no credit.
    ready(client, topic, 3)
    assert len(second.leased(2)) == 2
    assert second.pending() == []
    second.finish()


def test_the_credit_of_a_fenced_session_is_gone(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    first = client.consume(topic, "worker")
    first.credit(10)
    first.pending()
    second = client.consume(topic, "worker")
    second.credit(1)
    assert second.pending() == []
    assert first.ended().code == "fenced"
    ready(client, topic, 4)
    assert len(second.leased(1)) == 1
    assert second.pending() == []
    assert counts(client, topic)["leased"] == 1
    second.finish()


def test_an_older_attempt_that_comes_late_is_refused(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    newer = client.consume(topic, "worker", life="mine", attempt=2)
    newer.credit(1)
    newer.pending()
    with pytest.raises(Refused) as refused:
        client.consume(topic, "worker", life="mine", attempt=1).pending()
    assert refused.value.code == "closed"
    # Another client's numbers are its own.
    newer.pending()
    other = client.consume(topic, "worker", life="another", attempt=1)
    other.credit(1)
    other.pending()
    assert newer.ended().code == "fenced"
    other.finish()


def test_an_error_tells_of_the_credit_that_was_taken(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    session = client.consume(topic, "worker")
    rows = returned([7], [7], due_us=[None])
    session.write({"op": "extend", "request": 1, "length_us": 1, "credit": 3}, rows)
    taken = session.expect(lambda chunk: chunk.kind == "error").metadata
    assert (taken["request"], taken["credit"]) == (1, 3)
    session.write({"op": "extend", "request": 2, "length_us": "long", "credit": 3}, rows)
    refused = session.expect(lambda chunk: chunk.kind == "error").metadata
    assert (refused["request"], refused.get("credit")) == (2, None)
    ready(client, topic, 5)
    assert len(session.leased(3)) == 3
    assert session.pending() == []
    session.finish()


def test_a_fenced_session_does_not_take_its_name_back(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    first = client.consume(topic, "worker")
    first.credit(1)
    # Answered, so it is open: the next one is the newer for the broker too.
    first.pending()
    second = client.consume(topic, "worker")
    second.credit(1)
    second.pending()
    first.expect(lambda chunk: chunk.kind == "error")
    # One that doesn't listen goes on asking.
    first.credit(5)
    with suppress(Refused, AssertionError):
        first.finish()
    ready(client, topic, 3)
    assert len(second.leased(1)) == 1
    assert second.pending() == []
    assert second.finish() == []


def test_a_name_is_the_topic_s(client: Client, make_topic: MakeTopic) -> None:
    topics = [make_topic(), make_topic()]
    sessions = [client.consume(topic, "worker") for topic in topics]
    for topic, session in zip(topics, sessions, strict=True):
        ids = ready(client, topic, 1)
        assert ids_of(session.take(1)) == ids
        assert statuses(session.use("ack", ids)) == ["ok"]
        assert session.finish() == []


def test_a_cancelled_call_leaves_its_leases(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = ready(client, topic, 2)
    first = client.consume(topic, "worker")
    first.take(2)
    first.cancel()
    assert counts(client, topic)["leased"] == 2
    second = client.consume(topic, "worker")
    second.credit(1)
    assert sorted(ids_of(second.leased(2))) == ids
    assert statuses(second.use("ack", ids)) == ["ok", "ok"]
    second.finish()


# Before it is due


def test_lookahead_sends_ahead_and_there_is_no_recall(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(lookahead_us=60_000_000, lease_us=30_000_000)
    session = client.consume(topic, "worker")
    session.credit(10)
    batch = rows(payload=[b"near", b"far"], key=["near", "far"], delay_us=[50_000_000, HOUR_US])
    client.send(topic, batch)
    (message,) = session.leased(1)
    assert message["payload"] == b"near"
    now_us = session.ask("clock")["now_us"]
    assert message["due_us"] > now_us, "it came ahead"
    (outcome,) = client.outcomes("cancel", {"topic": topic}, rows(key=["near"]))
    assert (outcome.status, outcome.by) == ("leased", "worker")
    # Not from now. The two ends come from two clocks, so they may differ by a little.
    assert (outcome.at_us or 0) > message["due_us"] + 25_000_000, "the lease runs from due"
    target = rows(key=["near"], delay_us=[HOUR_US])
    assert statuses(client.call("move", {"topic": topic}, target)) == ["leased"]
    assert session.pending() == []
    # Given back unopened, it may be changed again.
    due_us = [message["due_us"]]
    session.finish()
    part = returned([message["id"]], [message["token"]], due_us=due_us)
    assert statuses(client.call("release", {"topic": topic}, part)) == ["ok"]
    (row,) = client.get(topic, rows(key=["near"]))
    assert (row["attempts"], row["due_us"], row["state"]) == (0, due_us[0], "scheduled")
    assert statuses(client.call("cancel", {"topic": topic}, rows(key=["near"]))) == ["ok"]


# Ends


def test_the_end_takes_back_credit_and_leaves_leases(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ready(client, topic, 2)
    session = client.consume(topic, "worker")
    session.take(2)
    session.credit(10)
    assert session.finish() == []
    ready(client, topic, 3)
    found = counts(client, topic)
    assert (found["leased"], found["ready"]) == (2, 3)


def test_a_topic_that_goes_away_ends_its_sessions(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    session, idle = client.consume(topic, "worker"), client.consume(topic, "idle")
    session.credit(5)
    session.pending()
    idle.pending()
    client.call("delete_topic", {"topic": topic})
    assert session.ended().code == "not_found"
    assert idle.ended().code == "not_found"


def test_a_broker_that_stops_says_so(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, settings={"segment_size": "1MiB"}) as broker,
        Client(f"{broker.host}:{broker.port}") as client,
    ):
        client.call("create_topic", {"topic": "t"})
        ids = ready(client, "t", 3)
        session, idle = client.consume("t", "worker"), client.consume("t", "idle")
        got = session.take(2)
        assert statuses(session.use("ack", ids_of(got[:1]))) == ["ok"]
        idle.pending()
        batch = rows(payload=[b"x"])
        stream = client.produce(batch.schema, topic="t")
        assert statuses(stream.ask(batch)) == ["ok"]
        ended: list[int] = []
        stopping = threading.Thread(target=lambda: ended.append(broker.stop()))
        stopping.start()
        for told in (session, idle):
            assert told.ended().code == "closed"
        stream.end()
        stopping.join(30)
        assert ended == [0]
        broker.start()
        # The lease is still there, and so is everything that was answered.
        found = counts(client, "t")
        assert (found["done"], found["leased"], found["ready"]) == (1, 1, 2)
        assert client.get("t", rows(id=ids[:1]))[0]["status"] == "done"
        back = returned([got[1]["id"]], [got[1]["token"]])
        assert statuses(client.call("ack", {"topic": "t"}, back)) == ["ok"]


# What is refused


@pytest.mark.parametrize(
    ("metadata", "batch"),
    [
        ({"op": "levitate"}, None),
        ({}, None),
        ({"op": 7}, None),
        ({"op": "credit"}, None),
        ({"op": "credit", "count": 1, "colour": 1}, None),
        ({"op": "ack"}, None),
        ({"op": "ack", "reason": "x"}, returned([1], [1], due_us=[None])),
        ({"op": "nack", "reason": 7}, returned([1], [1], due_us=[None])),
        ({"op": "nack", "reason": "x" * 1025}, returned([1], [1], due_us=[None])),
        ({"op": "release", "delay_us": -1}, returned([1], [1], due_us=[None])),
        ({"op": "release", "delay_us": 1 << 63}, returned([1], [1], due_us=[None])),
        ({"op": "release"}, rows(id=[1, 2], token=[1, 1], started_us=[0, 0], due_us=[5, None])),
        ({"op": "release"}, returned([1], [1], due_us=[(1 << 63) - 1])),
        ({"op": "extend"}, returned([1], [1], due_us=[None])),
        ({"op": "extend", "length_us": 0}, returned([1], [1], due_us=[None])),
        ({"op": "extend", "length_us": 1 << 62}, returned([1], [1], due_us=[None])),
        ({"op": "ack"}, rows(id=[None], token=[1], started_us=[None], due_us=[None])),
        ({"op": "ack"}, rows(id=[1], token=[None], started_us=[None], due_us=[None])),
    ],
)
def test_a_request_that_can_not_be_is_answered_with_an_error(
    client: Client, make_topic: MakeTopic, metadata: dict[str, Any], batch: Any
) -> None:
    topic = make_topic()
    ids = ready(client, topic, 1)
    session = client.consume(topic, "worker")
    session.take(1)
    session.write({**metadata, "request": 4711}, batch)
    answer = session.expect(lambda chunk: chunk.metadata.get("request") == 4711).metadata
    assert answer["kind"] == "error"
    assert answer["error"]["code"] == "invalid_argument"
    # The session goes on.
    assert statuses(session.use("ack", ids)) == ["ok"]
    assert session.finish() == []


@pytest.mark.parametrize(
    "raw", [b"{", b"\xff\xfe", b"[]", b"null", '{"op": "clock"}'.encode("utf-16")]
)
def test_metadata_that_can_not_be_read_ends_the_stream(
    client: Client, make_topic: MakeTopic, raw: bytes
) -> None:
    topic = make_topic()
    session = client.consume(topic, "worker")
    session.pending()
    session.write(raw, returned([1], [1], due_us=[None]))
    with pytest.raises(Refused) as info:
        session.pending()
    assert info.value.code == "invalid_argument"
    session.join()


@pytest.mark.parametrize("metadata", [{}, {"op": "levitate"}, {"op": "credit", "count": -1}])
def test_an_error_that_answers_no_request_ends_the_session(
    client: Client, make_topic: MakeTopic, metadata: dict[str, Any]
) -> None:
    topic = make_topic()
    ready(client, topic, 1)
    session = client.consume(topic, "worker")
    session.write(metadata)
    assert session.ended().code == "invalid_argument"
    assert counts(client, topic)["leased"] == 0


@pytest.mark.parametrize(
    "batch",
    [
        rows(id=[1]),
        rows(token=[1]),
        rows(id=[1], token=[1], version=[1]),
        pa.record_batch({"id": ["1"], "token": ["1"]}),
        pa.record_batch({"id": pa.array([1], pa.int32()), "token": pa.array([1], pa.int32())}),
    ],
)
def test_rows_of_another_schema_are_refused(
    client: Client, make_topic: MakeTopic, batch: pa.RecordBatch
) -> None:
    session = client.consume(make_topic(), "worker", schema=batch.schema)
    with pytest.raises(Refused) as info:
        session.ask("ack", batch)
    assert info.value.code == "invalid_argument"
    assert session.finish() == []


@pytest.mark.parametrize("consumer", ["", "c" * 256, 7, None])
def test_a_consumer_needs_a_name(client: Client, make_topic: MakeTopic, consumer: Any) -> None:
    topic = make_topic()
    with pytest.raises(Refused) as info:
        client.consume(topic, consumer).take(1)
    assert info.value.code == "invalid_argument"
