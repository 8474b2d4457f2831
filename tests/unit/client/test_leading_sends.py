"""Callers who write what they send by themselves: what they may, and what becomes of it if they are interrupted."""

from __future__ import annotations

import linecache
import queue
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from fasti.client import outbox
from fasti.client.embedded_transport import _ProduceStream
from fasti.client.machines.producer import Step
from fasti.client.producer import Producer
from fasti.client.transport import Content
from fasti.errors import Unavailable
from tests.unit.client.fakes import FakeStream, FakeTransport, eventually, payloads_of

WAIT_S = 20.0


class Interrupted(BaseException):
    """What a handler of signals raises."""


@pytest.fixture
def transport() -> FakeTransport:
    made = FakeTransport()
    made.on_network = True
    return made


@pytest.fixture
def producer(transport: FakeTransport) -> Iterator[Producer]:
    """One that has a stream, and nothing under way."""
    made = Producer(transport, "emails")
    made.send(b"first")
    stream = transport.stream()
    eventually(lambda: stream.sent)
    stream.answer(1)
    eventually(lambda: made.outbox._sleeping and made.outbox.machine.idle)
    yield made
    made.outbox.close()


def note_threads(stream: FakeStream) -> list[int]:
    """Which thread wrote."""
    seen: list[int] = []
    stream.on_send = lambda header, batch: seen.append(threading.get_ident())
    return seen


def check_sent_again(transport: FakeTransport, producer: Producer, *payloads: bytes) -> None:
    """On another stream, and answered."""
    stream = transport.stream(1)
    eventually(lambda: stream.rows() == list(payloads))
    stream.answer(len(payloads))
    producer.flush(timeout=WAIT_S)


def interrupt(*given: Any) -> None:
    raise Interrupted


def test_a_small_send_is_written_by_the_caller(
    transport: FakeTransport, producer: Producer
) -> None:
    seen = note_threads(transport.stream())
    producer.send(b"x" * 1000)
    assert seen == [threading.get_ident()]


def test_lone_sends_are_all_written_by_the_caller_and_nobody_else_is_woken(
    transport: FakeTransport, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, stream = producer.outbox, transport.stream()
    seen = note_threads(stream)
    turns: list[None] = []
    turn = box._turn
    monkeypatch.setattr(box, "_turn", lambda wait=False: (turns.append(None), turn(wait))[1])
    for _ in range(20):
        receipt = producer.send(b"x")
        stream.answer(1)
        assert receipt.result(WAIT_S).status == "ok"
    assert seen == [threading.get_ident()] * 20
    assert not turns


def test_what_came_behind_a_lone_send_goes_when_that_is_answered(
    transport: FakeTransport, producer: Producer
) -> None:
    stream = transport.stream()
    first, second = producer.send(b"x"), producer.send(b"y")
    stream.answer(1)
    eventually(lambda: stream.rows()[-1] == b"y")
    stream.answer(1)
    assert first.result(WAIT_S).status == second.result(WAIT_S).status == "ok"


def test_the_main_thread_leaves_a_broker_in_its_process_to_the_sending_thread(
    transport: FakeTransport, producer: Producer
) -> None:
    transport.on_network = False
    seen = note_threads(transport.stream())
    producer.send(b"x")
    (sending,) = eventually(lambda: seen)
    assert sending != threading.get_ident()
    transport.stream().answer(1)
    eventually(lambda: producer.outbox._sleeping and producer.outbox.machine.idle)
    other = threading.Thread(target=producer.send, args=(b"y",))
    other.start()
    other.join(WAIT_S)
    assert seen == [sending, other.ident]


def test_what_might_have_to_wait_for_the_broker_is_left_to_the_sending_thread(
    transport: FakeTransport, producer: Producer
) -> None:
    seen = note_threads(transport.stream())
    producer.send(b"x" * 100_000)
    assert eventually(lambda: seen) != [threading.get_ident()]


def test_a_caller_who_is_interrupted_before_it_writes_leaves_it_to_the_sending_thread(
    transport: FakeTransport, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer.outbox, "lead", interrupt)
    with pytest.raises(Interrupted):
        producer.send(b"x")
    check_sent_again(transport, producer, b"x")


def test_a_caller_who_is_interrupted_while_it_writes_has_it_sent_again(
    transport: FakeTransport, producer: Producer
) -> None:
    transport.stream().on_send = interrupt
    with pytest.raises(Interrupted):
        producer.send(b"x")
    check_sent_again(transport, producer, b"x")


class Interrupter:
    """Raises at a line of what a caller that may lead does, as a signal's handler might."""

    def __init__(self, place: int) -> None:
        self._left, self._leads, self.has_raised = place, False, False

    def trace(self, frame: FrameType, event: str, given: Any) -> Any:
        self._leads |= frame.f_code is outbox.Outbox.begin_to_lead.__code__
        if not frame.f_code.co_filename.endswith(("client/outbox.py", "/producer.py")):
            return None
        if event == "line" and self._leads and not _is_with(frame):
            self._left -= 1
            if self._left < 0:
                self.has_raised = True
                raise Interrupted
        return self.trace

    def send(self, producer: Producer, payload: bytes) -> None:
        before = sys.gettrace()
        sys.settrace(self.trace)
        try:
            producer.send(payload)
        except Interrupted:
            pass
        finally:
            sys.settrace(before)


def _is_with(frame: FrameType) -> bool:
    """Whether it may be the end of a block that holds a lock: no signal is looked at there."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.lstrip().startswith("with ")


def test_a_caller_who_is_interrupted_anywhere_loses_and_repeats_nothing(
    transport: FakeTransport, producer: Producer
) -> None:
    box = producer.outbox
    unanswered: queue.SimpleQueue[tuple[FakeStream, int]] = queue.SimpleQueue()
    # By the producer's name and the batch's number: what comes twice under these is carried out once.
    carried_out: dict[tuple[str, int], list[bytes]] = {}

    def prepare(stream: FakeStream) -> None:
        def note(header: dict[str, Any], content: Content) -> None:
            if content is not None:
                name = (stream.descriptor["producer"], header["sequence"])
                carried_out[name] = payloads_of(content)
                unanswered.put((stream, len(carried_out[name])))

        stream.on_send = note

    def answer() -> None:
        while True:
            stream, rows = unanswered.get()
            if not rows:
                return
            stream.answer(rows)

    prepare(transport.stream())
    transport.on_open = prepare
    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    sent: list[bytes] = []
    is_over = False
    while not is_over:
        sent.append(b"%d" % len(sent))
        interrupter = Interrupter(len(sent) - 1)
        interrupter.send(producer, sent[-1])
        is_over = not interrupter.has_raised
        producer.flush(timeout=WAIT_S)
        eventually(lambda: box._sleeping and box.machine.idle)
    assert len(sent) > 50
    assert [payload for rows in carried_out.values() for payload in rows] == sent
    unanswered.put((transport.stream(), 0))
    answering.join(WAIT_S)


def test_a_caller_who_is_interrupted_again_at_once_holds_nobody_up(
    transport: FakeTransport, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer.outbox, "lead", interrupt)
    monkeypatch.setattr(producer.outbox, "interrupted", interrupt)
    with pytest.raises(Interrupted):
        producer.send(b"x")
    producer.send(b"y")
    stream = transport.stream()
    stream.on_send = lambda header, content: stream.answer(len(payloads_of(content)) or 1)
    producer.flush(timeout=WAIT_S)
    assert stream.rows() == [b"first", b"x", b"y"]


def test_an_interrupt_right_after_a_write_takes_nothing_from_the_next_leader(
    transport: FakeTransport, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = producer.outbox
    lead = box.lead

    def be_interrupted_late(step: Any) -> None:
        lead(step)
        box.led = other
        raise Interrupted

    other = Step[Any]("write")
    monkeypatch.setattr(box, "lead", be_interrupted_late)
    with pytest.raises(Interrupted):
        producer.send(b"x")
    assert box.led is other
    assert len(transport.streams) == 1
    box.led = None


def test_a_caller_never_connects(
    transport: FakeTransport, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = producer.outbox
    lead = box.lead
    opened: list[int] = []
    transport.on_open = lambda stream: opened.append(threading.get_ident())

    def lose_first(step: Any) -> None:
        transport.stream().lose()
        lead(step)

    monkeypatch.setattr(box, "lead", lose_first)
    producer.send(b"x")
    check_sent_again(transport, producer, b"x")
    assert threading.get_ident() not in opened


def test_a_caller_whose_stream_ends_while_it_writes_hears_of_it_at_once(
    transport: FakeTransport, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_LAST_WORD_S", 600.0)
    stream, work = transport.stream(), producer.outbox._work
    stream.broken = True
    sending = threading.Thread(target=lambda: producer.send(b"x"), daemon=True)
    sending.start()
    # The sending thread sleeps, and the caller waits for the stream's last word.
    eventually(lambda: len(work._waiters) == 2)  # type: ignore[attr-defined]
    stream.end(Unavailable("gone"))
    sending.join(WAIT_S)
    assert not sending.is_alive()
    check_sent_again(transport, producer, b"x")


class FakeIntake:
    """Answers at once whoever may take the receipt."""

    def put(
        self, metadata: dict[str, Any], batch: pa.RecordBatch, waited: bool
    ) -> dict[str, Any] | None:
        return {"batch": 0} if waited else None


def test_the_main_thread_takes_no_receipt_from_a_broker_in_its_process() -> None:
    # A handler of signals that raised in the middle of it would lose the receipt.
    seen: list[int] = []
    stream = _ProduceStream(
        FakeIntake(),  # type: ignore[arg-type]
        lambda receipt: seen.append(threading.get_ident()),
        lambda error: None,
        lambda stream: None,
    )
    batch = pa.record_batch({"payload": [b"x"]})
    stream.send({}, batch)
    assert seen == []
    other = threading.Thread(target=stream.send, args=({}, batch))
    other.start()
    other.join(WAIT_S)
    assert seen == [other.ident]
