"""Producers against a broker that the test plays: gathering, order, resending, limits, failures."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.client.failures import Failures
from fasti.client.machines.producer import UNDER_WAY_MAX
from fasti.client.producer import Producer
from fasti.client.receipts import Receipt, Shipment
from fasti.errors import (
    Closed,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    RowsFailed,
    StorageFull,
    TimedOut,
    UnknownProducer,
)
from tests.unit.client.fakes import FakeStream, FakeTransport, eventually


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def producer(transport: FakeTransport) -> Iterator[Producer]:
    made = Producer(transport, "emails", "billing")
    yield made
    made._box.close()


def written(stream: FakeStream, count: int) -> list[tuple[dict[str, Any], pa.RecordBatch]]:
    """The first batches that were written, as soon as they are there."""
    eventually(lambda: len(stream.sent) >= count)
    return [(header, batch) for header, batch in stream.sent[:count] if batch is not None]


def test_the_first_goes_at_once_the_rest_together_and_in_order(
    transport: FakeTransport, producer: Producer
) -> None:
    first = producer.send(b"0")
    stream = transport.stream()
    written(stream, 1)
    later = [producer.send(b"%d" % number) for number in range(1, 100)]
    assert len(stream.sent) == 1
    stream.answer(1, first_id=7)
    written(stream, 2)
    stream.answer(99, first_id=8)
    assert (first.result(5).id, first.result(5).status) == (7, "ok")
    assert [receipt.result(5).id for receipt in later] == list(range(8, 107))
    assert stream.rows() == [b"%d" % number for number in range(100)]
    assert stream.descriptor["producer"]
    assert stream.descriptor["owner"] == "billing"
    assert [header["sequence"] for header, _ in stream.sent] == [1, 2]


def test_columns_travel_as_they_were_given(transport: FakeTransport, producer: Producer) -> None:
    producer.send_batch([b"z"], wait=False)
    stream = transport.stream()
    written(stream, 1)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    producer.send(b"a", delay="5m", key="k", headers={"lang": "en"}, content_type="text/plain")
    producer.send(b"b", at=at)
    producer.send(b"c")
    stream.answer(1)
    # Another column needs another stream, opened when the old one is answered.
    second = transport.stream(1)
    (_, batch) = written(second, 1)[0]
    rows = batch.to_pylist()
    assert rows[0]["delay_us"] == 300_000_000
    assert (rows[0]["key"], rows[0]["headers"]) == ("k", [("lang", "en")])
    assert (rows[1]["due_us"], rows[1]["delay_us"]) == (int(at.timestamp() * 1e6), None)
    assert [row["payload"] for row in rows] == [b"a", b"b", b"c"]
    assert [row["content_type"] for row in rows] == ["text/plain", None, None]
    second.answer(3)
    producer.flush(5)


def test_another_policy_makes_another_batch(transport: FakeTransport, producer: Producer) -> None:
    producer.send(b"0")
    stream = transport.stream()
    written(stream, 1)
    producer.send(b"1", on_conflict="keep")
    producer.send(b"2", on_conflict="replace")
    written(stream, 2)
    stream.answer(1)
    stream.answer(1)
    written(stream, 3)
    stream.answer(1)
    producer.flush(5)
    assert [header["on_conflict"] for header, _ in stream.sent] == ["reject", "keep", "replace"]
    assert stream.rows() == [b"0", b"1", b"2"]


def test_no_more_than_eight_batches_are_without_a_receipt(
    transport: FakeTransport, producer: Producer
) -> None:
    pending = [producer.send_batch([b"%d" % n], wait=False) for n in range(12)]
    stream = transport.stream()
    written(stream, UNDER_WAY_MAX)
    stream.answer(1)
    written(stream, UNDER_WAY_MAX + 1)
    assert len(stream.sent) == UNDER_WAY_MAX + 1
    for number in range(2, 13):
        written(stream, number)
        stream.answer(1)
    assert all(each.result(5).all_ok for each in pending)


def test_what_has_no_receipt_is_sent_again_under_the_same_numbers(
    transport: FakeTransport, producer: Producer
) -> None:
    pending = [producer.send_batch([b"%d" % n], wait=False) for n in range(3)]
    first = transport.stream()
    written(first, 3)
    first.answer(1, first_id=1)
    first.lose()
    second = transport.stream(1)
    again = written(second, 2)
    assert [header["sequence"] for header, _ in again] == [2, 3]
    assert second.descriptor["producer"] == first.descriptor["producer"]
    # The broker had carried out the first of them before the connection broke.
    second.tell(
        {
            "status": [["ok", 1]],
            "ids": [[2, 1]],
            "versions": [[1, 1]],
            "sent_before": True,
        }
    )
    second.answer(1, first_id=3)
    assert [each.result(5)[0].id for each in pending] == [1, 2, 3]
    assert all(each.result(5).all_ok for each in pending)
    # A duplicate of another kind stays one.
    receipt = producer.send(b"x", key="taken", on_conflict="keep")
    third = transport.stream(2)
    written(third, 1)
    kept = {"status": [["duplicate", 1]], "ids": [[2, 1]], "versions": [[1, 1]]}
    third.tell({**kept, "sent_before": True})
    assert receipt.result(5).status == "duplicate"


@pytest.mark.parametrize("error", [Overloaded("full", retry_after_us=1), StorageFull("full")])
def test_a_full_broker_is_tried_again_in_order(
    transport: FakeTransport, producer: Producer, error: Overloaded
) -> None:
    pending = [producer.send_batch([b"%d" % n], wait=False) for n in range(2)]
    first = transport.stream()
    written(first, 2)
    first.refuse(error)
    first.refuse(error)
    second = transport.stream(1)
    assert [header["sequence"] for header, _ in written(second, 2)] == [1, 2]
    second.answer(1, first_id=1)
    second.answer(1, first_id=2)
    assert [each.result(5)[0].id for each in pending] == [1, 2]


def test_a_batch_that_can_not_be_fails_alone(transport: FakeTransport, producer: Producer) -> None:
    bad, good = (producer.send_batch([b"%d" % n], wait=False) for n in range(2))
    first = transport.stream()
    written(first, 2)
    refusal = InvalidArgument("no", field="payload")
    first.refuse(refusal)
    first.refuse(refusal)
    second = transport.stream(1)
    # Its number was not used, so the next one takes it.
    assert [header["sequence"] for header, _ in written(second, 1)] == [1]
    second.answer(1)
    with pytest.raises(InvalidArgument, match="no"):
        bad.result(5)
    assert good.result(5).all_ok
    assert producer.failed == 1


def test_a_forgotten_producer_takes_another_name(
    transport: FakeTransport, producer: Producer
) -> None:
    receipt = producer.send(b"0")
    first = transport.stream()
    written(first, 1)
    first.refuse(UnknownProducer("who?"))
    second = transport.stream(1)
    assert written(second, 1)[0][0]["sequence"] == 1
    assert second.descriptor["producer"] != first.descriptor["producer"]
    second.answer(1)
    assert receipt.result(5).ok


def test_a_forgotten_producer_can_not_repeat_what_may_have_happened(
    transport: FakeTransport, producer: Producer
) -> None:
    receipt = producer.send(b"0")
    first = transport.stream()
    written(first, 1)
    first.lose()
    second = transport.stream(1)
    written(second, 1)
    second.refuse(UnknownProducer("who?"))
    with pytest.raises(UnknownProducer):
        receipt.result(5)


def test_a_topic_that_is_gone_fails_what_is_under_way(
    transport: FakeTransport, producer: Producer
) -> None:
    receipt = producer.send(b"0")
    stream = transport.stream()
    written(stream, 1)
    stream.broken = True
    stream.end(NotFound("no topic"))
    with pytest.raises(NotFound):
        receipt.result(5)


def test_a_topic_that_was_never_there_fails_at_once(
    transport: FakeTransport, producer: Producer
) -> None:
    def refuse(stream: FakeStream) -> None:
        raise NotFound("no topic")

    transport.on_open = refuse
    with pytest.raises(NotFound):
        producer.send(b"0").result(5)


def test_after_the_deadline_a_send_fails_and_the_rest_goes_on(transport: FakeTransport) -> None:
    producer = Producer(transport, "emails", deadline="1s")
    receipt = producer.send(b"0")
    first = transport.stream()
    written(first, 1)
    with pytest.raises(TimedOut):
        receipt.result(5)
    later = producer.send(b"1")
    second = transport.stream(1)
    # The first may have been carried out: its number can't be used for another batch.
    assert second.descriptor["producer"] != first.descriptor["producer"]
    assert written(second, 1)[0][0]["sequence"] == 1
    second.answer(1)
    assert later.result(5).ok
    producer.close()


def test_at_the_buffers_limit_send_waits_and_then_refuses(transport: FakeTransport) -> None:
    producer = Producer(transport, "emails", buffer_rows=10, max_block="20ms", deadline="1m")
    producer.send_batch([b"x"] * 10, wait=False)
    with pytest.raises(Overloaded) as refused:
        producer.send(b"y")
    assert refused.value.details["rows"] == 10
    stream = transport.stream()
    written(stream, 1)
    stream.answer(10)
    eventually(lambda: not producer._box.machine.full)
    producer.send(b"z")
    producer._box.close()


def test_room_lets_a_waiting_send_through(transport: FakeTransport) -> None:
    producer = Producer(transport, "emails", buffer_rows=10, max_block="30s")
    producer.send_batch([b"x"] * 10, wait=False)
    stream = transport.stream()
    written(stream, 1)
    sent: list[Any] = []
    thread = threading.Thread(target=lambda: sent.append(producer.send(b"y")))
    thread.start()
    eventually(lambda: producer._box._room._waiters)
    assert not sent
    stream.answer(10)
    thread.join(10)
    assert len(sent) == 1
    producer._box.close()


def conflict(stream: FakeStream) -> None:
    stream.tell({"status": [["conflict", 1]], "ids": [[5, 1]], "versions": [[3, 1]]})


def test_an_unread_failure_stops_no_other_send_and_is_raised_once_by_flush(
    transport: FakeTransport, producer: Producer
) -> None:
    producer.send(b"0", key="k")
    stream = transport.stream()
    written(stream, 1)
    conflict(stream)
    eventually(lambda: producer.unread_failures)
    receipt = producer.send(b"1")
    written(stream, 2)
    stream.answer(1)
    assert receipt.result(5).ok
    pending = producer.send_batch([b"2"], wait=False)
    written(stream, 3)
    stream.answer(1)
    assert pending.result(5).all_ok
    with pytest.raises(RowsFailed) as told:
        producer.flush(5)
    failure = told.value.failures[0]
    assert (failure["status"], failure["id"], failure["topic"]) == ("conflict", 5, "emails")
    assert (failure["key"], failure["operation"]) == ("k", "send")
    producer.flush(5)
    assert (producer.failed, producer.unread_failures) == (1, 1)


def test_keeping_what_is_there_is_no_failure(transport: FakeTransport, producer: Producer) -> None:
    producer.send(b"0", key="k", on_conflict="keep")
    stream = transport.stream()
    written(stream, 1)
    stream.tell({"status": [["duplicate", 1]], "ids": [[5, 1]], "versions": [[3, 1]]})
    producer.send_batch([b"1", b"2"], key=["k", "l"], on_conflict="keep", wait=False)
    written(stream, 2)
    stream.tell(
        {"status": [["duplicate", 1], ["not_owner", 1]], "ids": [[5, 2]], "versions": [[3, 2]]}
    )
    with pytest.raises(RowsFailed) as told:
        producer.flush(5)
    assert [(each["key"], each["status"]) for each in told.value.failures] == [("l", "not_owner")]
    assert (producer.failed, producer.unread_failures) == (1, 1)


def test_failures_that_somebody_looks_at_are_not_raised(
    transport: FakeTransport, producer: Producer
) -> None:
    receipts = [producer.send(b"0", key="k")]
    stream = transport.stream()
    written(stream, 1)
    conflict(stream)
    eventually(lambda: producer.failed)
    # Whoever keeps the receipt may still look.
    receipts.append(producer.send(b"1"))
    written(stream, 2)
    stream.answer(1)
    producer.flush(5)
    assert [receipt.result(5).status for receipt in receipts] == ["conflict", "ok"]
    del receipts
    gc.collect()
    producer.flush(5)


def test_a_receipt_thrown_away_after_the_answer_tells_too(
    transport: FakeTransport, producer: Producer
) -> None:
    receipt = producer.send(b"0", key="k")
    stream = transport.stream()
    written(stream, 1)
    conflict(stream)
    eventually(lambda: producer.failed)
    assert receipt.done
    assert "conflict" in repr(receipt)
    del receipt
    with pytest.raises(RowsFailed):
        producer.flush(5)


def test_a_batch_nobody_looked_at_tells_at_close(transport: FakeTransport) -> None:
    producer = Producer(transport, "emails")
    producer.send_batch([b"0", b"1"], wait=False)
    stream = transport.stream()
    written(stream, 1)
    stream.tell({"status": [["ok", 1], ["conflict", 1]], "ids": [[1, 2]], "versions": [[1, 2]]})
    with pytest.raises(RowsFailed) as told:
        producer.close(5)
    assert [failure["row"] for failure in told.value.failures] == [1]
    with pytest.raises(Closed):
        producer.send(b"2")


def test_closing_without_an_answer_says_so(transport: FakeTransport) -> None:
    producer = Producer(transport, "emails")
    receipt = producer.send(b"0")
    written(transport.stream(), 1)
    with pytest.raises(TimedOut):
        producer.close(0.01)
    with pytest.raises(Closed):
        receipt.result(5)


def test_an_answer_that_does_not_come_in_time(transport: FakeTransport, producer: Producer) -> None:
    receipt = producer.send(b"0")
    with pytest.raises(TimedOut):
        receipt.result(0.01)
    with pytest.raises(TimedOut):
        producer.flush(0.01)
    stream = transport.stream()
    written(stream, 1)
    stream.refuse(OutcomeUnknown("who knows", retry_after_us=1))
    second = transport.stream(1)
    written(second, 1)
    second.answer(1)
    assert receipt.result(5).ok


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"payload": "text"}, "payload"),
        ({"payload": b"x" * (1 << 21)}, "payload"),
        ({"payload": b"", "key": ""}, "key"),
        ({"payload": b"", "key": "ä" * 300}, "key"),
        ({"payload": b"", "key": "\ud800"}, "key"),
        ({"payload": b"", "key": 5}, "key"),
        ({"payload": b"", "headers": {"a": 1}}, "headers"),
        ({"payload": b"", "headers": {"a": "x" * 20_000}}, "headers"),
        ({"payload": b"", "delay": "soon"}, "delay"),
        ({"payload": b"", "delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, "at"),
        ({"payload": b"", "at": datetime(2030, 1, 1)}, "at"),  # noqa: DTZ001
        ({"payload": b"", "on_conflict": "maybe"}, "on_conflict"),
    ],
)
def test_bad_input_is_refused_on_the_spot(
    transport: FakeTransport, producer: Producer, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        producer.send(**arguments)
    assert refused.value.field == field
    producer.flush(5)
    assert not transport.streams


def test_batches_of_many_kinds_of_columns(transport: FakeTransport, producer: Producer) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    now_us = int(now.timestamp() * 1_000_000)
    table = pa.table(
        {"payload": [b"a", b"b"], "due": pa.array([now, now], pa.timestamp("ns", "UTC"))}
    )
    given: list[dict[str, Any]] = [
        {"payloads": [b"a", b"b"], "due": np.array([now_us, now_us])},
        {"payloads": [b"a", b"b"], "due": [now, now_us]},
        {"payloads": pa.array([b"a", b"b"]), "due": now},
        {"payloads": table},
        {"payloads": table.to_batches()[0]},
    ]
    for arguments in given:
        producer.send_batch(**arguments, wait=False)
    stream = transport.stream()
    for _, batch in written(stream, len(given)):
        assert batch.column("payload").to_pylist() == [b"a", b"b"]
        assert batch.column("due_us").to_pylist() == [now_us, now_us]
    for _ in given:
        stream.answer(2)
    producer.flush(5)
    assert len(producer.send_batch([])) == 0


def test_delays_of_many_kinds(transport: FakeTransport, producer: Producer) -> None:
    second = np.array([1, 2], dtype="timedelta64[s]")
    for delay in ([1, "2s"], np.array([1.0, 2.0]), pa.array(second), second):
        producer.send_batch([b"a", b"b"], delay=delay, wait=False)
    stream = transport.stream()
    for _, batch in written(stream, 4):
        assert batch.column("delay_us").to_pylist() == [1_000_000, 2_000_000]
    for _ in range(4):
        stream.answer(2)
    producer.flush(5)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"payloads": ["text", 5]}, "payload"),
        ({"payloads": [None]}, "payload"),
        ({"payloads": [b"a"], "due": [1, 2]}, "due_us"),
        ({"payloads": [b"a"], "due": [datetime(2030, 1, 1)]}, "due"),  # noqa: DTZ001
        ({"payloads": [b"a"], "due": pa.array([1], pa.timestamp("us"))}, "due"),
        ({"payloads": pa.table({"body": [b"a"]})}, "body"),
        ({"payloads": pa.table({"payload": [b"a"], "due_us": [1]}), "due": 5}, "due"),
        ({"payloads": [b"a", b"b"], "key": "same"}, "key"),
    ],
)
def test_bad_batches_are_refused_on_the_spot(
    producer: Producer, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        producer.send_batch(**arguments)
    assert refused.value.field == field


def test_large_batches_go_in_pieces_unless_atomic(
    transport: FakeTransport, producer: Producer
) -> None:
    producer.send_batch([b"x"] * 40_000, wait=False)
    producer.send_batch([b"x"] * 40_000, atomic=True, wait=False)
    stream = transport.stream()
    sizes = [batch.num_rows for _, batch in written(stream, 4)]
    assert sizes == [16_384, 16_384, 40_000 - 2 * 16_384, 40_000]
    assert stream.sent[3][0]["atomic"] is True
    for size in sizes:
        stream.answer(size)
    producer.flush(5)


def test_wide_headers_do_not_make_a_batch_too_large(
    transport: FakeTransport, producer: Producer
) -> None:
    producer.send(b"0")
    stream = transport.stream()
    written(stream, 1)
    wide = {"wide": "x" * 16_000}
    for _ in range(1_000):
        producer.send(b"", headers=wide)
    stream.answer(1)
    second = transport.stream(1)
    rows = number = 0
    while rows < 1_000:
        number += 1
        _, batch = written(second, number)[number - 1]
        assert batch.nbytes < 8 << 20
        rows += batch.num_rows
        second.answer(batch.num_rows)
    producer.flush(5)
    assert number >= 3


class Settles:
    """Rows whose receipts were thrown away; the answer comes at the moment before one is put in."""

    def __init__(self, parcel: Shipment, answer: Callable[[], None]) -> None:
        self._parcel, self._answer = parcel, answer
        self.rows: deque[int] = deque()

    def append(self, row: int) -> None:
        self._answer()
        self.rows.append(row)

    def extend(self, rows: Sequence[int]) -> None:
        self._answer()
        self.rows.extend(rows)

    def popleft(self) -> int:
        return self.rows.popleft()

    def __bool__(self) -> bool:
        return bool(self.rows)


@pytest.mark.parametrize("of", ["receipt", "batch"])
def test_a_receipt_that_is_thrown_away_while_its_answer_comes(of: str) -> None:
    """Somebody is told, and once."""
    failures = Failures("emails")
    parcel = Shipment("reject", failures)
    parcel.rows = 2
    parcel.dropped = Settles(  # type: ignore[assignment]
        parcel, lambda: parcel.settle(None, NotFound("there is no such topic"))
    )
    if of == "receipt":
        receipt = Receipt(parcel, 1)
        del receipt
    else:
        parcel.abandon()
    gc.collect()
    with pytest.raises(RowsFailed) as failed:
        failures.throw()
    rows = [each["row"] for each in failed.value.failures]
    assert rows == ([1] if of == "receipt" else [0, 1])
    assert failures.count == 2


def test_flush_waits_for_an_answer_that_is_overtaken_by_a_later_one(
    transport: FakeTransport, producer: Producer
) -> None:
    """Two streams' threads bring them; the slower one has the first."""
    box = producer._box
    settle, gate, inside = box._settle, threading.Event(), threading.Event()

    def slowly(parcel: Shipment, *given: Any) -> None:
        if parcel.number == 1:
            inside.set()
            assert gate.wait(20)
        settle(parcel, *given)

    box._settle = slowly  # type: ignore[method-assign]
    first = producer.send(b"1")
    stream = transport.stream()
    written(stream, 1)
    reading = threading.Thread(target=lambda: stream.answer(1), daemon=True)
    reading.start()
    assert inside.wait(20)
    with box.lock:
        mark = box.machine.mark()
    # Another column: it goes by another stream.
    second = producer.send_batch([b"2"], key=["k"], wait=False)
    written(transport.stream(1), 1)
    transport.stream(1).answer(1)
    assert second.result(5).all_ok
    eventually(lambda: len(box.machine._unsettled) == 1)
    assert not box.machine.answered(mark)
    gate.set()
    reading.join(20)
    assert box.machine.answered(mark)
    producer.flush(5)
    assert first.result(5).ok
    assert box.settled


def test_who_waits_for_a_receipt_waits_as_long_as_for_any_call(
    transport: FakeTransport, producer: Producer
) -> None:
    transport.timeout_s = 0.01
    receipt = producer.send(b"0")
    written(transport.stream(), 1)
    with pytest.raises(TimedOut, match=r"within 0.01 s; .* connect\(timeout=...\) waits longer"):
        receipt.result()
    # It goes on, and who asks for longer waits longer.
    transport.stream().answer(1)
    assert receipt.result("20s").ok


def test_a_producer_that_is_over_says_so(transport: FakeTransport, producer: Producer) -> None:
    producer.send(b"a")
    stream = transport.stream()
    written(stream, 1)
    stream.answer(1)
    producer.flush(5)
    producer.close()
    assert [header for header, batch in stream.sent if batch is None] == [{"end": True}]


def test_a_producer_whose_batches_may_still_arrive_does_not_say_so(
    transport: FakeTransport, producer: Producer
) -> None:
    """What the lost stream still has would be taken for new under a name that was forgotten."""
    producer.send(b"a")
    first = transport.stream()
    written(first, 1)
    first.lose()
    second = transport.stream(1)
    written(second, 1)
    second.answer(1)
    producer.flush(5)
    producer.close()
    assert all(batch is not None for _, batch in first.sent + second.sent)


def test_a_fork_has_no_last_words_of_its_parent(
    transport: FakeTransport, producer: Producer
) -> None:
    """Another stream may have the number of one that was the parent's, and its batches linger."""
    box = producer._box
    producer.send(b"a")
    written(transport.stream(), 1)
    transport.stream().answer(1)
    producer.flush(5)
    with box.lock:
        box.machine._end_producer()
        box.wake()
    assert [last_word for _, last_word in box._abandoned] == [True]
    with box.lock:
        box._forked()
    assert not box._abandoned
