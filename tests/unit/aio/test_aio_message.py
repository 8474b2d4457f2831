"""Finishing messages from tasks: at once, with or without an answer, also after the consumer."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

import fasti
from fasti.aio import Client
from fasti.client.durations import moment_us
from fasti.errors import Closed, IllegalTransition, InvalidArgument, RowsFailed, TimedOut
from fasti.testing.virtual import VirtualBroker
from tests.unit.aio.stories import leased, soon, tell, until
from tests.unit.aio.test_aio_consumer import numbers, sent


def test_finishing_needs_no_await_and_does_not_mind_one() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(5))
        async with client.consumer("t") as consumer:
            messages = [await soon(anext(consumer)) for _ in range(5)]
            messages[0].ack()
            assert await messages[1].ack() is None
            assert await messages[2].nack("later") is None
            messages[3].reject("never")
            messages[4].release("1h")
            assert all(m.finished for m in messages)
            with pytest.raises(IllegalTransition):
                messages[0].ack()
            with pytest.raises(IllegalTransition):
                messages[4].ack(wait=True)
        counts = await client.messages("t").count()
        assert (counts["done"], counts["dead"], counts["scheduled"]) == (2, 1, 2)
        assert (await client.messages("t").dead()).column("reason").to_pylist() == ["never"]

    tell(story)


def test_awaited_answers_tell_what_became_of_it() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(40))
        async with client.consumer("t", prefetch=40) as consumer:
            messages = [await soon(anext(consumer)) for _ in range(40)]
            assert (await messages[0].extend("1m", wait=True)).ok
            assert (await messages[0].release(wait=True, timeout="10s")).ok
            outcomes = await asyncio.gather(*(m.ack(wait=True) for m in messages[1:]))
            assert [each.id for each in outcomes] == [m.id for m in messages[1:]]
            assert all(each.ok for each in outcomes)
            assert consumer.failed == 0

    tell(story)


def test_a_lease_that_is_over_is_told_to_who_asks_and_else_raised_by_flush() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(2))
        told: list[tuple[fasti.Failure, int]] = []
        on_failure = lambda each: told.append((each, threading.get_ident()))  # noqa: E731
        async with client.consumer("t", timeout=20, on_failure=on_failure) as consumer:
            asked, unasked = [await soon(anext(consumer)) for _ in range(2)]
            broker.expire_leases()
            assert (await asked.ack(wait=True)).status != "ok"
            unasked.ack()
            await until(lambda: consumer.unread_failures == 1)
            await sent(client, b"more")
            await soon(anext(consumer))
            with pytest.raises(RowsFailed) as raised:
                await consumer.flush()
            assert raised.value.failures[0]["id"] == unasked.id
            assert consumer.failed == 2
            (failure, thread), *more = told
            assert not more
            assert (failure.operation, failure.id) == ("ack", unasked.id)
            assert thread == threading.get_ident()

    tell(story)


def test_bad_arguments_change_nothing() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, b"0")
        async with client.consumer("t") as consumer:
            message = await soon(anext(consumer))
            with pytest.raises(InvalidArgument):
                message.nack(7)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                message.release("soon")
            assert not message.finished
            assert (await message.ack(wait=True)).ok

    tell(story)


def test_messages_in_hand_can_be_finished_after_their_consumer_was_closed() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(3))
        async with client.consumer("t") as consumer:
            messages = [await soon(anext(consumer)) for _ in range(3)]
        messages[0].ack()
        assert (await messages[1].ack(wait=True)).ok
        messages[2].nack("no")
        await leased(client, 0)
        assert (await client.messages("t").count())["done"] == 2

    tell(story)


def test_after_the_client_nothing_can_be_finished_and_that_is_said() -> None:
    async def story() -> None:
        import fasti.aio

        with VirtualBroker() as broker:
            async with fasti.aio.Client(broker.client()) as client:
                await sent(client, b"0")
                message = await soon(anext(client.consumer("t")))
            with pytest.raises(Closed):
                await message.ack(wait=True)

    asyncio.run(story())


def test_a_thread_may_finish_what_a_task_got() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, b"0")
        async with client.consumer("t") as consumer:
            message = await soon(anext(consumer))
            await asyncio.to_thread(message.ack)
        assert (await client.messages("t").count())["done"] == 1

    tell(story)


def test_an_answer_that_does_not_come_in_time() -> None:
    import fasti.aio
    from fasti.client.client import Client as SyncClient
    from tests.unit.client.fakes import FakeTransport

    async def story() -> None:
        transport = FakeTransport()
        client = fasti.aio.Client(SyncClient(transport))
        consumer = client.consumer("t")
        taking = asyncio.create_task(consumer.take(1))
        stream = await asyncio.to_thread(transport.stream)
        beats = await asyncio.to_thread(_first_beat, stream)
        stream.lease(5, [1], [0])
        stream.arrived({"kind": "heartbeat", "request": beats, "held": 1, "now_us": 0}, None)
        [message] = await soon(taking)
        with pytest.raises(TimedOut):
            await message.ack(wait=True, timeout=0.05)
        stream.accept_all()
        await client.close(timeout=0.2)

    def _first_beat(stream: object) -> int:
        from tests.unit.client.fakes import eventually

        return eventually(lambda: stream.of("heartbeat"))[0][0]["request"]

    with pytest.raises(TimedOut):
        asyncio.run(story())


def test_moments_have_the_same_names_as_in_the_synchronous_sdk() -> None:
    at = datetime(2031, 5, 6, tzinfo=UTC)

    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, b"0")
        pending = client.messages("t")
        async with client.consumer("t", timeout=20) as consumer:
            message = await soon(anext(consumer))
            assert (await message.release(at=at, wait=True)).ok
        assert (await pending.get(id=message.id))["due_us"] == moment_us(at)
        assert (await pending.move(id=message.id, delay="0s")).ok
        async with client.consumer("t", timeout=20) as consumer:
            (batch,) = [await soon(anext(consumer.batches(1)))]
            assert (await batch.reject(wait=True)).all_ok
        assert (await pending.redrive(message.id, at=at)).ok
        producer = client.producer("t")
        (due,) = (await producer.send_batch([b""], at=[at])).ids
        for found in (message.id, int(due), (await (await producer.send(b"", due=at))).id):
            assert (await pending.get(id=found))["due_us"] == moment_us(at)
        for wrong in (producer.send(b"", at=at, due=1), producer.send_batch([b""], at=at, due=1)):
            with pytest.raises(InvalidArgument, match="either at or due"):
                await wrong

    tell(story)
