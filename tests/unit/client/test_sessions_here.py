"""Sessions of a broker in this process: which of a consumer's connections counts, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fasti.broker.caller import EMBEDDED
from fasti.broker.calls.subscription import Subscription
from fasti.errors import Closed, Overloaded
from fasti.protocol.schemas import RETURNED
from fasti.testing import VirtualBroker


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as made:
        made.client().create_topic("emails")
        yield made


def opened(broker: VirtualBroker, attempt: int = 0, life: str = "mine") -> Subscription:
    descriptor: dict[str, Any] = {"topic": "emails", "consumer": "worker-1"}
    if attempt:
        descriptor |= {"life": life, "attempt": attempt}
    session = broker.service.exchange(EMBEDDED, {"version": 1, "call": "consume", **descriptor})
    assert isinstance(session, Subscription)
    return session


def beat(session: Subscription) -> dict[str, Any]:
    """Takes the name; the first word that comes."""
    session.take({"op": "credit", "count": 1}, None)
    session.take({"op": "heartbeat", "request": 1}, None)
    written = session.next()
    assert written is not None
    return written[0]


def test_an_older_connection_that_comes_late_does_not_end_the_newer_one(
    broker: VirtualBroker,
) -> None:
    newer = opened(broker, 2)
    assert beat(newer)["kind"] == "heartbeat"
    with pytest.raises(Closed):
        opened(broker, 1)
    assert beat(newer)["kind"] == "heartbeat"


def test_an_older_connection_that_came_first_gives_way(broker: VirtualBroker) -> None:
    older, newer = opened(broker, 1), opened(broker, 2)
    assert beat(newer)["kind"] == "heartbeat"
    # What it had written before it knew.
    assert beat(older)["error"]["code"] == "fenced"
    assert beat(newer)["kind"] == "heartbeat"


def test_another_client_of_the_name_takes_it_whatever_its_numbers(broker: VirtualBroker) -> None:
    for other in (opened(broker, 1, "another"), opened(broker)):
        mine = opened(broker, 7)
        assert beat(mine)["kind"] == "heartbeat"
        newest = opened(broker, 1, "a third")
        assert beat(newest)["kind"] == "heartbeat"
        told = mine.next()
        assert told is not None
        assert told[0]["error"]["code"] == "fenced"
        for session in (mine, newest, other):
            broker.service.leave(session)


def test_only_connections_that_are_open_are_remembered(broker: VirtualBroker) -> None:
    broker.service.leave(opened(broker, 2))
    older = opened(broker, 1)
    newer = opened(broker, 3)
    # The end of an older one is not that of the newest.
    broker.service.leave(older)
    with pytest.raises(Closed):
        opened(broker, 2)
    broker.service.leave(newer)
    assert not broker.service.attempts._newest


def test_a_session_that_fails_says_so(
    broker: VirtualBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that heard nothing more would wait for ever."""
    session = opened(broker)
    broker.client().producer("emails").send(b"hello").result(10)

    def join(leased: Any) -> Any:
        raise Overloaded("the inbox is full")

    monkeypatch.setattr(session._session, "join", join)
    session.take({"op": "credit", "count": 1}, None)
    told = session.next()
    assert told is not None
    assert told[0]["kind"] == "error"
    assert told[0]["request"] is None
    assert told[0]["error"]["code"] == "closed"
    assert session.next() is None


def test_what_is_asked_after_the_end_is_not_kept(broker: VirtualBroker) -> None:
    session = opened(broker)
    session.close()
    before = session._session.arrived.qsize()
    for request in range(5):
        session.take({"op": "clock", "request": request}, None)
        session.take({"op": "heartbeat", "request": request}, None)
        session.take({"op": "nothing", "request": request}, None)
    # Behind all of them.
    broker.client().topics()
    assert session._session.arrived.qsize() == before


def test_an_error_tells_whether_the_credit_was_taken(broker: VirtualBroker) -> None:
    session = opened(broker)
    columns = [pa.array([7]), pa.array([7]), pa.array([0]), pa.nulls(1, pa.int64())]
    rows = pa.RecordBatch.from_arrays(columns, schema=RETURNED)
    # What the engine refuses doesn't keep it from taking the credit.
    asked = {"op": "extend", "request": 1, "length_us": 1, "credit": 3}
    session.take(asked, rows)
    told = session.next()
    assert told is not None
    assert (told[0]["kind"], told[0]["request"], told[0]["credit"]) == ("error", 1, 3)
    # What never got there, does.
    session.take({**asked, "request": 2, "length_us": "long"}, rows)
    told = session.next()
    assert told is not None
    assert (told[0]["kind"], told[0]["request"]) == ("error", 2)
    assert "credit" not in told[0]


def test_a_session_that_is_opened_by_a_closed_client_is_not_kept(broker: VirtualBroker) -> None:
    transport = broker.transport()
    transport.close()
    before = set(broker.service._sessions)
    descriptor = {"call": "consume", "topic": "emails", "consumer": "worker-1"}
    named = {"life": "mine", "attempt": 1}
    with pytest.raises(Closed):
        transport.consume({**descriptor, **named}, lambda _, __: None, lambda _: None)
    assert set(broker.service._sessions) == before
    assert not broker.service.attempts._newest


@pytest.mark.parametrize("call", ["consume", "follow"])
@pytest.mark.parametrize("end", ["stopping", "deleted"])
def test_a_session_that_is_opened_while_all_are_told_of_an_end_is_told_too(
    broker: VirtualBroker, monkeypatch: pytest.MonkeyPatch, call: str, end: str
) -> None:
    """It would wait for ever, and a broker that stops for it."""
    service = broker.service
    broker.client().create_topic("rows", kind="log")
    fields: dict[str, dict[str, Any]] = {
        "consume": {"topic": "emails", "consumer": "worker-1"},
        "follow": {"topic": "rows", "offsets": {"0": 0}},
    }
    made = service.exchanges[call]

    def late(*given: Any) -> Any:
        session = made(*given)
        if end == "stopping":
            service.begin_stopping()
        else:
            broker.client().delete_topic(fields[call]["topic"])
        return session

    monkeypatch.setitem(service.exchanges, call, late)
    session = service.exchange(EMBEDDED, {"version": 1, "call": call, **fields[call]})
    told = session.next()
    assert told is not None
    code = told[0]["error"]["code"]
    assert code == ("closed" if end == "stopping" else "not_found")
    service.leave(session)
    service.stopping = False
