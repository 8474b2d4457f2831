"""Producers and consumers over a broker that is killed, stopped, paused and started again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import RowsFailed, TimedOut
from tests.integration.serve_rig import SEGMENTS

PATIENCE_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SEGMENTS) as started:
        yield started


def eventually(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)
    return found


class Producing:
    """Sends numbered messages until it is told to stop; keeps what was acknowledged."""

    def __init__(self, address: str, owner: str) -> None:
        self.owner = owner
        self.acknowledged: dict[bytes, int] = {}
        self.sent = 0
        self._stop = threading.Event()
        self._address = address
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with fasti.connect(self._address, owner=self.owner) as client:
            with client.producer("work", deadline="1m") as producer:
                # At a rate that leaves the others time on a busy machine.
                while not self._stop.wait(0.01):
                    names = [b"%s-%d" % (self.owner.encode(), self.sent + n) for n in range(50)]
                    self.sent += 50
                    receipts = [producer.send(name, delay="20ms") for name in names]
                    for name, receipt in zip(names, receipts, strict=True):
                        self.acknowledged[name] = receipt.result(timeout=PATIENCE_S).id

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


class Consuming:
    """Acks what it gets; keeps what it saw, how early, and how many it had at a time."""

    def __init__(self, address: str, name: str) -> None:
        self.seen: list[tuple[bytes, int, int]] = []
        self.earliest_us = 1 << 62
        self.error: Exception | None = None
        self._consumer: fasti.Consumer | None = None
        self._stop = threading.Event()
        self._address, self._name = address, name
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with fasti.connect(self._address) as client:
                consumer = client.consumer("work", name=self._name, timeout="200ms", prefetch=200)
                self._consumer = consumer
                while not self._stop.is_set():
                    for message in consumer:
                        now_us = time.time_ns() // 1000
                        self.earliest_us = min(self.earliest_us, now_us - message.due_us)
                        self.seen.append((message.payload, message.id, message.attempts))
                        message.ack()
                consumer.close(timeout=PATIENCE_S)
        except Exception as error:
            self.error = error

    @property
    def reconnections(self) -> int:
        return 0 if self._consumer is None else self._consumer.reconnections

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None, self.error


def test_killed_under_load_nothing_is_lost_early_or_twice(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("work", lease="2m", lookahead="50ms")
        producing = [Producing(broker.address, f"p{n}") for n in range(2)]
        consuming = [Consuming(broker.address, f"c{n}") for n in range(2)]
        for lost in (1, 2):
            before = sum(len(each.acknowledged) for each in producing)
            seen_by = [len(each.seen) for each in consuming]
            eventually(
                lambda before=before: sum(len(p.acknowledged) for p in producing) > before + 500
            )
            # Each of them is connected, so that each loses its connection.
            eventually(
                lambda then=seen_by: all(
                    len(c.seen) > n for c, n in zip(consuming, then, strict=True)
                )
            )
            broker.kill()
            broker.start()
            eventually(lambda lost=lost: all(c.reconnections >= lost for c in consuming))
        before = sum(len(each.seen) for each in consuming)
        eventually(lambda: sum(len(each.seen) for each in consuming) > before + 300)
        for each in producing:
            each.stop()
        acknowledged: dict[bytes, int] = {}
        for each in producing:
            acknowledged |= each.acknowledged
            assert len(each.acknowledged) == each.sent
        eventually(
            lambda: acknowledged.keys() <= {name for c in consuming for name, _, _ in c.seen}
        )
        for each in consuming:
            each.stop()
        seen = Counter(name for each in consuming for name, _, _ in each.seen)
        assert seen.keys() == acknowledged.keys()
        # Each consumer came back within its lease, and an ack that was repeated is no second
        # delivery: every message was handed to user code exactly once.
        assert set(seen.values()) == {1}
        assert {n: i for each in consuming for n, i, _ in each.seen} == acknowledged
        assert min(each.earliest_us for each in consuming) >= 0
        assert all(each.reconnections >= 2 for each in consuming)
        counts = client.messages("work").count()
        assert (counts["done"], counts["leased"], counts["ready"]) == (len(acknowledged), 0, 0)


def test_messages_in_hand_survive_a_restart_of_the_broker(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("work", lease="30s")
        client.producer("work").send_batch([b"a", b"b", b"c"])
        consumer = client.consumer("work", name="worker-1", timeout="60s")
        messages = [next(consumer) for _ in range(3)]
        tokens = [message.token for message in messages]
        messages[0].ack(wait=True, timeout=60)
        broker.kill()
        broker.start()
        eventually(lambda: messages[1].token != tokens[1])
        assert messages[1].ack(wait=True, timeout=60).ok  # type: ignore[union-attr]
        assert messages[2].nack("no", wait=True, timeout=60).ok  # type: ignore[union-attr]
        again = next(consumer)
        assert (again.id, again.attempts) == (messages[2].id, 2)
        again.ack()
        consumer.close()
        assert client.messages("work").count()["done"] == 3


def test_a_soft_restart_is_gone_through_without_a_failure(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("work", lease="30s")
        producing = Producing(broker.address, "p")
        consuming = Consuming(broker.address, "c")
        eventually(lambda: len(consuming.seen) > 300)
        broker.restart()
        before = len(consuming.seen)
        eventually(lambda: len(consuming.seen) > before + 300)
        producing.stop()
        eventually(lambda: len({name for name, _, _ in consuming.seen}) == producing.sent)
        consuming.stop()
        assert Counter(name for name, _, _ in consuming.seen).most_common(1)[0][1] == 1
        assert client.messages("work").count()["done"] == producing.sent


def test_a_lease_that_ended_while_the_consumer_was_away_is_told(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        # Nothing renews a lease beyond its hold: the other one has as long to say that it is done.
        client.create_topic("work", lease="3s", hold="3s", retry=fasti.Backoff("1ms", factor=1))
        client.producer("work").send(b"a").result(60)
        slow = client.consumer("work", name="slow", prefetch=1)
        message = next(slow)
        with client.consumer("work", name="quick", timeout="60s") as quick:
            again = next(quick)
            assert (again.id, again.attempts) == (message.id, 2)
            message.ack()
            with pytest.raises(RowsFailed) as told:
                slow.flush(timeout=60)
            assert told.value.failures[0]["status"] == "stale_lease"
            assert again.ack(wait=True, timeout=60).ok  # type: ignore[union-attr]
        slow.close()


def test_leases_renew_themselves_under_a_handler_that_computes(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("work", lease="2s")
        client.producer("work").send(b"a").result(60)
        with client.consumer("work", timeout="60s") as consumer:
            message = next(consumer)
            until = time.monotonic() + 4.5
            while time.monotonic() < until:
                sum(range(1_000))
            assert message.ack(wait=True, timeout=60).ok  # type: ignore[union-attr]
        assert client.messages("work").count()["done"] == 1


def test_a_message_beyond_its_time_limit_goes_to_another(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        client.create_topic("work", lease="2s")
        client.producer("work").send_batch([b"hung", b"fine"])
        stuck = client.consumer("work", name="stuck", prefetch=2, time_limit="100ms")
        hung = next(stuck)
        time.sleep(0.2)  # Now it is over its limit, and the next one isn't.
        with client.consumer("work", name="other", timeout="60s") as other:
            again = next(other)
            while again.payload != hung.payload:
                # Nobody took it for as long as a lease: that may be sooner than the other ends.
                assert again.attempts == 1
                again.release()
                again = next(other)
            assert again.attempts == 2
            again.ack()
        fine = next(stuck)
        assert fine.payload == b"fine"
        assert fine.ack(wait=True, timeout=60).ok  # type: ignore[union-attr]
        stuck.close()


def test_a_paused_broker_times_out_and_goes_on(broker: BrokerProcess) -> None:
    with (
        fasti.connect(broker.address) as client,
        fasti.connect(broker.address, timeout="3s") as impatient,
    ):
        client.create_topic("work")
        producer = client.producer("work")
        producer.send(b"a").result(60)
        broker.pause()
        try:
            receipt = producer.send(b"b")
            with pytest.raises(TimedOut):
                receipt.result(timeout="200ms")
            with pytest.raises(TimedOut):
                impatient.messages("work").cancel(id=1)
        finally:
            broker.resume()
        assert receipt.result(timeout=PATIENCE_S).ok
        assert eventually(lambda: client.messages("work").count()["ready"]) == 2
