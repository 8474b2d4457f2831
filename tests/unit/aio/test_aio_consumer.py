"""Consumers in an event loop: never early, each message once, none lost to a cancelled task."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from fasti.aio import Client, Consumer, Message
from fasti.errors import Closed, Fenced, NotFound
from fasti.testing.virtual import VirtualBroker
from tests.unit.aio.stories import leased, soon, tell, turns, until
from tests.unit.client.fakes import eventually


async def sent(client: Client, *payloads: bytes, topic: str = "t", **more: object) -> None:
    """Messages of a topic, durable."""
    await client.create_topic(topic, lookahead=0)
    await client.producer(topic).send_batch(list(payloads), **more)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_three_days_later() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("emails")
        receipt = await client.producer("emails").send(b"hello", delay="3d", key="user-7")
        assert (await receipt).status == "ok"
        waiting = asyncio.create_task(anext(client.consumer("emails")))
        broker.advance("2d")
        await turns()
        assert not waiting.done()
        broker.advance("1d")
        message = await soon(waiting)
        assert (message.payload, message.key) == (b"hello", "user-7")
        assert message.started_us == message.due_us == client.clock.now_us()
        assert (await message.ack(wait=True)).status == "ok"
        assert (await client.messages("emails").count())["done"] == 1

    tell(story)


def test_what_came_ahead_of_its_time_is_held_until_the_microsecond() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t", lookahead="10s")
        await client.producer("t").send_batch([b"b", b"a"], delay=["2s", "1s"])
        async with client.consumer("t", prefetch=2, timeout=0.25) as consumer:
            assert [m async for m in consumer] == []
            await leased(client, 2)
            broker.advance(0.999999)
            assert [m async for m in consumer] == []
            broker.advance(0.000001)
            assert (await soon(anext(consumer))).payload == b"a"
            assert [m async for m in consumer] == []
            broker.advance("1s")
            assert (await soon(anext(consumer))).payload == b"b"

    tell(story)


def test_a_real_clock_wakes_the_loop_by_its_own_timer_and_never_early(tmp_path: object) -> None:
    async def story() -> list[int]:
        import fasti.aio

        async with fasti.aio.connect(f"embedded:{tmp_path}") as client:
            await client.create_topic("t", lookahead="10s")
            delays = [n / 100 for n in range(20)]
            await client.producer("t").send_batch(numbers(20), delay=delays)
            async with client.consumer("t", timeout=5) as consumer:
                messages = [await soon(anext(consumer)) for _ in range(20)]
            assert [m.payload for m in messages] == numbers(20)
            return [m.started_us - m.due_us for m in messages]

    assert min(asyncio.run(story())) >= 0


def test_tasks_share_a_consumer_and_each_message_goes_to_one() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(500))
        seen: list[bytes] = []
        workers = [0] * 8

        async def work(number: int, consumer: Consumer) -> None:
            async for message in consumer:
                seen.append(message.payload)
                workers[number] += 1
                await asyncio.sleep(0)
                message.ack()
                if len(seen) == 500:
                    consumer.stop()

        async with client.consumer("t", prefetch=50) as consumer:
            await asyncio.gather(*(work(n, consumer) for n in range(8)))
        assert sorted(seen) == sorted(numbers(500))
        assert all(workers)
        assert (await client.messages("t").count())["done"] == 500

    tell(story)


def test_whoever_waits_is_woken_although_another_works_on_what_came_with_it() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client)
        consumer = client.consumer("t")
        first = asyncio.create_task(anext(consumer))
        second = asyncio.create_task(anext(consumer))
        await turns()
        # Both come in one batch; who gets the first never asks again.
        await client.producer("t").send_batch([b"1", b"2"])
        assert {(await soon(first)).payload, (await soon(second)).payload} == {b"1", b"2"}

    tell(story)


def test_a_task_cancelled_while_it_waits_takes_nothing() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client)
        async with client.consumer("t") as consumer:
            for _ in range(3):
                waiting = asyncio.create_task(anext(consumer))
                await turns()
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.01)
            await client.producer("t").send(b"kept")
            message = await soon(anext(consumer))
            assert (message.payload, message.attempts) == (b"kept", 1)

    tell(story)


def test_a_task_cancelled_as_it_is_woken_hands_the_message_on() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client)
        async with client.consumer("t") as consumer:
            first = asyncio.create_task(anext(consumer))
            await until(lambda: consumer._room.waiters)
            second = asyncio.create_task(anext(consumer))
            await turns()
            # While the loop is held up a message arrives and rings. Then, in one turn: the first
            # task is woken for it, and is cancelled before it runs.
            with broker.client().producer("t") as producer:
                producer.send(b"kept")
            eventually(lambda: consumer._room._holding._heap)
            asyncio.get_running_loop().call_soon(first.cancel)
            assert (await soon(second)).payload == b"kept"
            with pytest.raises(asyncio.CancelledError):
                await first

    tell(story)


def test_closing_gives_back_what_was_not_started_and_counts_no_attempt() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(10))
        async with client.consumer("t", prefetch=10) as consumer:
            async for message in consumer:
                message.ack()
                break
        assert (await client.messages("t").count())["leased"] == 0
        async with client.consumer("t", prefetch=10) as consumer:
            again = [await soon(anext(consumer)) for _ in range(9)]
        assert [m.payload for m in again] == numbers(10)[1:]
        assert {m.attempts for m in again} == {1}

    tell(story)


def test_a_cancelled_loop_over_messages_gives_back_the_rest() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(10))
        begun = asyncio.Event()

        async def work() -> None:
            async with client.consumer("t", prefetch=10) as consumer:
                async for _ in consumer:
                    begun.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        counts = await client.messages("t").count()
        assert (counts["leased"], counts["ready"]) == (1, 9)

    tell(story)


def test_a_consumer_that_is_thrown_away_keeps_nothing() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(10))
        async for message in client.consumer("t", prefetch=10):
            message.ack()
            break
        gc.collect()
        async with client.consumer("t", prefetch=10) as consumer:
            for _ in range(9):
                await soon(anext(consumer))

    tell(story)


def test_a_task_that_never_waits_lets_others_run() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(2000))
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async with client.consumer("t", prefetch=2000) as consumer:
            message = await soon(anext(consumer))
            await leased(client, 2000)
            ticking = asyncio.create_task(tick())
            seen = 1
            async for message in consumer:
                seen += 1
                message.ack()
                if seen % 100 == 0:
                    time.sleep(0.002)  # noqa: ASYNC251
                if seen == 2000:
                    break
            assert ticks >= 10
            ticking.cancel()

    tell(story)


def test_iteration_ends_after_its_timeout_and_can_begin_again() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, b"1")
        async with client.consumer("t", timeout=0.5) as consumer:
            assert [m.payload async for m in consumer] == [b"1"]
            assert [m async for m in consumer] == []
            await client.producer("t").send(b"2")
            assert (await soon(anext(consumer))).payload == b"2"

    tell(story)


def test_take_gives_what_is_due_as_soon_as_there_is_something() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client)
        async with client.consumer("t") as consumer:
            assert await consumer.take(5, timeout=0.01) == []
            taking = asyncio.create_task(consumer.take(2))
            await turns()
            await client.producer("t").send_batch(numbers(3))
            assert [m.payload for m in await soon(taking)] == numbers(2)
            assert [m.payload for m in await soon(consumer.take(5))] == [b"2"]

    tell(story)


def test_stop_ends_the_iteration_and_messages_in_hand_can_be_finished() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client, *numbers(3))
        async with client.consumer("t") as consumer:
            message = await soon(anext(consumer))
            waiting = asyncio.create_task(consumer.take(5, timeout=20))
            assert len(await soon(waiting)) == 2
            waiting = asyncio.create_task(consumer.take(5))
            await turns()
            consumer.stop()
            assert await soon(waiting) == []
            assert [m async for m in consumer] == []
            assert (await message.ack(wait=True)).ok

    tell(story)


def test_a_closed_consumer_says_so_and_ends_whoever_iterates() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await sent(client)
        consumer = client.consumer("t")
        waiting = asyncio.create_task(consumer.take(1))
        iterating = asyncio.create_task(_all(consumer))
        await turns()
        await consumer.close()
        await consumer.close()
        assert await soon(waiting) == []
        assert await soon(iterating) == []
        with pytest.raises(Closed):
            await _all(consumer)

    tell(story)


async def _all(consumer: Consumer) -> list[Message]:
    return [message async for message in consumer]


def test_no_such_topic_and_a_name_taken_by_another() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        with pytest.raises(NotFound):
            await anext(client.consumer("nowhere"))
        await sent(client)
        first = client.consumer("t", name="worker")
        iterating = [asyncio.create_task(_all(first)) for _ in range(3)]
        await turns()
        await until(lambda: first._room.waiters)
        second = client.consumer("t", name="worker")
        taking = asyncio.create_task(second.take(1))
        for each in iterating:
            with pytest.raises(Fenced):
                await soon(each)
        taking.cancel()

    tell(story)


def test_what_was_held_past_its_lease_is_asked_for_again_without_holding_up_the_loop() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t", lease="5s", lookahead="1m")
        await client.producer("t").send_batch([b"1", b"2"], delay="50s")
        async with client.consumer("t", prefetch=2) as consumer:
            waiting = asyncio.create_task(anext(consumer))
            await leased(client, 2)
            broker.advance("50s")
            assert (await soon(waiting)).payload == b"1"
            batches = consumer.batches(1, wait="1h")
            assert len(await soon(anext(batches))) == 1

    tell(story)
