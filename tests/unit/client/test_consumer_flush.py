"""What a flush of acks waits for, and what it doesn't: the test plays the broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.client.consumer import Consumer
from fasti.client.machines.returns import Requests, Return
from fasti.client.message import Message
from tests.unit.client.fakes import FakeStream, FakeTransport, eventually
from tests.unit.client.test_consumer import NOW_US, Taker, ready


class Broker:
    """A consumer's stream, whose returns have no answers until the test gives them."""

    def __init__(self) -> None:
        transport = FakeTransport()
        transport.on_open = self._answer_heartbeats
        self.consumer = Consumer(transport, "emails", prefetch=10)
        self._taker = Taker(self.consumer, transport)
        self.stream: FakeStream = ready(transport.stream())
        self.stream.lease(1, [1, 2, 3], [NOW_US] * 3)
        self.messages: list[Message] = self._taker.wait_for(3)
        self._answered = 0

    def _answer_heartbeats(self, stream: FakeStream) -> None:
        def answer(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
            if header["op"] == "heartbeat":
                beat = {"kind": "heartbeat", "request": header["request"], "held": 0}
                stream.arrived({**beat, "now_us": NOW_US}, None)

        stream.on_send = answer

    def requests(self) -> list[int]:
        """The numbers of those that were written."""
        return [header["request"] for header, _ in self.stream.of("ack")]

    def written(self, count: int) -> None:
        """Waits until so many were."""
        eventually(lambda: len(self.requests()) >= count)

    def answer(self) -> None:
        """The next one is well."""
        header, batch = self.stream.of("ack")[self._answered]
        self._answered += 1
        assert batch is not None
        self.stream.outcomes(header["request"], [["ok", batch.num_rows]])

    def flush(self) -> threading.Thread:
        """In a thread, which waits when this has returned."""
        thread = threading.Thread(target=self.consumer.flush, args=(20,), daemon=True)
        thread.start()
        answered: Any = self.consumer.session._answered
        eventually(lambda: len(answered._waiters) > 0)
        return thread


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.stream.accept_all()
    for request in made.requests()[made._answered :]:
        made.stream.outcomes(request, [["ok", 1]])
    made.consumer.close(timeout=5)


def test_a_flush_does_not_wait_for_what_is_acked_after_it(broker: Broker) -> None:
    """Under a load without gaps it would never end, nor would a change that flushes first."""
    first, second, _ = broker.messages
    first.ack()
    broker.written(1)
    flush = broker.flush()
    second.ack()
    broker.answer()
    flush.join(5)
    assert not flush.is_alive()


def test_a_flush_waits_for_acks_that_were_gathered_before_it(broker: Broker) -> None:
    first, second, _ = broker.messages
    first.ack()
    broker.written(1)
    second.ack()
    flush = broker.flush()
    broker.answer()
    broker.written(2)
    flush.join(0.1)
    assert flush.is_alive()
    broker.answer()
    flush.join(5)
    assert not flush.is_alive()


def test_what_is_sent_again_keeps_its_place() -> None:
    requests = Requests()
    segment: Any = (None, np.array([0]))
    first, second = (Return("nack", "why", [segment]) for _ in range(2))
    requests.add(first)
    mark = requests.added
    (written,) = requests.take_waiting()
    requests.begin(written, 0)
    requests.add(second)
    (later,) = requests.take_waiting()
    requests.begin(later, 0)
    assert not requests.answered_to(mark)
    requests.answer(1)
    assert requests.answered_to(mark)
    assert not requests.answered_to(requests.added)
    requests.retry(later)
    requests.retry(written)
    (both,) = requests.take_waiting()
    requests.begin(both, 0)
    assert not requests.answered_to(mark)
