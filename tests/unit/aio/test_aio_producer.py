"""Producers in an event loop: receipts that are awaited, and a full buffer that holds up no one."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import fasti
import fasti.aio
from fasti.aio import Client
from fasti.aio.home import Home
from fasti.aio.producer import Producer
from fasti.client import producer as sync
from fasti.errors import Closed, InvalidArgument, Overloaded, RowsFailed, TimedOut
from fasti.testing.virtual import VirtualBroker
from tests.unit.aio.stories import soon, tell, turns, until
from tests.unit.client.fakes import FakeStream, FakeTransport, payloads_of


@asynccontextmanager
async def mute_broker() -> AsyncIterator[tuple[FakeTransport, Client]]:
    """A broker that answers when the test says so."""
    transport = FakeTransport()
    async with Client(fasti.Client(transport)) as client:
        yield transport, client


async def opened(transport: FakeTransport) -> FakeStream:
    await until(lambda: transport.streams)
    return transport.streams[0]


def test_a_receipt_is_awaited_and_tells_what_became_of_it() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        producer = client.producer("t", owner="billing")
        first = await producer.send(b"1", delay="1h", key="k", headers={"lang": "en"})
        outcome = await first
        assert (outcome.status, outcome.version) == ("ok", 1)
        assert first.done
        assert await first == outcome == await first.result(timeout=5)
        second = await (await producer.send(b"2", key="k", delay="1h"))
        assert (second.status, second.id) == ("conflict", outcome.id)
        assert producer.failed == 1
        await producer.flush()
        assert (await client.messages("t").get(key="k"))["headers"] == {"lang": "en"}

    tell(story)


def test_unread_failures_stop_no_other_send_and_are_raised_by_flush() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        told: list[fasti.Failure] = []

        def on_failure(failure: fasti.Failure) -> None:
            told.append(failure)
            raise ValueError("harmless")

        producer = client.producer("t", on_failure=on_failure)
        for _ in range(2):
            await producer.send(b"", key="k", delay="1h")
        await until(lambda: producer.unread_failures == 1)
        assert (await (await producer.send(b"", key="l", delay="1h"))).ok
        assert (await producer.send_batch([b""], delay="1h")).all_ok
        with pytest.raises(RowsFailed) as raised:
            await producer.flush()
        assert [each["status"] for each in raised.value.failures] == ["conflict"]
        with pytest.raises(InvalidArgument):
            await producer.send(b"", delay="soon")
        await producer.flush()
        assert [(each.status, each.key) for each in told] == [("conflict", "k")]
        assert client.unread_failures == 1

    tell(story)


def test_a_coroutine_is_no_callback() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        async def on_failure(failure: fasti.Failure) -> None: ...

        with pytest.raises(InvalidArgument, match="plain function"):
            client.producer("t", on_failure=on_failure)

    tell(story)


def test_batches_are_awaited_or_left_under_way() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        producer = client.producer("t")
        small = await producer.send_batch([b"a", b"b"], delay="1h", key=["a", "b"])
        assert small.counts() == {"ok": 2}
        large = await producer.send_batch([b"x"] * 40_000, delay="1h", wait=False)
        assert len(set((await large).ids.tolist())) == 40_000
        assert large.done
        assert (await large.result(timeout=1)).all_ok
        assert (await producer.send_batch([b"a"], key=["a"])).status == ["conflict"]
        assert (await client.messages("t").count())["scheduled"] == 40_002
        assert len(await producer.send_batch([])) == 0

    tell(story)


def test_many_tasks_share_a_producer_and_the_loop_is_woken_once_for_many_receipts() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        producer = client.producer("t")
        wakings = 0
        call = client._home._call_posted

        def counted() -> None:
            nonlocal wakings
            wakings += 1
            call()

        client._home._call_posted = counted  # type: ignore[method-assign]

        async def one(number: int) -> int:
            return (await (await producer.send(b"%d" % number, delay="1h"))).id

        ids = await asyncio.gather(*(one(n) for n in range(1000)))
        assert len(set(ids)) == 1000
        assert wakings < 100

    tell(story)


def test_a_full_buffer_suspends_the_task_and_not_the_loop() -> None:
    async def story() -> None:
        async with mute_broker() as (transport, client):
            producer = client.producer("t", buffer_rows=10)
            sending = asyncio.create_task(_send(producer, 30))
            stream = await opened(transport)
            await until(lambda: len(stream.sent) == 1)
            await turns(200)
            assert not sending.done()
            # Each receipt makes room for as many as it answers.
            answered = 0
            while answered < 30:
                await until(lambda seen=answered: len(stream.rows()) > seen)
                rows = len(stream.rows()) - answered
                assert rows <= 10
                answered += rows
                stream.answer(rows)
            await soon(sending)
            assert stream.rows() == [b"%d" % n for n in range(30)]

    asyncio.run(story())


async def _send(producer: fasti.aio.Producer, count: int, **more: object) -> None:
    for number in range(count):
        await producer.send(b"%d" % number, **more)


def test_another_rule_for_conflicts_at_the_edge_of_the_buffer_does_not_block_either() -> None:
    async def story() -> None:
        async with mute_broker() as (transport, client):
            producer = client.producer("t", buffer_rows=3)
            await _send(producer, 3)
            # The first may have left the gathering; the others fill the buffer to its edge.
            other = asyncio.create_task(_send(producer, 1, on_conflict="keep"))
            await turns(100)
            assert not other.done()
            stream = await opened(transport)
            stream.on_send = lambda _, content: content and stream.answer(len(payloads_of(content)))
            await until(lambda: stream.sent)
            stream.answer(len(payloads_of(stream.sent[0][1])))
            await soon(other)
            await producer.flush()

    asyncio.run(story())


def test_a_send_cancelled_for_want_of_room_was_not_sent() -> None:
    async def story() -> None:
        async with mute_broker() as (transport, client):
            producer = client.producer("t", buffer_rows=1)
            await producer.send(b"first")
            waiting = asyncio.create_task(producer.send(b"second"))
            await turns()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            stream = await opened(transport)
            await until(lambda: stream.sent)
            stream.answer(1)
            await soon(producer.flush())
            assert stream.rows() == [b"first"]

    asyncio.run(story())


def test_a_buffer_that_stays_full_is_overloaded_and_answers_that_stay_away_time_out() -> None:
    async def story() -> None:
        async with mute_broker() as (_, client):
            producer = client.producer("t", buffer_rows=1, max_block=0.02)
            receipt = await producer.send(b"first")
            with pytest.raises(Overloaded):
                await producer.send(b"second")
            with pytest.raises(Overloaded):
                await producer.send_batch([b"third"])
            with pytest.raises(TimedOut):
                await receipt.result(timeout=0.01)
            with pytest.raises(TimedOut):
                await producer.flush(timeout=0.01)
            with pytest.raises(TimedOut):
                await producer.close(timeout=0.01)
            with pytest.raises(Closed):
                await receipt
            with pytest.raises(Closed):
                await producer.send(b"fourth")

    asyncio.run(story())


def test_a_cancelled_wait_for_a_receipt_leaves_the_send_alone() -> None:
    async def story() -> None:
        async with mute_broker() as (transport, client):
            producer = client.producer("t")
            receipt = await producer.send(b"first")
            waiting = [asyncio.ensure_future(receipt.result()) for _ in range(2)]
            await turns()
            waiting[0].cancel()
            await turns()
            stream = await opened(transport)
            await until(lambda: stream.sent)
            stream.answer(1, first_id=7)
            assert (await soon(waiting[1])).id == 7
            assert (await receipt).id == 7
            assert producer._answers._awaited == {}

    asyncio.run(story())


def test_leaving_the_block_flushes_and_closes() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        async with client.producer("t") as producer:
            for _ in range(100):
                await producer.send(b"", delay="1h")
        assert (await client.messages("t").count())["scheduled"] == 100
        with pytest.raises(Closed):
            await producer.send(b"")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with client.producer("t") as producer:
                await producer.send(b"", delay="1h")
                raise ZeroDivisionError
        assert (await client.messages("t").count())["scheduled"] == 101

    tell(story)


def test_what_a_thrown_away_producer_took_is_sent() -> None:
    async def story() -> None:
        with VirtualBroker() as broker:
            async with Client(broker.client()) as client:
                await client.create_topic("t")
                for _ in range(20):
                    await client.producer("t").send(b"", delay="1h")
                assert len(client._kept) <= 20
            async with Client(broker.client()) as client:
                assert (await client.messages("t").count())["scheduled"] == 20

    asyncio.run(story())


def test_a_producer_may_be_thrown_away_by_a_thread_that_holds_any_lock() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        kept = [client.producer("t")]
        await (await kept[0].send(b"", delay="1h"))
        await kept[0].flush()
        # Making another one has the client forget those that have nothing under way.
        client.producer("t")

        def collect() -> None:
            # As when the collector of garbage runs while something is submitted to an executor.
            with concurrent.futures.thread._global_shutdown_lock:
                kept.clear()
                gc.collect()

        collecting = threading.Thread(target=collect, daemon=True)
        collecting.start()
        collecting.join(30)
        assert not collecting.is_alive()

    tell(story)


def test_sending_without_a_pause_lets_others_run() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        producer = client.producer("t")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        await _send(producer, 20_000, delay="1h")
        assert ticks > 5
        ticking.cancel()

    tell(story)


def test_who_awaits_a_receipt_waits_as_long_as_for_any_call() -> None:
    async def story() -> None:
        transport = FakeTransport()
        transport.timeout_s = 0.01
        home = Home()
        producer = Producer(home, sync.Producer(transport, "t"), 1.0)
        receipt = await producer.send(b"0")
        with pytest.raises(TimedOut, match=r"0.01 s.*connect\(timeout=...\) waits longer"):
            await receipt
        with pytest.raises(TimedOut):
            await receipt.result(0.02)
        transport.stream().answer(1)
        assert (await receipt.result(20)).ok
        await producer.close()
        await home.close(lambda: None)

    asyncio.run(story())
