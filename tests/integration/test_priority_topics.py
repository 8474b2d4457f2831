"""Priority topics as their user meets them: on a broker, inside this process, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import InvalidArgument, TransactionAborted
from fasti.testing.virtual import VirtualBroker


@pytest.fixture
def topic(client: fasti.Client, request: pytest.FixtureRequest) -> str:
    name = request.node.name.split("[")[0]
    client.create_topic(name, kind="priority")
    return str(name)


def test_sent_one_by_one_and_in_batches(client: fasti.Client, topic: str) -> None:
    with client.producer(topic) as producer:
        for priority in (9, 0, 5):
            producer.send(b"%d" % priority, priority=priority)
        producer.send(b"none")
        producer.send_batch([b"2", b"7"], priority=[2, 7])
        producer.send_batch([b"8"], priority=8)
        producer.send_batch(pa.table({"payload": [b"1"], "priority": [1]}))
        producer.send_batch([b"3"], priority=np.array([3], dtype=np.int64))
    with client.consumer(topic, timeout="60s") as consumer:
        got = [next(consumer) for _ in range(9)]
        assert [m.payload for m in got] == [b"0", b"none", b"1", b"2", b"3", b"5", b"7", b"8", b"9"]
        assert [m.priority for m in got] == [0, 0, 1, 2, 3, 5, 7, 8, 9]
        for message in got:
            message.ack()


def test_batches_are_in_order_too(client: fasti.Client, topic: str) -> None:
    priorities = np.random.default_rng(3).integers(0, 65_536, 12_000)
    now_us = client.clock.now_us()
    with client.producer(topic) as producer:
        due = now_us - np.arange(12_000)
        producer.send_batch([b""] * 12_000, priority=priorities, due=due)
    found: list[int] = []
    with client.consumer(topic, prefetch=12_000, timeout="60s") as consumer:
        for batch in consumer.batches(700, wait="100ms"):
            found += batch.table["priority"].to_pylist()
            batch.ack()
            if len(found) == 12_000:
                break
    assert found == sorted(priorities.tolist())


def test_other_priorities_for_what_is_pending(client: fasti.Client, topic: str) -> None:
    with client.producer(topic) as producer:
        for name in ("a", "b", "c"):
            producer.send(name.encode(), key=name, priority=5, headers={"h": name}, delay="1h")
    messages = client.messages(topic)
    assert messages.update(key="b", priority=1).version == 2
    assert messages.update(key=["a", "none"], priority=[3, 3]).status == ["ok", "not_found"]
    assert messages.update(key="c", payload=b"C", priority=2, version=7).status == "conflict"
    assert messages.update(key="c", payload=b"C", priority=2).version == 2
    listed = messages.list(payload=True)
    assert listed["priority"].to_pylist() == [3, 1, 2]
    assert listed["payload"].to_pylist() == [b"a", b"b", b"C"]
    assert [dict(h or ()) for h in listed["headers"].to_pylist()] == [{"h": "a"}, {"h": "b"}, {}]
    assert messages.get(key="b")["priority"] == 1


def test_in_transactions(client: fasti.Client, topic: str) -> None:
    with client.producer(topic) as producer:
        producer.send(b"a", key="a", priority=5, delay="1h")
    with client.transaction() as tx:
        tx.send(topic, b"b", key="b", priority=7, delay="1h")
        tx.update(topic, key="a", priority=6)
    tx = client.transaction()
    tx.update(topic, key="b", priority=0)
    tx.cancel(topic, key="nobody")
    with pytest.raises(TransactionAborted):
        tx.commit()
    assert client.messages(topic).list()["priority"].to_pylist() == [6, 7]


def test_what_is_no_priority(client: fasti.Client, topic: str) -> None:
    producer = client.producer(topic)
    for wrong in (-1, 65_536, "high", 1.5, True):
        with pytest.raises(InvalidArgument) as info:
            producer.send(b"", priority=wrong)  # type: ignore[arg-type]
        assert info.value.field == "priority"
    for wrong in ([1, 2], ["high"], [-1], [65_536]):
        with pytest.raises(InvalidArgument) as info:
            producer.send_batch([b""], priority=wrong)
        assert info.value.field == "priority"
    messages = client.messages(topic)
    with pytest.raises(InvalidArgument):
        messages.update(id=1)
    with pytest.raises(InvalidArgument):
        messages.update(id=1, priority=1, headers={"a": "b"})
    client.create_topic("plain")
    with pytest.raises(InvalidArgument) as info:
        client.producer("plain").send_batch([b""], priority=1)
    assert info.value.field == "priority"
    producer.close()


def test_asyncio(broker: BrokerProcess) -> None:
    async def main() -> list[tuple[int, bytes]]:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("aio", kind="priority", age_step="1h")
            async with client.producer("aio") as producer:
                await producer.send(b"mild", priority=9, key="m")
                await producer.send(b"urgent", priority=1)
                await producer.send_batch([b"first"], priority=[8], key=["f"])
            outcome = await client.messages("aio").update(key="f", priority=0)
            assert outcome.status == "ok"
            found = []
            async with client.consumer("aio", timeout="60s") as consumer:
                async for message in consumer:
                    found.append((message.priority, message.payload))
                    await message.ack(wait=True)
                    if len(found) == 3:
                        break
            return found

    assert asyncio.run(main()) == [(0, b"first"), (1, b"urgent"), (9, b"mild")]


def test_an_app_handles_the_most_urgent_first(broker: BrokerProcess) -> None:
    app = fasti.App(broker.address)
    seen: list[bytes] = []

    @app.on("app", prefetch=1, create={"kind": "priority"})
    def handle(payload: bytes) -> None:
        seen.append(payload)
        if len(seen) == 3:
            app.stop()

    app.client.create_topic("app", kind="priority")
    for priority in (5, 0, 9):
        handle.later(b"%d" % priority, priority=priority).result("60s")
    app.run()
    assert seen == [b"0", b"5", b"9"]


def test_hours_later_nobody_starves() -> None:
    with VirtualBroker() as broker:
        client = broker.client()
        client.create_topic("jobs", kind="priority", age_step="1m")
        client.create_topic("strict", kind="priority")
        for topic in ("jobs", "strict"):
            with client.producer(topic) as producer:
                producer.send(b"patient", priority=30)
        broker.advance(timedelta(minutes=31))
        for topic, first in (("jobs", b"patient"), ("strict", b"urgent")):
            with client.producer(topic) as producer:
                producer.send(b"urgent", priority=0)
            with client.consumer(topic, prefetch=1, timeout="60s") as consumer:
                assert next(consumer).payload == first
