"""Batches for tasks: full, or as full as the wait allows; none lost to a cancelled task."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from fasti.aio import Batch, Client
from fasti.client.machines.run import Run
from fasti.errors import Fenced, IllegalTransition, InvalidArgument
from fasti.testing.virtual import VirtualBroker
from tests.unit.aio.stories import leased, soon, tell, turns
from tests.unit.aio.test_aio_consumer import numbers, sent


def payloads(batch: Batch) -> list[bytes]:
    return batch.table.column("payload").to_pylist()


def test_a_full_batch_does_not_wait() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(250))
        async with client.consumer("t") as consumer:
            found = []
            async for batch in consumer.batches(100, wait="1h"):
                found += payloads(batch)
                batch.ack()
                if len(found) == 200:
                    break
            assert found == numbers(200)
            async for batch in consumer.batches(100, wait="1ms"):
                assert payloads(batch) == numbers(250)[200:]
                assert (await batch.ack(wait=True)).all_ok
                assert len(await batch.ack(wait=True)) == 0
                break
        assert (await client.messages("t").count())["done"] == 250

    tell(story)


def test_a_batch_waits_for_more_and_is_handed_over_when_it_is_full() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, b"0")
        async with client.consumer("t") as consumer:
            gathering = asyncio.ensure_future(anext(consumer.batches(3, wait="1h")))
            await leased(client, 1)
            await client.producer("t").send_batch([b"1"])
            await turns()
            assert not gathering.done()
            await client.producer("t").send_batch([b"2", b"3"])
            assert payloads(await soon(gathering)) == [b"0", b"1", b"2"]

    tell(story)


def test_a_batch_is_full_when_enough_of_what_came_ahead_falls_due() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t", lookahead="1m")
        await client.producer("t").send_batch(numbers(3), delay=[0, "10s", "20s"])
        async with client.consumer("t") as consumer:
            gathering = asyncio.ensure_future(anext(consumer.batches(2, wait="1h")))
            await leased(client, 3)
            await turns()
            assert not gathering.done()
            broker.advance("10s")
            batch = await soon(gathering)
            assert payloads(batch) == numbers(2)
            assert [m.started_us - m.due_us for m in batch.messages] == [10_000_000, 0]

    tell(story)


def test_a_cancelled_task_that_gathers_holds_nothing() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(2))
        async with client.consumer("t") as consumer:
            batches = consumer.batches(3, wait="1h")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 0.1)
            await client.producer("t").send(b"2")
            assert payloads(await soon(anext(batches))) == numbers(3)
        async with client.consumer("t") as consumer:
            gathering = asyncio.ensure_future(anext(consumer.batches(3, wait="1h")))
            await client.producer("t").send(b"3")
            await leased(client, 4)
            gathering.cancel()
        # The three of the first batch are in hand; the fourth went back.
        counts = await client.messages("t").count()
        assert (counts["leased"], counts["ready"]) == (3, 1)

    tell(story)


def test_rows_are_finished_by_mask_and_once() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(4))
        async with client.consumer("t") as consumer:
            batch = await soon(anext(consumer.batches(4, wait="1h")))
            odd = np.array([False, True, False, True])
            outcomes = await batch.reject(odd, "odd", wait=True)
            assert outcomes is not None
            assert outcomes.counts() == {"ok": 2}
            with pytest.raises(IllegalTransition):
                batch.nack(odd)
            batch.ack()
            await consumer.flush()
        counts = await client.messages("t").count()
        assert (counts["done"], counts["dead"]) == (2, 2)

    tell(story)


def test_batches_end_after_the_timeout_and_want_at_least_one_row() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, b"0")
        async with client.consumer("t", timeout=0.5) as consumer:
            assert [len(batch) async for batch in consumer.batches(10, wait=0)] == [1]
            with pytest.raises(InvalidArgument):
                consumer.batches(0)

    tell(story)


def test_what_was_taken_before_the_session_ended_is_handed_over() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(2))
        async with client.consumer("t") as consumer:
            session = consumer.session
            take_due = session.room.take_due

            def ending(run: Run, count: int) -> tuple[int, int]:
                rows = take_due(run, count)
                with session.lock:
                    session.holding.fail(Fenced("another has the name"))
                return rows

            session.room.take_due = ending  # type: ignore[method-assign]
            messages = await soon(consumer.take(10))
            assert messages
            assert [message.payload for message in messages] == numbers(len(messages))
            with pytest.raises(Fenced):
                await soon(consumer.take(10))

    tell(story)
