"""A consumer without a prefetch: what it asks for, and what it gives back unopened."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fasti.client.consumer import Consumer
from fasti.client.machines.credit import LEAP
from fasti.client.message import Message
from fasti.errors import InvalidArgument, RowsFailed
from fasti.model import TopicSettings
from fasti.protocol.problems import error_to_json
from tests.unit.client.fakes import FakeStream, FakeTransport, eventually
from tests.unit.client.test_consumer import rows_of

NOW_US = 1_000_000


@pytest.fixture
def transport() -> FakeTransport:
    made = FakeTransport()
    made.on_open = FakeStream.accept_all
    return made


@pytest.fixture
def consumer(transport: FakeTransport) -> Iterator[Consumer]:
    with Consumer(transport, "emails", name="worker-1", timeout="60s") as made:
        yield made


def opened(transport: FakeTransport) -> FakeStream:
    stream = transport.stream()
    eventually(lambda: stream.of("heartbeat"))
    return stream


def credited(stream: FakeStream) -> int:
    headers = [header for header, _ in list(stream.sent)]
    return sum(header.get("count", 0) + header.get("credit", 0) for header in headers)


def test_it_asks_for_one_until_it_is_known_to_be_quick(
    transport: FakeTransport, consumer: Consumer
) -> None:
    messages = iter(consumer)
    consumer.session.start()
    stream = opened(transport)
    eventually(lambda: credited(stream) == 1)
    stream.lease(1, [1], [NOW_US])
    next(messages).ack()
    eventually(lambda: credited(stream) >= 2)
    assert consumer.session.machine.credit.window.size <= LEAP


def test_what_nobody_opens_goes_back_and_no_more_is_asked_for(
    transport: FakeTransport, consumer: Consumer
) -> None:
    session = consumer.session
    session.machine.credit.window.size = 10  # As after a while of quick messages.
    messages = iter(consumer)
    session.start()
    stream = opened(transport)
    eventually(lambda: credited(stream) == 10)
    stream.lease(1, [1, 2, 3, 4], [NOW_US] * 4)
    first = next(messages)
    # It works on the first for long; the others it never began.
    rows = rows_of(stream, "release", 3)
    assert [(row["id"], row["started_us"]) for row in rows] == [(2, 0), (3, 0), (4, 0)]
    eventually(lambda: stream.of("withdraw"))
    ((header, _),) = stream.of("withdraw")
    # What came before the credit was taken back goes the same way.
    stream.lease(2, [5], [NOW_US])
    stream.arrived({"kind": "withdrawn", "request": header["request"], "now_us": NOW_US}, None)
    assert [row["id"] for row in rows_of(stream, "release", 4)][3:] == [5]
    assert credited(stream) == 10
    transport.clock.move_to(NOW_US + 60_000)
    first.ack()
    eventually(lambda: credited(stream) == 11)
    assert session.machine.credit.window.size == 1


def test_a_second_message_for_one_who_waits_goes_back(
    transport: FakeTransport, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both came before the one who waited had woken up, and nobody watched the second."""
    transport.settings = TopicSettings(lease_us=3_600_000_000)  # No heartbeat comes to the rescue.
    session = consumer.session
    session.machine.credit.window.size = 10
    found: list[Message] = []
    worker = threading.Thread(target=lambda: found.append(next(consumer)))
    worker.start()
    stream = opened(transport)
    eventually(lambda: credited(stream) == 10 and session.holding.takers)
    with monkeypatch.context() as sleeping:
        sleeping.setattr(session.taking._changed, "notify_all", lambda: None)
        stream.lease(1, [1], [NOW_US])
        stream.lease(2, [2], [NOW_US])
    with session.lock:
        session.taking.notify()
    worker.join()
    assert [row["id"] for row in rows_of(stream, "release", 1)] == [2]
    found[0].ack()


def test_one_long_message_has_the_credit_withdrawn(
    transport: FakeTransport, consumer: Consumer
) -> None:
    """So that what comes next, if it is long too, goes to those who are free."""
    session = consumer.session
    session.machine.credit.window.size = 10
    messages = iter(consumer)
    session.start()
    stream = opened(transport)
    eventually(lambda: credited(stream) == 10)
    stream.lease(1, [1], [NOW_US])
    message = next(messages)
    transport.clock.move_to(NOW_US + 1_000_000)
    message.ack()
    eventually(lambda: stream.of("withdraw"))
    ((header, _),) = stream.of("withdraw")
    before = credited(stream)
    stream.arrived({"kind": "withdrawn", "request": header["request"], "now_us": NOW_US}, None)
    eventually(lambda: credited(stream) == before + 1)


def test_an_old_broker_that_can_not_withdraw_is_no_trouble(
    transport: FakeTransport, consumer: Consumer
) -> None:
    session = consumer.session
    session.machine.credit.window.size = 3
    messages = iter(consumer)
    session.start()
    stream = opened(transport)
    eventually(lambda: credited(stream) == 3)
    stream.lease(1, [1, 2], [NOW_US] * 2)
    first = next(messages)
    eventually(lambda: stream.of("withdraw"))
    ((header, _),) = stream.of("withdraw")
    problem = {"kind": "error", "error": error_to_json(InvalidArgument("unknown op"))}
    stream.arrived({**problem, "request": header["request"], "now_us": NOW_US}, None)
    first.ack()
    stream.lease(2, [3], [NOW_US])
    assert next(messages).id == 3


def test_one_that_is_about_to_be_taken_is_not_in_hand(
    transport: FakeTransport, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody still waits for it in the moment in which it came: that is no second hand."""
    session = consumer.session
    session.start()
    stream = opened(transport)
    eventually(lambda: session.machine.credit.count == 1)
    stream.lease(1, [1], [NOW_US])
    eventually(lambda: session.machine.custody.unfinished == 1)
    monkeypatch.setattr(session.holding, "takers", 1)
    with session.lock:
        session.machine._wait_s(session.taking.now())
    assert session.machine.credit.window.size == 1
    first = next(iter(consumer))
    with session.lock:
        session.machine._wait_s(session.taking.now())
    assert session.machine.credit.window.size == 2
    first.ack()


def test_an_ack_that_failed_hides_no_message(transport: FakeTransport, consumer: Consumer) -> None:
    """The threads of an app found nothing for ever after, and waited for each other instead."""
    consumer.session.machine.credit.window.adapts = False  # Nothing goes back unopened.
    consumer.session.start()
    stream = opened(transport)
    stream.on_send = None
    stream.lease(1, [1], [NOW_US])
    consumer.session.failures.add("ack", [{"id": 9, "status": "stale_lease"}])
    message = consumer.take_now()
    assert message is not None
    stream.accept_all()
    message.ack()
    with pytest.raises(RowsFailed):
        consumer.flush("60s")


def test_one_who_takes_again_and_again_wakes_nobody(
    transport: FakeTransport, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That so many are wanted at once is news only once."""
    woken: list[int] = []
    monkeypatch.setattr(consumer.session, "wake", lambda: woken.append(1))
    for count in (4, 4, 1, 8, 4):
        consumer.session.want(count)
    assert len(woken) == 2
    assert consumer.session.machine.credit.window.size == 8
