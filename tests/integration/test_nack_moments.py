"""A message that failed comes again when its consumer says, and the attempt counts all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

import fasti
import fasti.aio
from fasti.errors import InvalidArgument
from fasti.testing import VirtualBroker

MINUTE = timedelta(minutes=1)


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as made:
        yield made


@pytest.fixture
def client(broker: VirtualBroker) -> fasti.Client:
    made = broker.client()
    made.create_topic("jobs", max_attempts=2, retry=fasti.Backoff("10h", limit="10h"))
    return made


def send(client: fasti.Client, count: int, topic: str = "jobs") -> None:
    client.producer(topic).send_batch([b"%d" % number for number in range(count)])


def due_in(broker: VirtualBroker, client: fasti.Client) -> list[timedelta]:
    due = client.messages("jobs").list()["due_us"].to_pylist()
    now_us = round(broker.now.timestamp() * 1_000_000)
    return [timedelta(microseconds=each - now_us) for each in sorted(due)]


def test_by_delay_by_moment_and_by_the_topic(broker: VirtualBroker, client: fasti.Client) -> None:
    send(client, 4)
    later = broker.now + 3 * MINUTE
    with client.consumer("jobs", timeout="5s") as consumer:
        one, two, three, four = (next(consumer) for _ in range(4))
        assert one.nack("why", delay="1m", wait=True).status == "ok"
        two.nack("why", at=later, wait=True)
        three.nack("why", due=round(later.timestamp() * 1_000_000), wait=True)
        four.nack("why", wait=True)
        assert due_in(broker, client)[:3] == [MINUTE, 3 * MINUTE, 3 * MINUTE]
        # The topic's own delay, of which a part is left to chance.
        assert due_in(broker, client)[3] > timedelta(hours=1)
        broker.advance("1m")
        again = next(consumer)
        assert (again.id, again.attempts, again.last_reason) == (one.id, 2, "why")
        assert again.attempts == again.attempts_max
        # The last attempt: dead, whatever is said.
        again.nack("why not", delay="1m", wait=True)
    assert client.messages("jobs").count()["dead"] == 1


def test_rows_of_a_batch(broker: VirtualBroker, client: fasti.Client) -> None:
    send(client, 4)
    consumer = client.consumer("jobs", timeout="5s")
    batch = next(consumer.batches(4))
    assert len(batch) == 4
    batch.nack([True, False, False, False], "why", delay="1m")
    batch.nack([False, True, False, False], "why", delay="2m")
    batch.nack([False, False, True, True], "why", at=broker.now + 3 * MINUTE)
    consumer.close()
    assert due_in(broker, client) == [MINUTE, 2 * MINUTE, 3 * MINUTE, 3 * MINUTE]


def test_in_a_transaction(broker: VirtualBroker, client: fasti.Client) -> None:
    send(client, 1)
    with client.consumer("jobs", timeout="5s") as consumer:
        with client.transaction() as tx:
            tx.nack(next(consumer), "why", delay="1m")
        assert due_in(broker, client) == [MINUTE]


def test_in_a_group_of_a_log(broker: VirtualBroker, client: fasti.Client) -> None:
    client.create_topic("events", kind="log")
    send(client, 1, "events")
    with client.consumer("events", group="billing", timeout="5s") as consumer:
        next(consumer).nack("why", delay="1m", wait=True)
        broker.advance("59s")
        assert consumer.take(1, timeout="10ms") == []
        broker.advance("1s")
        assert next(consumer).attempts == 2


def test_by_tasks(broker: VirtualBroker, client: fasti.Client) -> None:
    send(client, 3)

    async def main() -> None:
        asynchronous = fasti.aio.Client(broker.client())
        async with asynchronous.consumer("jobs", timeout="5s") as consumer:
            await (await anext(consumer)).nack("why", delay="1m", wait=True)
            await (await anext(consumer)).nack("why", at=broker.now + 2 * MINUTE, wait=True)
            batches = consumer.batches(1)
            await (await anext(batches)).nack(None, "why", delay="3m", wait=True)
        await asynchronous.close()

    asyncio.run(main())
    assert due_in(broker, client) == [MINUTE, 2 * MINUTE, 3 * MINUTE]


def test_two_moments_are_refused(client: fasti.Client) -> None:
    send(client, 1)
    with client.consumer("jobs", timeout="5s") as consumer:
        message = next(consumer)
        with pytest.raises(InvalidArgument, match="delay"):
            message.nack("why", delay="1m", due=7)
        message.ack()
