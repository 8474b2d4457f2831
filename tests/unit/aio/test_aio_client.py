"""The asyncio client: the synchronous names, one loop each, and nothing left behind."""

from __future__ import annotations

import asyncio
import inspect
import threading
from pathlib import Path

import pytest

import fasti
import fasti.aio
from fasti.aio import Client
from fasti.errors import (
    Closed,
    FastiError,
    IllegalTransition,
    TopicMismatch,
    TransactionAborted,
    Unavailable,
)
from fasti.testing.virtual import VirtualBroker
from tests.unit.aio.stories import no_threads_left, soon, tell


@pytest.mark.parametrize(
    "name",
    ["Client", "Producer", "Consumer", "Message", "Batch", "Messages", "Receipt", "Transaction"],
)
def test_the_names_and_arguments_of_the_synchronous_sdk(name: str) -> None:
    ours, theirs = getattr(fasti.aio, name), getattr(fasti, name)
    # What lies beneath the synchronous ones is not for users.
    beneath = {"transport", "look_after", "cut", "outbox", "take_now"}
    for each, value in vars(theirs).items():
        if each.startswith("_") or each in beneath or not callable(value):
            continue
        mine = getattr(ours, each)
        wanted, found = inspect.signature(value).parameters, inspect.signature(mine).parameters
        assert list(found) == list(wanted), each
        assert [p.default for p in found.values()] == [p.default for p in wanted.values()], each


def test_connecting_is_awaited_or_entered(tmp_path: Path) -> None:
    async def story() -> None:
        client = await fasti.aio.connect(f"embedded:{tmp_path / 'a'}", owner="billing")
        assert client.owner == "billing"
        assert (await client.health())["ready"]
        await client.close()
        await client.close()
        with pytest.raises(Closed):
            client.producer("t")
        with pytest.raises(Closed):
            await client.topics()
        async with fasti.aio.connect(f"embedded:{tmp_path / 'b'}") as client:
            await client.create_topic("t")
        async with await fasti.aio.connect(f"embedded:{tmp_path / 'b'}") as client:
            assert [each.name for each in await client.topics()] == ["t"]

    with no_threads_left():
        asyncio.run(story())


def test_a_connection_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(Unavailable):
            await fasti.aio.connect("fasti://127.0.0.1:1", timeout=5)
        with pytest.raises(FastiError):
            async with fasti.aio.connect("nonsense://"):
                pass
        connecting = asyncio.ensure_future(fasti.aio.connect(f"embedded:{tmp_path}")._made())
        await asyncio.sleep(0)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

    with no_threads_left():
        asyncio.run(story())
    # Whether or not the cancelled one had got so far: the directory is free again.
    fasti.connect(f"embedded:{tmp_path}").close()


def test_one_run_after_the_other_and_loops_in_several_threads(tmp_path: Path) -> None:
    with VirtualBroker() as broker:
        broker.client().create_topic("t")

        async def story() -> int:
            async with Client(broker.client()) as client:
                producer = client.producer("t")
                ids = [(await (await producer.send(b"", delay="1h"))).id for _ in range(20)]
                async with client.consumer("t", timeout=0.01) as consumer:
                    assert [m async for m in consumer] == []
                return len(set(ids))

        assert asyncio.run(story()) + asyncio.run(story()) == 40
        found: list[int] = []
        loops = [
            threading.Thread(target=lambda: found.append(asyncio.run(story()))) for _ in range(4)
        ]
        for each in loops:
            each.start()
        for each in loops:
            each.join(30)
        assert found == [20] * 4


def test_another_loop_is_refused() -> None:
    async def other(client: Client) -> None:
        for attempt in (client.topics(), anext(client.consumer("t")), client.close()):
            with pytest.raises(IllegalTransition, match="another event loop"):
                await attempt

    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        await asyncio.to_thread(lambda: asyncio.run(other(client)))

    tell(story)


def test_topics_and_the_broker() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        made = await client.create_topic("t", lease="10s")
        assert made.settings.lease_us == 10_000_000
        with pytest.raises(TopicMismatch):
            await client.create_topic("t", lease="20s")
        assert (await client.change_topic("t", lease="20s")).settings.lease_us == 20_000_000
        assert (await client.topic("t")).counts["scheduled"] == 0
        producer = client.producer("t")
        await producer.send_batch([b"1", b"2"], stage="s")
        assert await client.publish("s") == (2, [])
        await producer.send_batch([b"3"], stage="s2")
        assert await client.drop_stage("s2") == 1
        assert "fasti" in await client.metrics()
        await client.checkpoint()
        await client.delete_topic("t")
        assert await client.topics() == []

    tell(story)


def test_pending_messages_are_read_changed_and_cancelled() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t", max_attempts=1)
        producer = client.producer("t")
        emails = client.messages("t")
        keys = [f"user-{n}" for n in range(10)]
        # Not awaited: the change sees to it that these are sent first.
        receipts = [await producer.send(b"old", key=key, delay="1h") for key in keys]
        assert (await emails.move(key="user-0", delay="2h")).status == "ok"
        assert all(receipt.done for receipt in receipts)
        assert (await emails.update(key=keys[:2], payload=b"new")).counts() == {"ok": 2}
        assert (await emails.cancel(key="user-9", version=7)).status == "conflict"
        assert (await emails.cancel(key="user-9")).status == "ok"
        assert (await emails.get(key="user-0"))["payload"] == b"new"
        assert (await emails.list(state="scheduled")).num_rows == 9
        assert (await emails.forecast("1h")).column("count").to_pylist() == [8, 1]
        broker.advance("1h")
        (await soon(anext(client.consumer("t")))).reject("bad")
        await client.close()

    tell(story)


def test_scans_stream_and_can_be_left() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        await client.producer("t").send_batch([b""] * 50_000, delay="1h")
        emails = client.messages("t")
        assert sum([batch.num_rows async for batch in emails.scan()]) == 50_000
        scanning = emails.scan()
        assert (await anext(scanning)).num_rows > 0
        await scanning.aclose()
        scanning = emails.scan()
        reading = asyncio.ensure_future(anext(scanning))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    tell(story)


def test_the_dead_are_redriven_and_purged() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("t")
        await client.producer("t").send_batch([b"1", b"2", b"3"])
        async with client.consumer("t") as consumer:
            for _ in range(3):
                (await soon(anext(consumer))).reject("bad")
        emails = client.messages("t")
        dead = (await emails.dead()).column("id").to_pylist()
        assert (await emails.redrive(dead[0], delay="1h")).status == "ok"
        assert (await emails.purge(dead[1])).status == "ok"
        assert (await emails.purge()).counts() == {"ok": 1}

    tell(story)


def test_a_transaction_happens_whole_or_not_at_all() -> None:
    async def story(broker: VirtualBroker, client: Client) -> None:
        await client.create_topic("in")
        await client.create_topic("out")
        await client.producer("in").send_batch([b"1", b"2"])
        # Under way when the transaction meets it.
        await client.producer("out").send(b"x", key="reminder", delay="1h")
        async with client.consumer("in") as consumer:
            first, second = [await soon(anext(consumer)) for _ in range(2)]
            async with client.transaction() as tx:
                tx.ack(first)
                tx.send("out", b"receipt", delay="1d", key="r")
                tx.cancel("out", key="reminder")
            assert [each.status for each in tx.outcomes] == [["ok"], ["ok"], ["ok"]]
            assert first.finished
            with pytest.raises(TransactionAborted):  # noqa: PT012
                async with client.transaction() as tx:
                    tx.ack(second)
                    tx.send("out", b"again", key="r")
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with client.transaction() as tx:
                    tx.ack(second)
                    raise ZeroDivisionError
            with pytest.raises(IllegalTransition):
                tx.ack(second)
            assert not second.finished
            assert (await second.ack(wait=True)).ok
            with pytest.raises(TypeError), client.transaction():
                pass
        assert (await client.messages("out").count())["scheduled"] == 1

    tell(story)


def test_closing_goes_on_when_its_task_is_cancelled() -> None:
    async def story() -> None:
        with VirtualBroker() as broker:
            client = Client(broker.client())
            await client.create_topic("t")
            await client.producer("t").send_batch([b""] * 10)
            consumer = client.consumer("t", prefetch=10)
            await soon(anext(consumer))
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await client.close()
            found = broker.client().messages("t").count()
            assert (found["leased"], found["ready"]) == (1, 9)

    with no_threads_left():
        asyncio.run(story())


def test_a_client_that_is_never_closed_holds_up_nobody() -> None:
    with VirtualBroker() as broker:

        async def story() -> None:
            client = Client(broker.client())
            await client.create_topic("t")
            await client.producer("t").send(b"1")
            waiting = asyncio.create_task(client.consumer("t").take(2))
            await soon(waiting)
            asyncio.create_task(client.consumer("t").take(1))  # noqa: RUF006
            await asyncio.sleep(0.01)

        asyncio.run(story())
        with broker.client().producer("t") as producer:
            producer.send(b"2")
