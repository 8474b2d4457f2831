"""The asyncio SDK against a real broker process: on time, through crashes and cancellations."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fastapi
import pytest
import uvicorn

import fasti.aio
from fasti.broker.launch import BrokerProcess
from tests.unit.aio.stories import no_threads_left, until


def test_from_end_to_end(broker: BrokerProcess) -> None:
    async def story() -> None:
        async with fasti.aio.connect(broker.address, owner="billing") as client:
            await client.create_topic("emails", lease="30s", max_attempts=5)
            emails, producer = client.messages("emails"), client.producer("emails")
            for number in range(200):
                await producer.send(b"%d" % number, delay=number / 400, key=f"user-{number}")
            moved = await emails.move(key="user-199", delay="700ms")
            cancelled = await emails.cancel(key="user-198")
            assert (moved.status, cancelled.status) == ("ok", "ok")
            seen: list[bytes] = []

            async def work(consumer: fasti.aio.Consumer) -> None:
                async for message in consumer:
                    assert message.started_us >= message.due_us
                    seen.append(message.payload)
                    await asyncio.sleep(0)
                    message.ack()
                    if message.payload == b"199":
                        consumer.stop()

            async with client.consumer("emails", name="worker", prefetch=8) as consumer:
                await asyncio.gather(*(work(consumer) for _ in range(4)))
            assert sorted(map(int, seen)) == [*range(198), 199]
            counts = await emails.count()
            assert (counts["done"], counts["cancelled"]) == (199, 1)
            assert (await emails.list()).num_rows == 0

    with no_threads_left():
        asyncio.run(story())


def test_many_tasks_send_through_one_producer(broker: BrokerProcess) -> None:
    async def story() -> None:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("many", partitions=1)
            async with client.producer("many", buffer_rows=1000) as producer:

                async def one(task: int) -> list[int]:
                    receipts = [await producer.send(b"%d" % task) for _ in range(50)]
                    return [(await receipt).id for receipt in receipts]

                ids = await asyncio.gather(*(one(task) for task in range(200)))
            assert len({each for found in ids for each in found}) == 10_000
            # Each task's sends keep their order.
            assert all(found == sorted(found) for found in ids)
            seen: Counter[bytes] = Counter()
            consumer = client.consumer("many")
            async for batch in consumer.batches(5000):
                seen.update(batch.table.column("payload").to_pylist())
                batch.ack()
                if seen.total() == 10_000:
                    break
            await consumer.close()
            assert set(seen.values()) == {50}
            assert (await client.messages("many").count())["done"] == 10_000

    with no_threads_left():
        asyncio.run(story())


def test_tasks_that_are_cancelled_all_the_time_lose_nothing(broker: BrokerProcess) -> None:
    chance = random.Random(7)

    async def story() -> None:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("disturbed")
            done: Counter[bytes] = Counter()
            everything = asyncio.Event()

            async def work(consumer: fasti.aio.Consumer) -> None:
                async for message in consumer:
                    try:
                        await asyncio.sleep(chance.random() / 1000)
                    except asyncio.CancelledError:
                        message.release()
                        raise
                    message.ack()
                    done[message.payload] += 1
                    if len(done) == 2000:
                        everything.set()

            async def disturb(consumer: fasti.aio.Consumer) -> None:
                while not everything.is_set():
                    workers = [asyncio.create_task(work(consumer)) for _ in range(4)]
                    await asyncio.wait(workers, timeout=chance.random() / 50)
                    for each in workers:
                        each.cancel()
                    for ended in await asyncio.gather(*workers, return_exceptions=True):
                        assert isinstance(ended, asyncio.CancelledError | None), ended

            payloads = [b"%d" % n for n in range(2000)]
            async with client.consumer("disturbed", prefetch=64) as consumer:
                disturbing = asyncio.create_task(disturb(consumer))
                await client.producer("disturbed").send_batch(
                    payloads, delay=[n / 4000 for n in range(2000)]
                )
                await asyncio.wait_for(disturbing, 100)
            assert done == Counter(payloads)
            counts = await client.messages("disturbed").count()
            assert (counts["done"], counts["leased"], counts["dead"]) == (2000, 0, 0)

    asyncio.run(story())


def test_a_broker_killed_and_started_again_under_consumers_and_producers(
    broker: BrokerProcess,
) -> None:
    async def story() -> None:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("killed", lease="30s")
            total, seen = 3000, Counter[bytes]()

            async def produce() -> list[Any]:
                async with client.producer("killed") as producer:
                    receipts = []
                    for number in range(total):
                        receipts.append(await producer.send(b"%d" % number, delay="50ms"))
                        if number % 100 == 0:
                            await asyncio.sleep(0.01)
                    return [await receipt for receipt in receipts]

            async def consume(consumer: fasti.aio.Consumer) -> None:
                async for message in consumer:
                    assert message.started_us >= message.due_us
                    await asyncio.sleep(0)
                    message.ack()
                    seen[message.payload] += 1
                    if len(seen) == total:
                        consumer.stop()

            consumer = client.consumer("killed", prefetch=100)
            tasks = [asyncio.create_task(consume(consumer)) for _ in range(4)]
            producing = asyncio.create_task(produce())
            await until(lambda: len(seen) > 300)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            outcomes = await asyncio.wait_for(producing, 100)
            await asyncio.wait_for(asyncio.gather(*tasks), 100)
            await consumer.close()
            # A send that was repeated is not a second message, and an ack that was lost with the
            # connection was sent again.
            assert len({each.id for each in outcomes}) == total
            assert consumer.reconnections >= 1
            counts = await client.messages("killed").count()
            assert (counts["done"], counts["leased"], counts["ready"]) == (total, 0, 0)
            assert seen == Counter(b"%d" % n for n in range(total))

    with no_threads_left():
        asyncio.run(story())


def test_a_handler_that_blocks_the_loop_keeps_its_lease(broker: BrokerProcess) -> None:
    async def story() -> None:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("blocked", lease="2s")
            await client.producer("blocked").send_batch([b"1", b"2"])
            async with client.consumer("blocked") as consumer:
                message = await anext(consumer)
                time.sleep(4.5)  # noqa: ASYNC251
                assert (await message.ack(wait=True)).status == "ok"
                # The one that was held here meanwhile is still ours, too.
                other = await anext(consumer)
                assert other.attempts == 1
                assert (await other.ack(wait=True)).status == "ok"

    asyncio.run(story())


def test_loops_in_several_threads(broker: BrokerProcess) -> None:
    async def story(name: str) -> None:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic(name)
            producer = client.producer(name)
            for number in range(300):
                await producer.send(b"%d" % number)
            async with client.consumer(name) as consumer:
                for number in range(300):
                    message = await anext(consumer)
                    assert message.payload == b"%d" % number
                    message.ack()
            assert (await client.messages(name).count())["done"] == 300

    failed: list[BaseException] = []

    def loop(name: str) -> None:
        try:
            asyncio.run(story(name))
            asyncio.run(story(f"{name}-again"))
        except BaseException as problem:
            failed.append(problem)

    with no_threads_left():
        loops = [threading.Thread(target=loop, args=(f"t{n}",)) for n in range(3)]
        for each in loops:
            each.start()
        for each in loops:
            each.join(100)
    assert failed == []


def test_inside_a_web_application(broker: BrokerProcess) -> None:
    """Made when the application starts, used by requests and a worker, closed when it stops."""
    handled: list[bytes] = []

    @asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("reminders")
            app.state.client = client
            app.state.reminders = client.producer("reminders")
            worker = asyncio.create_task(work(client))
            yield
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    async def work(client: fasti.aio.Client) -> None:
        async with client.consumer("reminders") as consumer:
            async for message in consumer:
                handled.append(message.payload)
                message.ack()

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.post("/remind/{who}")
    async def remind(who: str, delay: float) -> dict[str, Any]:
        outcome = await (await app.state.reminders.send(who.encode(), delay=delay, key=who))
        return {"id": outcome.id, "status": outcome.status}

    @app.delete("/remind/{who}")
    async def forget(who: str) -> dict[str, str]:
        outcome = await app.state.client.messages("reminders").cancel(key=who)
        return {"status": outcome.status}

    async def story() -> None:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        root = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

        async def ask(method: str, path: str) -> dict[str, Any]:
            request = urllib.request.Request(root + path, method=method)
            reply = await asyncio.to_thread(urllib.request.urlopen, request, timeout=60)
            with reply:
                return json.load(reply)

        answers = await asyncio.gather(
            *(ask("POST", f"/remind/user-{n}?delay={0.2 if n % 2 else 3600}") for n in range(20))
        )
        assert {each["status"] for each in answers} == {"ok"}
        assert await ask("DELETE", "/remind/user-0") == {"status": "ok"}
        assert await ask("DELETE", "/remind/user-0") == {"status": "cancelled"}
        await until(lambda: len(handled) == 10)
        server.should_exit = True
        await asyncio.wait_for(serving, 60)
        async with fasti.aio.connect(broker.address) as client:
            counts = await client.messages("reminders").count()
            assert (counts["done"], counts["scheduled"], counts["leased"]) == (10, 9, 0)

    asyncio.run(story())


UNCLOSED = """
import asyncio, sys
import fasti.aio

async def wait_for(what):
    client = await fasti.aio.connect(sys.argv[1])
    await client.create_topic("unclosed", kind="kv")
    if what == "changes":
        follows = await client.changes(start="latest", follow=True)
    else:
        follows = client.kv("unclosed").watch()
    try:
        async with asyncio.timeout(0.3):
            await anext(follows)
    except TimeoutError:
        print("waited")
    return client, follows

kept = asyncio.run(wait_for(sys.argv[2]))
"""


@pytest.mark.parametrize("what", ["changes", "watch"])
def test_a_process_that_forgot_to_close_what_it_follows_ends(
    broker: BrokerProcess, what: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNCLOSED, broker.address, what],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, "waited\n"), done.stderr
