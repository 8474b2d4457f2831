"""The SDK's shells in virtual time without a thread: a producer and a consumer lose a broker and come back.

The broker is played by the test. Pauses between tries are drawn from the runtime and pass in no time, so
the same seed gives the same moments.
"""

from __future__ import annotations

import threading
from typing import Any

from fasti.client.consumer import Consumer
from fasti.client.producer import Producer
from fasti.client.transport import Content
from fasti.errors import Unavailable
from fasti.runtime import ENDED
from tests.simulation.runtime import SimulatedRuntime
from tests.unit.client.fakes import FakeStream, FakeTransport, payloads_of

AWAY_S = 20.0


class AbsentBroker:
    """Refuses every stream for a while, then answers."""

    def __init__(self, seed: int) -> None:
        self.runtime = SimulatedRuntime(seed)
        self.transport = FakeTransport()
        self.transport.runtime = self.runtime
        self.transport.on_open = self._open
        self.tries_us: list[int] = []

    def _open(self, stream: FakeStream) -> None:
        self.tries_us.append(self.runtime.clock.tick())
        if self.runtime.monotonic() < AWAY_S:
            raise Unavailable("away")
        if stream.descriptor["call"] == "consume":
            stream.accept_all()
            lease = self.runtime.condition()
            self.runtime.thread("broker", lambda: None, lambda: self._lease(stream), lease).start()
            return

        def answer(header: dict[str, Any], content: Content) -> None:
            if content is not None:
                stream.answer(len(payloads_of(content)))

        stream.on_send = answer

    def _lease(self, stream: FakeStream) -> float:
        if not stream.sent:
            return 0.001
        stream.lease(7, [1, 2, 3], [1] * 3)
        return ENDED


def produce(seed: int) -> list[int]:
    broker = AbsentBroker(seed)
    producer = Producer(broker.transport, "emails")
    producer.send(b"one")
    producer.send(b"two")
    producer.flush()
    (stream,) = broker.transport.streams
    assert stream.rows() == [b"one", b"two"]
    producer.close()
    return broker.tries_us


def consume(seed: int) -> list[int]:
    broker = AbsentBroker(seed)
    consumer = Consumer(broker.transport, "emails", name="worker", prefetch=10)
    messages = consumer.take(3, timeout="60s")
    assert [message.id for message in messages] == [1, 2, 3]
    for message in messages:
        message.ack()
    consumer.flush()
    consumer.close()
    return broker.tries_us


def test_a_producer_comes_back_at_the_same_moments_for_the_same_seed() -> None:
    threads = threading.active_count()
    tries_us = produce(1)
    assert len(tries_us) > 5
    assert tries_us == produce(1) != produce(2)
    assert threading.active_count() == threads


def test_a_consumer_comes_back_at_the_same_moments_for_the_same_seed() -> None:
    threads = threading.active_count()
    tries_us = consume(1)
    assert len(tries_us) > 5
    assert tries_us == consume(1) != consume(2)
    assert threading.active_count() == threads


def test_who_writes_is_for_the_seed_to_decide_and_never_the_caller() -> None:
    broker = AbsentBroker(1)
    producer = Producer(broker.transport, "emails")
    producer.send(b"one")
    producer.flush()
    broker.runtime.sleep(1.0)
    (stream,) = broker.transport.streams
    producer.send(b"two")
    assert stream.rows() == [b"one"]
    producer.flush()
    assert stream.rows() == [b"one", b"two"]
    producer.close()
