"""Answers on their way: gathered, tried again, and what is told when they can't be sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from fasti.client.failures import Failures
from fasti.client.machines.returns import Return
from fasti.client.replies import Replies, Reply, answer_headers, asked
from fasti.client.settling import Waiter
from fasti.errors import FastiError, InvalidArgument, OutcomeUnknown, RowsFailed, Unavailable
from tests.unit.client.fakes import PATIENCE_S, eventually

Answer = dict[str, Any] | FastiError


class Run:
    """Requests in somebody's hands."""

    def __init__(self, count: int) -> None:
        self.token = 5
        self.finished = bytearray(count)
        self.started = [0] * count

    def id_list(self) -> list[int]:
        return list(range(1, len(self.finished) + 1))

    def key(self, row: int) -> None:
        return None

    def token_of(self, row: int) -> int:
        return self.token


class Session:
    """As much of a consumer's session as answers need."""

    def __init__(self) -> None:
        self.topic, self.header = "asked", {"topic": "asked"}
        self.reason_bytes_max = 40
        self.tokens_known = True
        self.failures = Failures("asked")
        self.returned: list[Return] = []
        self.done: list[int] = []
        self.lost: list[int] = []

    def finished_elsewhere(self, run: Any, row: int) -> None:
        run.finished[row] = 1
        self.done.append(row)

    def in_hand_again(self, run: Any, row: int, *, lost: bool) -> None:
        run.finished[row] = 0
        if lost:
            self.lost.append(row)

    def give_back(self, returned: Return, finished: bool = False) -> None:
        assert finished
        self.returned.append(returned)


class Broker:
    """A transport that answers by what the test has laid down, or well."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.tokens: list[list[int]] = []
        self.answers: list[Answer] = []
        self.gate = threading.Event()
        self.gate.set()
        self.before: Callable[[], None] = lambda: None

    def call(
        self, action: str, header: dict[str, Any], parts: Sequence[pa.RecordBatch]
    ) -> tuple[dict[str, Any], list[Any]]:
        assert action == "reply"
        assert header == ({"topic": "asked"} if len(parts) == 2 else {})
        self.calls.append(parts[0].column("payload").to_pylist())
        if len(parts) == 2:
            self.tokens.append(parts[1].column("token").to_pylist())
        assert self.gate.wait(PATIENCE_S)
        self.before()
        found = self.answers.pop(0) if self.answers else said("ok", len(self.calls[-1]))
        if isinstance(found, FastiError):
            raise found
        return found, []


def said(status: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"status": [[status, count]], "ids": [[7, count]], "versions": [[1, count]], **more}


class Rig:
    """Answers of one session to one broker."""

    def __init__(self) -> None:
        self.session, self.broker, self.run = Session(), Broker(), Run(10)
        self.settled = threading.Event()
        session, broker = cast(Any, self.session), cast(Any, self.broker)
        self.replies = Replies(session, broker, self.settled.set)

    def send(self, row: int, waits: bool = True, ack: bool = True) -> Waiter:
        """As `message.reply` does."""
        waiter = Waiter()
        self.run.finished[row] = int(ack)
        payload, headers = b"%d" % row, [("correlation_id", "c")]
        reply = Reply(cast(Any, self.run), row, "inbox", None, payload, headers, None, ack)
        reply.waiter = waiter if waits else None
        self.replies.send(reply)
        return waiter

    def outcome(self, waiter: Waiter) -> Any:
        found = waiter.wait(PATIENCE_S)
        assert found is not None
        return found[0]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_first_goes_at_once_and_the_rest_together(rig: Rig) -> None:
    rig.broker.gate.clear()
    first = rig.send(0)
    eventually(lambda: rig.broker.calls)
    others = [rig.send(row) for row in range(1, 5)]
    kept = rig.send(5, ack=False)
    assert rig.replies.busy
    assert [returned.segments[0][1].tolist() for returned in rig.replies.under_way()] == [
        [row] for row in range(5)
    ]
    rig.broker.gate.set()
    assert all(rig.outcome(waiter).ok for waiter in (first, *others, kept))
    assert rig.broker.calls == [[b"0"], [b"1", b"2", b"3", b"4"], [b"5"]]
    assert sorted(rig.session.done) == [0, 1, 2, 3, 4]
    assert not rig.run.finished[5], "an answer without an ack leaves the request alone"
    eventually(lambda: not rig.replies.busy)


def test_too_late_is_told_and_ends_the_request(rig: Rig) -> None:
    rig.broker.answers = [said("dead", reasons={"0": "too late"})]
    outcome = rig.outcome(rig.send(0))
    assert (outcome.status, outcome.reason) == ("dead", "too late")
    assert rig.session.done == [0]


def test_it_is_tried_again_while_the_broker_is_away(rig: Rig) -> None:
    rig.broker.answers = [Unavailable("gone"), OutcomeUnknown("maybe"), said("done")]
    # It had happened: the request is acked, by the try that had no answer.
    assert rig.outcome(rig.send(0)).ok
    assert len(rig.broker.calls) == 3
    rig.broker.answers = [said("done")]
    assert rig.outcome(rig.send(1)).status == "done"
    assert not rig.run.finished[1], "what was not answered is still in hand"
    assert rig.session.lost == [1]


def test_a_lease_that_goes_on_under_another_token(rig: Rig) -> None:
    def reconnect() -> None:
        rig.session.tokens_known = len(rig.broker.calls) > 1
        rig.run.token = 5 if len(rig.broker.calls) < 2 else 6

    rig.broker.before = reconnect
    rig.broker.answers = [said("stale_lease"), said("stale_lease")]
    assert rig.outcome(rig.send(0)).ok
    # The first while nobody knew, the second under the old token, the third under the new.
    assert rig.broker.tokens == [[5], [5], [6]]
    rig.broker.answers = [said("stale_lease")]
    assert rig.outcome(rig.send(1)).status == "stale_lease"


def test_one_that_is_refused_does_not_spoil_the_others(rig: Rig) -> None:
    rig.broker.gate.clear()
    first = rig.send(0)
    eventually(lambda: rig.broker.calls)
    others = [rig.send(1), rig.send(2)]
    bad = InvalidArgument("too large", field="payload")
    rig.broker.answers = [said("ok"), bad, bad, said("ok")]
    rig.broker.gate.set()
    assert rig.outcome(first).ok
    with pytest.raises(InvalidArgument):
        others[0].wait(PATIENCE_S)
    assert rig.outcome(others[1]).ok
    assert rig.broker.calls == [[b"0"], [b"1", b"2"], [b"1"], [b"2"]]
    assert not rig.run.finished[1]
    assert not rig.session.lost


def test_a_failure_that_nobody_waits_for_is_raised_later(rig: Rig) -> None:
    rig.broker.answers = [InvalidArgument("too large: " + "ß" * 50), said("stale_lease")]
    rig.send(0, waits=False)
    eventually(lambda: not rig.replies.busy)
    # The request goes back, with a reason that fits.
    (returned,) = rig.session.returned
    assert returned.op == "nack"
    assert len(returned.argument.encode()) <= 40
    rig.send(1, waits=False)
    eventually(lambda: not rig.replies.busy)
    assert rig.session.done == [1]
    eventually(lambda: rig.session.failures.count == 2)
    with pytest.raises(RowsFailed) as failed:
        rig.session.failures.throw()
    assert [each["status"] for each in failed.value.failures] == ["invalid_argument", "stale_lease"]


def test_what_a_request_asks_for() -> None:
    assert asked({"reply_to": "inbox", "deadline_us": "17"}) == ("inbox", 17)
    assert asked({"reply_to": "inbox"}) == ("inbox", None)
    for headers in ({}, {"reply_to": ""}, {"reply_to": "inbox", "deadline_us": "1.5"}):
        with pytest.raises(InvalidArgument):
            asked(headers)
    assert answer_headers({"correlation_id": "c"}, {"a": "b"}) == [
        ("a", "b"),
        ("correlation_id", "c"),
    ]
    assert answer_headers({}, None) == []
