"""Consumers whose threads meet at the worst moment: the test plays the broker and the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fasti.client.consumer import Consumer
from fasti.client.message import Message
from fasti.client.transaction import Transaction
from fasti.errors import (
    FastiError,
    Fenced,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    Overloaded,
    RowsFailed,
    TimedOut,
    TransactionAborted,
    Unavailable,
)
from fasti.model import Limits, TopicSettings
from fasti.protocol.problems import error_to_json
from tests.unit.client.fakes import FakeStream, FakeTransport, eventually
from tests.unit.client.test_consumer import NOW_US, Taker, ready, rows_of


@pytest.fixture
def transport() -> FakeTransport:
    made = FakeTransport()
    made.on_open = FakeStream.accept_all
    return made


@pytest.fixture
def opened() -> Iterator[list[Consumer]]:
    made: list[Consumer] = []
    yield made
    for consumer in made:
        consumer._session.failures.throw = lambda: None  # type: ignore[method-assign]
        consumer.close(timeout=5)


@pytest.fixture
def consumer(transport: FakeTransport, opened: list[Consumer]) -> Consumer:
    made = Consumer(transport, "emails", name="worker-1", prefetch=10)
    opened.append(made)
    return made


class Hook:
    """A lock: when the thread that made it asks for it, something else happens first, once."""

    def __init__(self, lock: Any, first: Callable[[], object]) -> None:
        self._lock = lock
        self._first: Callable[[], object] | None = first
        self._of = threading.get_ident()

    def __enter__(self) -> None:
        if self._first is not None and threading.get_ident() == self._of:
            first, self._first = self._first, None
            first()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def aside(call: Callable[[], object]) -> threading.Thread:
    """Something that another thread does."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def refuse(stream: FakeStream, request: int, error: FastiError, **more: Any) -> None:
    told = {"kind": "error", "request": request, "error": error_to_json(error), "now_us": NOW_US}
    stream.arrived({**told, **more}, None)


def taken(
    transport: FakeTransport, consumer: Consumer, count: int
) -> tuple[FakeStream, list[Message]]:
    """Messages in user code's hands, which came together."""
    consumer._session.start()
    stream = ready(transport.stream())
    stream.lease(1, list(range(1, count + 1)), [NOW_US] * count)
    return stream, consumer.take(count)


# The end of a session


def test_acks_after_the_end_are_gathered_by_one_thread_at_a_time(
    transport: FakeTransport, consumer: Consumer
) -> None:
    """Two at once would send one twice, or lose one."""
    _, messages = taken(transport, consumer, 3)
    consumer.close()
    session = consumer._session
    take, had_lock = session.machine.gathering.take, []

    def spy() -> list[Any]:
        had_lock.append(session.lock.locked())
        return take()

    session.machine.gathering = Spied(session.gathering, spy)  # type: ignore[assignment]
    for message in messages:
        message.ack()
    assert had_lock == [True] * 3
    assert [call[0] for call in transport.calls] == ["topic", "ack", "ack", "ack"]


class Spied:
    """Something of which one function is another."""

    def __init__(self, of: Any, take: Callable[[], Any]) -> None:
        self.__dict__.update(of=of, take=take)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)


def test_a_connection_that_is_made_when_nobody_waits_for_it_any_more(
    transport: FakeTransport, consumer: Consumer
) -> None:
    """Closing could not wait so long; the stream doesn't outlive it, and asks for nothing."""
    connect = threading.Event()
    streams: list[FakeStream] = []

    def slowly(stream: FakeStream) -> None:
        streams.append(stream)
        assert connect.wait(20)

    transport.on_open = slowly
    consumer._session.start()
    eventually(lambda: streams)
    consumer.close(timeout=0.01)
    connect.set()
    eventually(lambda: streams[0]._over)
    assert streams[0].sent == []
    thread = consumer._session._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()


def test_what_is_left_at_the_end_is_tried_for_a_moment_only(
    transport: FakeTransport, consumer: Consumer
) -> None:
    stream, (first, *_) = taken(transport, consumer, 4)
    stream.on_send = None
    first.ack()
    with pytest.raises(TimedOut):
        consumer.close(timeout=0.05)
    assert [call[0] for call in transport.calls] == ["topic", "ack"]
    assert transport.timeouts[1] == 1.0


def test_flush_waits_for_failures_that_are_being_written_down(
    transport: FakeTransport, consumer: Consumer
) -> None:
    stream, (message,) = taken(transport, consumer, 1)
    stream.on_send = None
    session = consumer._session
    gate, inside = threading.Event(), threading.Event()
    rows_failed = session.settling.rows_failed

    def slowly(*given: Any) -> None:
        inside.set()
        assert gate.wait(20)
        rows_failed(*given)

    session.settling.rows_failed = slowly  # type: ignore[method-assign]
    message.ack()
    eventually(lambda: stream.of("ack"))
    request = stream.of("ack")[0][0]["request"]
    reading = aside(lambda: stream.outcomes(request, [["stale_lease", 1]]))
    assert inside.wait(20)
    with pytest.raises(TimedOut):
        consumer.flush(0.05)
    gate.set()
    reading.join()
    with pytest.raises(RowsFailed):
        consumer.flush(5)


def test_flush_waits_for_what_the_end_of_a_session_fails(
    transport: FakeTransport, consumer: Consumer
) -> None:
    stream, (message,) = taken(transport, consumer, 1)
    stream.on_send = None
    session = consumer._session
    gate, inside = threading.Event(), threading.Event()
    failed = session.settling.failed

    def slowly(*given: Any) -> None:
        inside.set()
        assert gate.wait(20)
        failed(*given)

    session.settling.failed = slowly  # type: ignore[method-assign]
    message.ack()
    eventually(lambda: stream.of("ack"))
    reading = aside(lambda: stream.end(Fenced("another has the name")))
    assert inside.wait(20)
    with pytest.raises(TimedOut):
        consumer.flush(0.05)
    gate.set()
    reading.join()
    with pytest.raises(RowsFailed):
        consumer.flush(5)


# Credit


def with_credit(stream: FakeStream, messages: list[Message]) -> int:
    """Acks ten; the number of the request that acks nine and asks for as many messages."""
    stream.on_send = None
    messages[0].ack()
    eventually(lambda: stream.of("ack"))
    for message in messages[1:]:
        message.ack()
    assert stream.of("ack")[0][0]["credit"] == 1
    stream.outcomes(stream.of("ack")[0][0]["request"], [["ok", 1]])
    eventually(lambda: len(stream.of("ack")) == 2)
    header = stream.of("ack")[1][0]
    assert header["credit"] == 9
    stream.accept_all()
    return int(header["request"])


def test_credit_of_a_request_that_was_refused_is_asked_for_again(
    transport: FakeTransport, consumer: Consumer
) -> None:
    """A consumer that counted on it would wait for ever."""
    stream, messages = taken(transport, consumer, 10)
    before = credited(stream)
    request = with_credit(stream, messages)
    refuse(stream, request, Overloaded("full", retry_after_us=1_000))
    rows_of(stream, "ack", 1 + 9 + 9)
    eventually(lambda: credited(stream) - before == 10 + 9)
    assert consumer._session.machine.credit.count == 10


def test_credit_that_was_taken_all_the_same_is_not_asked_for_twice(
    transport: FakeTransport, consumer: Consumer
) -> None:
    stream, messages = taken(transport, consumer, 10)
    before = credited(stream)
    request = with_credit(stream, messages)
    refuse(stream, request, InvalidArgument("no"), credit=9)
    eventually(lambda: credited(stream) - before == 10)
    assert consumer._session.machine.credit.count == 10


def credited(stream: FakeStream) -> int:
    """How many messages were asked for, but for the first one."""
    sent = list(stream.sent)[1:]
    return sum(header.get("count", 0) + header.get("credit", 0) for header, _ in sent)


# Connecting


def test_the_end_of_a_session_tells_more_than_the_first_write_that_met_it(
    transport: FakeTransport, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fasti.client.session._LAST_WORD_S", 20.0)
    session = consumer._session
    given_up = threading.Event()
    pause = session.machine._pauses.next_s

    def next_s(error: FastiError) -> float:
        given_up.set()
        return pause(error)

    session.machine._pauses.next_s = next_s  # type: ignore[method-assign]

    def refused(stream: FakeStream) -> None:
        def last_word() -> None:
            given_up.wait(0.2)
            stream.end(NotFound("there is no such topic"))

        def on_send(header: dict[str, Any], batch: Any) -> None:
            aside(last_word)
            raise Unavailable("the connection was lost")

        stream.on_send = on_send

    transport.on_open = refused
    taker = Taker(consumer, transport)
    assert taker.ended()
    assert isinstance(taker.error, NotFound)
    assert len(transport.streams) == 1


def test_attempts_to_connect_are_numbered(transport: FakeTransport, opened: list[Consumer]) -> None:
    for name in ("one", "two"):
        made = Consumer(transport, "emails", name=name)
        opened.append(made)
        made._session.start()
    eventually(lambda: len(transport.streams) == 2)
    for stream in list(transport.streams):
        stream.lose()
    eventually(lambda: len(transport.streams) == 4)
    told = [stream.descriptor for stream in transport.streams]
    for name in ("one", "two"):
        mine = [each for each in told if each["consumer"] == name]
        assert mine[0]["life"] == mine[1]["life"]
        assert 0 < mine[0]["attempt"] < mine[1]["attempt"]
    assert len({each["life"] for each in told}) == 2


def test_a_lease_that_ended_unseen_is_seen_to_at_once(
    transport: FakeTransport, opened: list[Consumer]
) -> None:
    """However much credit there is, and however long until the next heartbeat."""
    transport.settings = TopicSettings(lease_us=600_000_000)
    consumer = Consumer(transport, "emails", prefetch=10)
    opened.append(consumer)
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1, 2], [NOW_US, NOW_US + 700_000_000])
    taker.wait_for(1)
    transport.clock.move_to(NOW_US + 700_000_000)
    ready(transport.stream(1)).lease(3, [2], [NOW_US + 700_000_000], attempts=2)
    assert [message.attempts for message in taker.wait_for(2)] == [1, 2]


def test_tokens_are_not_known_while_a_consumer_that_is_being_closed_connects_again(
    transport: FakeTransport, consumer: Consumer
) -> None:
    """A reply under an old token would be taken for one whose lease is over."""
    stream, (message,) = taken(transport, consumer, 1)
    session = consumer._session
    stream.on_send = None
    message.nack("no")
    eventually(lambda: stream.of("nack"))
    closing = aside(consumer.close)
    eventually(lambda: session.machine.closing)
    assert session.tokens_known

    def silent(stream: FakeStream) -> None:
        stream.on_send = None

    transport.on_open = silent
    stream.lose()
    again = transport.stream(1)
    eventually(lambda: again.of("heartbeat"))
    assert not session.tokens_known
    assert not session.await_tokens(0)
    again.accept_all()
    beat = {"kind": "heartbeat", "request": again.of("heartbeat")[0][0]["request"], "held": 0}
    again.arrived({**beat, "now_us": NOW_US}, None)
    assert session.await_tokens(20)
    closing.join(20)
    assert not closing.is_alive()


# Finishing


def test_two_threads_finish_one_message(transport: FakeTransport, consumer: Consumer) -> None:
    stream, (message, other) = taken(transport, consumer, 2)
    session = consumer._session
    lock = session.lock
    session.lock = Hook(lock, lambda: message.nack("first"))  # type: ignore[assignment]
    with pytest.raises(IllegalTransition):
        message.release()
    rows_of(stream, "nack", 1)
    other.ack()
    consumer.flush(5)
    assert not stream.of("release")
    assert session.machine.custody.unfinished == 0
    assert consumer.failed == 0


@pytest.mark.parametrize("masked", [False, True])
def test_a_row_is_finished_while_its_batch_is(
    transport: FakeTransport, consumer: Consumer, masked: bool
) -> None:
    """The rest is one fewer; but who named it is told."""
    batches = consumer.batches(3, wait=0)
    stream = ready(transport.stream())
    stream.lease(1, [1, 2, 3], [NOW_US] * 3)
    batch = next(batches)
    session = consumer._session
    session.lock = Hook(session.lock, lambda: batch.messages[1].nack("first"))  # type: ignore[assignment]
    if masked:
        with pytest.raises(IllegalTransition):
            batch.ack([True] * 3)
        assert [message.finished for message in batch.messages] == [False, True, False]
    outcomes = batch.ack(wait=True, timeout=10)
    assert outcomes is not None
    assert outcomes.ids.tolist() == [1, 3]
    assert outcomes.all_ok
    assert [row["id"] for row in rows_of(stream, "nack", 1)] == [2]
    assert session.machine.custody.unfinished == 0


def test_an_ack_that_two_threads_made_counts_once_in_the_books(
    transport: FakeTransport, consumer: Consumer
) -> None:
    """The other message of the run is still known: it doesn't go to user code a second time."""
    stream, (message, other) = taken(transport, consumer, 2)
    message._run.acks.append(message._row)
    message.ack()
    rows_of(stream, "ack", 2)
    session = consumer._session
    assert session.machine.custody.unfinished == 1

    def resume(again: FakeStream) -> None:
        again.accept_all()
        answer = again.on_send

        def on_send(header: dict[str, Any], batch: Any) -> None:
            if header["op"] == "credit" and len(again.sent) == 1:
                again.lease(8, [2], [NOW_US])
            assert answer is not None
            answer(header, batch)

        again.on_send = on_send

    transport.on_open = resume
    stream.lose()
    ready(transport.stream(1))
    assert other.token == 8
    assert not session.holding._heap


def test_a_reply_that_was_refused_while_the_connection_was_lost(
    transport: FakeTransport, consumer: Consumer
) -> None:
    """Its message is in user code's hands again, and learns its new token."""
    stream, (message,) = taken(transport, consumer, 1)
    session = consumer._session
    message._run._lists["headers"] = [[("reply_to", "inbox")]]
    replied, looking = threading.Event(), threading.Event()
    call, under_way = transport.call, session.replies.under_way
    outcome: list[object] = []

    def refusing(action: str, *given: Any, **more: Any) -> Any:
        if action != "reply":
            return call(action, *given, **more)
        assert looking.wait(20)
        raise InvalidArgument("no")

    def reply() -> None:
        try:
            message.reply(b"answer")
        except InvalidArgument as error:
            outcome.append(error)
        replied.set()

    def late() -> list[Any]:
        # Who is not finished was looked at before. Now the reply is refused, if that can be.
        looking.set()
        replied.wait(0.2)
        return under_way()

    def silent(again: FakeStream) -> None:
        again.on_send = None

    transport.on_open = silent
    transport.call = refusing  # type: ignore[method-assign]
    session.replies.under_way = late  # type: ignore[method-assign]
    thread = aside(reply)
    eventually(lambda: session.replies.busy)
    stream.lose()
    thread.join(20)
    assert outcome
    assert message.id in session.machine.custody._in_hand


def test_a_reply_whose_lease_is_over_gives_its_place_free(
    transport: FakeTransport, opened: list[Consumer]
) -> None:
    """Or a consumer of one message at a time would never get another."""
    consumer = Consumer(transport, "emails", prefetch=1)
    opened.append(consumer)
    consumer._session.start()
    stream = transport.stream()
    eventually(lambda: consumer._session.machine.known)
    stream.lease(1, [1], [NOW_US])
    (message,) = consumer.take()
    message._run._lists["headers"] = [[("reply_to", "inbox")]]
    call = transport.call

    def stale(action: str, *given: Any, **more: Any) -> Any:
        if action != "reply":
            return call(action, *given, **more)
        return {"status": [["stale_lease", 1]], "ids": [[1, 1]], "versions": [[1, 1]]}, []

    transport.call = stale  # type: ignore[method-assign]
    before = credited(stream)
    assert message.reply(b"late").status == "stale_lease"
    assert not message.finished
    eventually(lambda: credited(stream) == before + 1)
    message.nack("it may be told, too")
    rows_of(stream, "nack", 1)
    assert consumer._session.machine.custody.unfinished == 0


# More rows than a request may have


@pytest.mark.parametrize("after", [False, True])
def test_returns_of_more_rows_than_the_broker_takes(
    transport: FakeTransport, opened: list[Consumer], after: bool
) -> None:
    limits = Limits(batch_rows_max=3)
    consumer = Consumer(transport, "emails", prefetch=10, limits=limits)
    opened.append(consumer)
    batches = consumer.batches(10, wait=0)
    stream = ready(transport.stream())
    stream.lease(1, list(range(1, 11)), [NOW_US] * 10)
    batch = next(batches)
    assert len(batch) == 10
    if after:
        consumer.close()
    outcomes = batch.ack(wait=True, timeout=10)
    assert outcomes is not None
    assert outcomes.all_ok
    assert len(outcomes) == 10
    sent = [b for name, _, parts in transport.calls if name == "ack" for b in parts]
    sent += [b for _, b in stream.of("ack") if b is not None]
    assert [each.num_rows for each in sent] == [3, 3, 3, 1]
    assert [id for each in sent for id in each.column("id").to_pylist()] == list(range(1, 11))


def test_a_piece_that_is_refused_is_the_answer_for_all(
    transport: FakeTransport, opened: list[Consumer]
) -> None:
    consumer = Consumer(transport, "emails", prefetch=10, limits=Limits(batch_rows_max=4))
    opened.append(consumer)
    batches = consumer.batches(6, wait=0)
    stream = ready(transport.stream())
    stream.lease(1, list(range(1, 7)), [NOW_US] * 6)
    batch = next(batches)
    stream.on_send = None
    found: list[object] = []

    def ack() -> None:
        try:
            found.append(batch.ack(wait=True, timeout=10))
        except FastiError as error:
            found.append(error)

    thread = aside(ack)
    rows_of(stream, "ack", 6)
    first, second = (header["request"] for header, _ in stream.of("ack"))
    refuse(stream, first, InvalidArgument("no"))
    assert not found
    stream.outcomes(second, [["ok", 2]])
    thread.join(20)
    assert isinstance(found[0], InvalidArgument)


# Transactions


def test_a_transaction_waits_for_the_tokens_of_a_consumer_that_connects_again(
    transport: FakeTransport, consumer: Consumer
) -> None:
    """It met the old ones, so nothing happened: it is sent again under those that count."""
    stream, (message,) = taken(transport, consumer, 1)
    told: list[list[int]] = []
    call = transport.call

    def resume(again: FakeStream) -> None:
        again.accept_all()
        answer = again.on_send

        def on_send(header: dict[str, Any], batch: Any) -> None:
            if header["op"] == "credit" and len(again.sent) == 1:
                again.lease(8, [1], [NOW_US])
            assert answer is not None
            answer(header, batch)

        again.on_send = on_send

    def judging(action: str, *given: Any, **more: Any) -> Any:
        if action != "transaction":
            return call(action, *given, **more)
        tokens = given[1][0].column("token").to_pylist()
        told.append(tokens)
        if len(told) == 1:
            # Meanwhile the connection is lost, and the broker has given a new token.
            transport.on_open = resume
            stream.lose()
        good = tokens == [8]
        status = "ok" if good else "stale_lease"
        row = {"status": [[status, 1]], "ids": [[1, 1]], "versions": [[1, 1]]}
        return {"committed": good, "outcomes": [row]}, []

    transport.call = judging  # type: ignore[method-assign]
    with Transaction(transport) as tx:
        tx.ack(message)
    assert told == [[1], [8]]
    assert message.finished
    assert consumer._session.machine.custody.unfinished == 0


def test_a_transaction_whose_lease_is_over_is_aborted_at_once(
    transport: FakeTransport, consumer: Consumer
) -> None:
    _, (message,) = taken(transport, consumer, 1)
    calls = transport.call
    told = []

    def stale(action: str, *given: Any, **more: Any) -> Any:
        if action != "transaction":
            return calls(action, *given, **more)
        told.append(action)
        row = {"status": [["stale_lease", 1]], "ids": [[1, 1]], "versions": [[1, 1]]}
        return {"committed": False, "outcomes": [row]}, []

    transport.call = stale  # type: ignore[method-assign]
    with pytest.raises(TransactionAborted), Transaction(transport) as tx:
        tx.ack(message)
    assert len(told) == 1
    assert not message.finished
