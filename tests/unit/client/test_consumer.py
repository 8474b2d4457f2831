"""Consumers against a broker that the test plays: holding, returning, renewing, coming back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from fasti.client.consumer import Consumer
from fasti.client.message import Message
from fasti.errors import (
    Closed,
    Fenced,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    Overloaded,
    RowsFailed,
    TimedOut,
)
from fasti.model import Limits, TopicSettings
from fasti.protocol.problems import error_to_json
from tests.unit.client.fakes import FakeStream, FakeTransport, eventually

NOW_US = 1_000_000


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


class Taker:
    """Iterates in a thread, as user code does, and notes what it got and when."""

    def __init__(self, consumer: Consumer, transport: FakeTransport) -> None:
        self.messages: list[Message] = []
        self.at_us: list[int] = []
        self.error: Exception | None = None
        self._clock = transport.clock
        self._iterator = iter(consumer)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self._iterator:
                self.at_us.append(self._clock.now_us())
                self.messages.append(message)
        except Exception as error:
            self.error = error

    @property
    def ids(self) -> list[int]:
        return [message.id for message in self.messages]

    def wait_for(self, count: int) -> list[Message]:
        eventually(lambda: len(self.messages) >= count or self.error)
        assert self.error is None, self.error
        return self.messages

    def ended(self) -> bool:
        self._thread.join(10)
        return not self._thread.is_alive()


def ready(stream: FakeStream) -> FakeStream:
    """The session, when it has asked for all the messages it may have."""
    eventually(lambda: any(header.get("count", 0) for header, _ in stream.of("credit")))
    return stream


def rows_of(stream: FakeStream, op: str, count: int) -> list[dict[str, Any]]:
    """The rows that were returned, as soon as there are so many."""

    def rows() -> list[dict[str, Any]]:
        return [row for _, batch in stream.of(op) if batch is not None for row in batch.to_pylist()]

    eventually(lambda: len(rows()) >= count)
    return rows()


def test_messages_are_held_until_they_are_due(transport: FakeTransport, consumer: Consumer) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1, 2, 3], [NOW_US - 5, NOW_US + 100, NOW_US + 200])
    taker.wait_for(1)
    transport.clock.move_to(NOW_US + 99)
    transport.clock.move_to(NOW_US + 100)
    taker.wait_for(2)
    transport.clock.move_to(NOW_US + 300)
    messages = taker.wait_for(3)
    assert taker.ids == [1, 2, 3]
    assert taker.at_us == [NOW_US, NOW_US + 100, NOW_US + 300]
    assert [message.started_us for message in messages] == taker.at_us
    assert all(message.started_us >= message.due_us for message in messages)


def test_a_later_arrival_that_is_due_earlier_goes_first(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1, 2, 3], [NOW_US + 300, NOW_US + 100, NOW_US + 500])
    stream.lease(2, [4, 5], [NOW_US + 200, NOW_US + 400])
    transport.clock.move_to(NOW_US + 1_000)
    taker.wait_for(5)
    assert taker.ids == [2, 4, 1, 5, 3]
    assert [message.token for message in taker.messages] == [1, 2, 1, 2, 1]
    assert [message.payload for message in taker.messages] == [b"2", b"4", b"1", b"5", b"3"]


def test_what_a_message_says(transport: FakeTransport, consumer: Consumer) -> None:
    stream_ready = Taker(consumer, transport)
    ready(transport.stream()).lease(9, [7], [NOW_US], attempts=2)
    (message,) = stream_ready.wait_for(1)
    assert (message.id, message.topic, message.payload, message.token) == (7, "emails", b"7", 9)
    assert (message.attempts, message.version, message.key) == (2, 1, None)
    assert (message.headers, message.content_type) == ({}, None)
    assert message.due.timestamp() * 1e6 == message.due_us
    assert message.created.year == 1970
    assert "7" in repr(message)


def test_credit_keeps_prefetch_messages_here_and_comes_back_with_acks(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    asked = [header["count"] for header, _ in stream.of("credit")]
    assert sum(asked) == 10
    stream.lease(1, [1, 2, 3], [NOW_US] * 3)
    for message in taker.wait_for(3):
        message.ack()
    rows = rows_of(stream, "ack", 3)
    assert [(row["id"], row["token"], row["started_us"]) for row in rows] == [
        (1, 1, NOW_US),
        (2, 1, NOW_US),
        (3, 1, NOW_US),
    ]
    eventually(lambda: _credit(stream) == 13)


def _credit(stream: FakeStream) -> int:
    headers = [header for header, _ in list(stream.sent)]
    return sum(header.get("count", 0) + header.get("credit", 0) for header in headers)


def test_every_way_to_finish(transport: FakeTransport, consumer: Consumer) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1, 2, 3, 4, 5], [NOW_US] * 5)
    one, two, three, four, five = taker.wait_for(5)
    one.nack("no luck")
    two.reject("never")
    three.release(delay="1m")
    four.extend("2m")
    outcome = five.ack(wait=True, timeout=5)
    assert outcome is not None
    assert (outcome.status, outcome.id) == ("ok", 5)
    consumer.flush(5)
    assert stream.of("nack")[0][0]["reason"] == "no luck"
    assert stream.of("reject")[0][0]["reason"] == "never"
    assert stream.of("release")[0][0]["delay_us"] == 60_000_000
    assert stream.of("extend")[0][0]["length_us"] == 120_000_000
    assert [message.finished for message in taker.messages] == [True, True, True, False, True]
    with pytest.raises(IllegalTransition):
        one.ack()
    with pytest.raises(IllegalTransition):
        five.nack()
    with pytest.raises(InvalidArgument):
        four.nack("x" * 2000)
    assert not four.finished


def test_an_ack_that_failed_ends_no_iteration_and_is_raised_by_flush(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())

    def stale(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
        if batch is not None:
            stream.outcomes(header["request"], [["stale_lease", batch.num_rows]])

    stream.on_send = stale
    stream.lease(1, [1], [NOW_US])
    taker.wait_for(1)[0].ack()
    eventually(lambda: consumer.unread_failures)
    stream.lease(3, [3], [NOW_US])
    taker.wait_for(2)
    with pytest.raises(RowsFailed) as told:
        consumer.flush(5)
    assert told.value.failures[0]["id"] == 1
    assert told.value.failures[0]["status"] == "stale_lease"
    assert told.value.failures[0]["operation"] == "ack"
    assert consumer.failed == 1
    # Whoever waits for the outcome is not told twice.
    stream.lease(2, [2], [NOW_US])
    outcome = taker.wait_for(3)[2].ack(wait=True, timeout=5)
    assert outcome is not None
    assert outcome.status == "stale_lease"
    consumer.flush(5)
    assert (consumer.failed, consumer.unread_failures) == (2, 1)


def test_a_full_broker_gets_the_ack_again(transport: FakeTransport, consumer: Consumer) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    refused: list[int] = []

    def refuse_once(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
        if batch is not None and not refused:
            refused.append(header["request"])
            problem = error_to_json(Overloaded("full", retry_after_us=1))
            told = {"kind": "error", "request": header["request"], "error": problem, "now_us": 0}
            stream.arrived(told, None)
        elif batch is not None:
            stream.outcomes(header["request"], [["ok", batch.num_rows]])

    stream.on_send = refuse_once
    stream.lease(1, [1], [NOW_US])
    taker.wait_for(1)[0].ack()
    consumer.flush(5)
    assert len(stream.of("ack")) == 2
    assert consumer.failed == 0


def test_messages_in_hand_learn_their_new_token_and_are_not_delivered_again(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    first = ready(transport.stream())
    first.on_send = None  # Answers nothing from now on.
    first.lease(1, [1, 2, 3, 4], [NOW_US, NOW_US, NOW_US + 500, NOW_US + 600])
    in_hand, acked = taker.wait_for(2)
    acked.ack()
    rows_of(first, "ack", 1)

    def resume(stream: FakeStream) -> None:
        """The broker hands out again what is leased; the ack had not reached it."""
        stream.accept_all()
        answer = stream.on_send

        def on_send(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
            if header["op"] == "credit" and len(stream.sent) == 1:
                stream.lease(8, [1, 2, 3, 4], [NOW_US, NOW_US, NOW_US + 500, NOW_US + 600])
            assert answer is not None
            answer(header, batch)

        stream.on_send = on_send

    transport.on_open = resume
    first.lose()
    second = transport.stream(1)
    # The ack without an answer is sent again, under the new token.
    assert [(row["id"], row["token"]) for row in rows_of(second, "ack", 1)] == [(2, 8)]
    assert in_hand.token == 8
    in_hand.ack()
    assert [(row["id"], row["token"]) for row in rows_of(second, "ack", 2)] == [(2, 8), (1, 8)]
    # What was held comes from the new session, once.
    transport.clock.move_to(NOW_US + 1_000)
    taker.wait_for(4)
    assert taker.ids == [1, 2, 3, 4]
    assert [message.token for message in taker.messages[2:]] == [8, 8]
    consumer.flush(5)
    assert (consumer.reconnections, consumer.failed) == (1, 0)
    # Two are in our hands, so there is room for eight: nothing was counted twice or forgotten.
    assert consumer._session.machine.custody.unfinished == 2
    eventually(lambda: _credit(second) >= 8)


def test_a_full_prefetch_asks_for_nothing_when_it_connects_again(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    first = ready(transport.stream())
    held, later = list(range(1, 11)), [NOW_US + 500] * 10
    first.lease(1, held, later)

    def resume(stream: FakeStream) -> None:
        stream.accept_all()
        answer = stream.on_send

        def on_send(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
            if header["op"] == "credit" and len(stream.sent) == 1:
                stream.lease(8, held, later)
            assert answer is not None
            answer(header, batch)

        stream.on_send = on_send

    transport.on_open = resume
    first.lose()
    second = transport.stream(1)
    transport.clock.move_to(NOW_US + 1_000)
    taker.wait_for(10)[0].ack()
    rows_of(second, "ack", 1)
    # One place is free, and nothing was asked for before.
    eventually(lambda: _credit(second))
    assert _credit(second) == 1


def test_a_session_with_nothing_to_say_asks_for_the_time(transport: FakeTransport) -> None:
    transport.on_network = True
    limits = Limits(session_silence_us=50_000)
    consumer = Consumer(transport, "jobs", prefetch=1, limits=limits)
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    eventually(lambda: len(stream.of("clock")) > 2)
    consumer.close()
    assert taker.ended()


def test_a_session_whose_first_heartbeat_is_refused_begins_again(
    transport: FakeTransport, consumer: Consumer
) -> None:
    def refuse(stream: FakeStream) -> None:
        def on_send(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
            if header["op"] == "heartbeat":
                problem = error_to_json(Overloaded("full", retry_after_us=1))
                told = {"kind": "error", "request": header["request"], "error": problem}
                stream.arrived({**told, "now_us": 0}, None)

        stream.on_send = on_send
        transport.on_open = FakeStream.accept_all

    transport.on_open = refuse
    taker = Taker(consumer, transport)
    ready(transport.stream(1)).lease(1, [1], [NOW_US])
    taker.wait_for(1)[0].ack()
    consumer.flush(5)


def test_an_ack_that_had_happened_before_the_connection_was_lost_is_fine(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    first = ready(transport.stream())
    first.on_send = None
    first.lease(1, [1, 2], [NOW_US, NOW_US])
    for message in taker.wait_for(2):
        message.ack()
    rows_of(first, "ack", 2)

    def answer_done(stream: FakeStream) -> None:
        stream.accept_all()
        accept = stream.on_send

        def on_send(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
            if batch is not None:
                stream.outcomes(header["request"], [["done", 1], ["stale_lease", 1]])
            elif accept is not None:
                accept(header, batch)

        stream.on_send = on_send

    transport.on_open = answer_done
    first.lose()
    eventually(lambda: consumer.failed)
    with pytest.raises(RowsFailed) as told:
        consumer.flush(5)
    # Only the second is told: its lease was lost meanwhile.
    assert [failure["id"] for failure in told.value.failures] == [2]


def test_a_second_delivery_after_the_lease_ended_is_one(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    first = ready(transport.stream())
    first.lease(1, [1], [NOW_US])
    taker.wait_for(1)

    def redeliver(stream: FakeStream) -> None:
        stream.accept_all()
        accept = stream.on_send

        def on_send(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
            if header["op"] == "credit" and len(stream.sent) == 1:
                stream.lease(5, [1], [NOW_US], attempts=2)
            assert accept is not None
            accept(header, batch)

        stream.on_send = on_send

    transport.on_open = redeliver
    first.lose()
    old, new = taker.wait_for(2)
    assert (old.token, new.token) == (1, 5)
    assert (old.attempts, new.attempts) == (1, 2)


def test_a_session_that_was_replaced_says_so_and_does_not_come_back(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    problem = error_to_json(Fenced("another session took the name"))
    stream.arrived({"kind": "error", "request": None, "error": problem, "now_us": 0}, None)
    assert taker.ended()
    assert isinstance(taker.error, Fenced)
    assert len(transport.streams) == 1
    with pytest.raises(Fenced):
        next(consumer)


@pytest.mark.parametrize("ends", [True, False])
def test_a_stopping_broker_is_come_back_to_a_missing_topic_is_not(
    transport: FakeTransport, consumer: Consumer, ends: bool
) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    error = NotFound("no topic") if ends else Closed("the broker is stopping")
    problem = error_to_json(error)
    stream.arrived({"kind": "error", "request": None, "error": problem, "now_us": 0}, None)
    if ends:
        assert taker.ended()
        assert isinstance(taker.error, NotFound)
    else:
        ready(transport.stream(1)).lease(1, [1], [NOW_US])
        taker.wait_for(1)


def test_closing_gives_back_what_was_not_started_with_its_own_due_time(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(3, [1, 2, 3], [NOW_US, NOW_US + 50, NOW_US + 70])
    (started,) = taker.wait_for(1)
    started.ack()
    consumer.close(timeout=5)
    assert taker.ended()
    assert stream.finished
    assert [row["id"] for row in rows_of(stream, "ack", 1)] == [1]
    (release,) = [call for call in transport.calls if call[0] == "release"]
    assert release[1] == {"topic": "emails"}
    given = [(row["id"], row["token"], row["due_us"]) for row in release[2][0].to_pylist()]
    assert given == [(2, 3, NOW_US + 50), (3, 3, NOW_US + 70)]
    assert [row["started_us"] for row in release[2][0].to_pylist()] == [0, 0]
    with pytest.raises(Closed):
        next(consumer)


def test_a_message_in_hand_can_be_finished_after_the_close(
    transport: FakeTransport, consumer: Consumer
) -> None:
    taker = Taker(consumer, transport)
    ready(transport.stream()).lease(3, [1, 2], [NOW_US, NOW_US])
    one, two = taker.wait_for(2)
    consumer.close(timeout=5)
    one.ack()
    assert two.nack("late", wait=True, timeout=5) is not None
    calls = [(name, header) for name, header, _ in transport.calls if name in ("ack", "nack")]
    assert calls == [
        ("ack", {"topic": "emails"}),
        ("nack", {"topic": "emails", "reason": "late"}),
    ]


def test_a_consumer_that_is_thrown_away_gives_back_what_it_holds(transport: FakeTransport) -> None:
    consumer = Consumer(transport, "emails", prefetch=10, timeout=0.01)
    assert list(consumer) == []
    ready(transport.stream()).lease(3, [1], [NOW_US + 50])
    del consumer
    gc.collect()
    eventually(lambda: any(name == "release" for name, _, _ in transport.calls))


def test_iteration_ends_after_its_timeout_and_can_begin_again(
    transport: FakeTransport, opened: list[Consumer]
) -> None:
    consumer = Consumer(transport, "emails", prefetch=10, timeout="50ms")
    opened.append(consumer)
    assert list(consumer) == []
    ready(transport.stream()).lease(3, [1, 2], [NOW_US, NOW_US])
    for message in consumer:
        assert message.id == 1
        break
    assert [message.id for message in consumer] == [2]


def test_heartbeats_go_out_while_user_code_works(
    transport: FakeTransport, consumer: Consumer
) -> None:
    transport.settings = TopicSettings(lease_us=30_000)
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1], [NOW_US])
    taker.wait_for(1)
    before = len(stream.of("heartbeat"))
    eventually(lambda: len(stream.of("heartbeat")) >= before + 3)
    assert not stream.of("extend")


def test_a_message_held_beyond_the_time_limit_is_renewed_no_more(
    transport: FakeTransport, opened: list[Consumer]
) -> None:
    transport.settings = TopicSettings(lease_us=30_000)
    consumer = Consumer(transport, "emails", prefetch=10, time_limit="10s")
    opened.append(consumer)
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1], [NOW_US])
    taker.wait_for(1)
    transport.clock.move_to(NOW_US + 8_000_000)
    stream.lease(2, [2, 3], [NOW_US, NOW_US + 60_000_000])
    taker.wait_for(2)
    assert not stream.of("extend")
    transport.clock.move_to(NOW_US + 10_000_001)
    eventually(lambda: stream.of("extend"))
    renewed = {row["id"] for row in rows_of(stream, "extend", 4)}
    assert renewed == {2, 3}
    assert stream.of("extend")[0][0]["length_us"] == 30_000
    beats = len(stream.of("heartbeat"))
    extends = len(stream.of("extend"))
    eventually(lambda: len(stream.of("extend")) > extends + 1)
    assert len(stream.of("heartbeat")) == beats
    # When it is finished after all, one heartbeat renews everything again.
    taker.messages[0].ack()
    eventually(lambda: len(stream.of("heartbeat")) > beats)


def test_batches_are_columns_and_are_finished_by_masks(
    transport: FakeTransport, consumer: Consumer
) -> None:
    batches = consumer.batches(4, wait="10s")
    stream = ready(transport.stream())
    stream.lease(1, [1, 2], [NOW_US, NOW_US])
    stream.lease(2, [3, 4, 5], [NOW_US, NOW_US, NOW_US])
    batch = next(batches)
    assert len(batch) == 4
    assert batch.table.column("id").to_pylist() == [1, 2, 3, 4]
    assert [message.id for message in batch.messages] == [1, 2, 3, 4]
    batch.nack([False, True, False, False], "bad")
    outcomes = batch.ack(wait=True, timeout=5)
    assert outcomes is not None
    assert outcomes.ids.tolist() == [1, 3, 4]
    tokens = [(row["id"], row["token"]) for row in rows_of(stream, "ack", 3)]
    assert tokens == [(1, 1), (3, 2), (4, 2)]
    assert [row["id"] for row in rows_of(stream, "nack", 1)] == [2]
    with pytest.raises(IllegalTransition):
        batch.release([True, False, False, False])
    with pytest.raises(InvalidArgument):
        batch.ack([True])
    assert batch.ack() is None


def test_a_batch_does_not_wait_longer_than_told_nor_take_what_is_not_due(
    transport: FakeTransport, consumer: Consumer
) -> None:
    batches = consumer.batches(100, wait="20ms")
    stream = ready(transport.stream())
    stream.lease(1, [1, 2, 3], [NOW_US, NOW_US, NOW_US + 1])
    batch = next(batches)
    assert batch.table.column("id").to_pylist() == [1, 2]
    batch.release(delay="1s")
    eventually(lambda: stream.of("release"))
    assert stream.of("release")[0][0]["delay_us"] == 1_000_000


def test_arguments_that_can_not_be() -> None:
    transport = FakeTransport()
    for arguments in ({"prefetch": 0}, {"timeout": "soon"}, {"time_limit": -1}):
        with pytest.raises(InvalidArgument):
            Consumer(transport, "emails", **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        Consumer(transport, "emails").batches(0)


def test_what_was_not_renewed_in_time_is_not_handed_out(
    transport: FakeTransport, opened: list[Consumer]
) -> None:
    """The process hung: others may have those messages by now, so a new session is asked."""
    # A third of it passes in true time before the consumer looks.
    transport.settings = TopicSettings(lease_us=300_000)
    consumer = Consumer(transport, "emails", prefetch=10)
    opened.append(consumer)
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1, 2], [NOW_US, NOW_US + 50])
    taker.wait_for(1)
    transport.clock.move_to(NOW_US + 30_000_000)
    ready(transport.stream(1)).lease(3, [2], [NOW_US + 50], attempts=2)
    messages = taker.wait_for(2)
    assert taker.ids == [1, 2]
    assert [(message.token, message.attempts) for message in messages] == [(1, 1), (3, 2)]
    assert consumer.reconnections == 1


def test_a_heartbeat_that_was_written_in_time_keeps_what_is_held(
    transport: FakeTransport, opened: list[Consumer]
) -> None:
    transport.settings = TopicSettings(lease_us=30_000)
    consumer = Consumer(transport, "emails", prefetch=10)
    opened.append(consumer)
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1, 2], [NOW_US, NOW_US + 40_000])
    taker.wait_for(1)
    for _ in range(2):
        transport.clock.move_to(transport.clock.now_us() + 20_000)
        beats = len(stream.of("heartbeat"))
        eventually(lambda beats=beats: len(stream.of("heartbeat")) > beats)
    taker.wait_for(2)
    assert consumer.reconnections == 0


def test_a_heartbeat_that_came_too_late_keeps_nothing(
    transport: FakeTransport, opened: list[Consumer]
) -> None:
    """As the broker's clock was estimated it was written in time; the answer tells the truth."""
    transport.settings = TopicSettings(lease_us=300_000)
    consumer = Consumer(transport, "emails", prefetch=10)
    opened.append(consumer)
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.lease(1, [1, 2], [NOW_US, NOW_US + 400_000])
    taker.wait_for(1)
    stream.on_send = None
    transport.clock.move_to(NOW_US + 200_000)
    beats = len(stream.of("heartbeat"))
    eventually(lambda: len(stream.of("heartbeat")) > beats)
    late = {"kind": "heartbeat", "request": 0, "held": 0, "now_us": NOW_US + 310_000}
    stream.arrived(late, None)
    transport.clock.move_to(NOW_US + 450_000)
    ready(transport.stream(1)).lease(3, [2], [NOW_US + 400_000], attempts=2)
    messages = taker.wait_for(2)
    assert [(message.token, message.attempts) for message in messages] == [(1, 1), (3, 2)]


class LosesTheConnection:
    """A lock: when user code asks for it the connection is lost first."""

    def __init__(self, lock: Any, lose: Callable[[], None]) -> None:
        self._lock, self._lose = lock, lose
        self._of = threading.get_ident()

    def __enter__(self) -> None:
        if self._lose is not None and threading.get_ident() == self._of:
            lose, self._lose = self._lose, None
            lose()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        # A fork in a later test meets every session that is not collected yet.
        return getattr(self._lock, name)


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
@pytest.mark.parametrize("of", ["message", "batch"])
def test_a_connection_lost_while_something_is_finished(
    transport: FakeTransport, consumer: Consumer, verb: str, of: str
) -> None:
    """It is finished under its new token, and user code doesn't get it again."""
    batches = consumer.batches(2, wait=0)
    first = None

    def resume(stream: FakeStream) -> None:
        stream.accept_all()
        answer = stream.on_send

        def on_send(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
            if header["op"] == "credit" and len(stream.sent) == 1 and first is not None:
                stream.lease(8, [1, 2], [NOW_US, NOW_US])
            assert answer is not None
            answer(header, batch)

        stream.on_send = on_send

    transport.on_open = resume
    consumer._session.start()
    stream = ready(transport.stream())
    stream.lease(1, [1, 2], [NOW_US, NOW_US])
    first = next(batches)
    session = consumer._session
    session.lock = LosesTheConnection(session.lock, stream.lose)  # type: ignore[assignment]
    if of == "batch":
        getattr(first, verb)()
    else:
        for message in first.messages:
            getattr(message, verb)()
    second = transport.stream(1)
    found = rows_of(second, verb, 2)
    assert sorted((row["id"], row["token"]) for row in found) == [(1, 8), (2, 8)]
    consumer.flush(5)
    assert consumer.failed == 0
    assert session.machine.custody.unfinished == 0


def test_who_waits_for_an_ack_waits_as_long_as_for_any_call(
    transport: FakeTransport, consumer: Consumer
) -> None:
    transport.timeout_s = 0.01
    taker = Taker(consumer, transport)
    stream = ready(transport.stream())
    stream.on_send = lambda *_: None  # It takes its time.
    stream.lease(1, [1], [NOW_US])
    message = taker.wait_for(1)[0]
    with pytest.raises(TimedOut, match=r"no answer to ack within 0.01 s.*connect\(timeout=...\)"):
        message.ack(wait=True)
    request = eventually(lambda: stream.of("ack"))[0][0]["request"]
    stream.outcomes(request, [["ok", 1]])
    consumer.flush(20)
