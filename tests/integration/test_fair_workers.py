"""Nothing lies with one worker while another is idle, whatever the handlers are and how long they take.

Jobs meet: each waits until so many others run at the same time, which is possible only if none of
them waits behind another in one worker's hands. No prefetch is set anywhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from tests.integration.app_rig import WAIT_S
from tests.integration.serve_rig import emptied

QUICK = 3_000
# So that neither an end of a lease nor its renewal frees anything meanwhile.
LONG = {"lease": "10m"}


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[fasti.Client]:
    with fasti.connect(broker.address) as connected, emptied(connected):
        yield connected


class Jobs:
    """`meet` waits for the others; anything else is quick. Counts the quick ones."""

    def __init__(self, meeting: int) -> None:
        self.barrier = threading.Barrier(meeting)
        self.met = threading.Semaphore(0)
        self.quick = threading.Semaphore(0)
        self.failed: list[Exception] = []

    def __call__(self, payload: bytes) -> None:
        if payload == b"meet":
            try:
                self.barrier.wait(WAIT_S)
            except Exception as error:
                self.failed.append(error)
            self.met.release()
        else:
            self.quick.release()

    def await_met(self) -> None:
        for _ in range(self.barrier.parties):
            assert self.met.acquire(timeout=2 * WAIT_S)
        assert not self.failed, "some waited behind others"

    def await_quick(self, count: int) -> None:
        for _ in range(count):
            assert self.quick.acquire(timeout=WAIT_S)


@contextmanager
def apps(
    broker: BrokerProcess, jobs: Jobs, *, concurrency: int, kind: str = "threads"
) -> Iterator[None]:
    """Two workers, with connections of their own."""
    with ExitStack() as running:
        for _ in range(2):
            app = fasti.App(broker.address)
            if kind == "threads":

                @app.on("jobs", concurrency=concurrency, create=LONG)
                def work(payload: bytes) -> None:
                    jobs(payload)

            else:

                @app.on("jobs", concurrency=concurrency, create=LONG)
                async def work_in_task(payload: bytes) -> None:
                    await asyncio.to_thread(jobs, payload)

            running.enter_context(app)
        yield


def send(client: fasti.Client, *payloads: bytes) -> None:
    client.producer("jobs").send_batch(payloads=list(payloads))


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_four_jobs_at_once_start_at_once_on_two_idle_workers(
    broker: BrokerProcess, client: fasti.Client, kind: str
) -> None:
    jobs = Jobs(4)
    with apps(broker, jobs, concurrency=2, kind=kind):
        for _ in range(3):
            send(client, *[b"meet"] * 4)
            jobs.await_met()


def test_jobs_that_are_due_at_the_same_moment_start_then(
    broker: BrokerProcess, client: fasti.Client
) -> None:
    """They are sent to the workers ahead of time."""
    jobs = Jobs(4)
    with apps(broker, jobs, concurrency=2):
        producer = client.producer("jobs")
        for _ in range(4):
            producer.send(b"meet", delay="300ms")
        jobs.await_met()


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_slow_jobs_after_a_burst_of_quick_ones(
    broker: BrokerProcess, client: fasti.Client, kind: str
) -> None:
    """Credit that was given while handlers were quick is taken back, and what came by it."""
    jobs = Jobs(4)
    with apps(broker, jobs, concurrency=2, kind=kind):
        send(client, *[b"quick"] * QUICK)
        jobs.await_quick(QUICK)
        for _ in range(2):
            send(client, *[b"meet"] * 4)
            jobs.await_met()


def test_slow_jobs_in_the_middle_of_quick_ones(broker: BrokerProcess, client: fasti.Client) -> None:
    jobs = Jobs(4)
    with apps(broker, jobs, concurrency=2):
        send(client, *([b"quick"] * 500 + [b"meet"]) * 4, *[b"quick"] * 500)
        jobs.await_met()
        jobs.await_quick(2_500)


def test_one_long_job_keeps_none_of_the_others_waiting(
    broker: BrokerProcess, client: fasti.Client
) -> None:
    """It ends only when all others are done, also those that came to its worker behind it."""
    jobs = Jobs(2)
    with apps(broker, jobs, concurrency=1):
        send(client, *[b"quick"] * QUICK)
        jobs.await_quick(QUICK)
        send(client, b"meet", *[b"quick"] * 200)
        jobs.await_quick(200)
        send(client, b"meet")
        jobs.await_met()


# Plain consumers


@contextmanager
def consumers(broker: BrokerProcess, jobs: Jobs, **options: str) -> Iterator[None]:
    """Two loops over consumers, each in a thread."""

    def work(consumer: fasti.Consumer) -> None:
        for message in consumer:
            jobs(message.payload)
            message.ack()

    with ExitStack() as ending:
        for _ in range(2):
            connected = ending.enter_context(fasti.connect(broker.address))
            consumer = connected.consumer("jobs", **options)
            thread = threading.Thread(target=work, args=(consumer,))
            thread.start()
            ending.callback(thread.join, WAIT_S)
            ending.callback(consumer.stop)
        yield


def test_plain_consumers_share_what_comes_at_once(
    broker: BrokerProcess, client: fasti.Client
) -> None:
    client.create_topic("jobs", **LONG)
    jobs = Jobs(2)
    with consumers(broker, jobs):
        for _ in range(5):
            send(client, b"meet", b"meet")
            jobs.await_met()
        send(client, *[b"quick"] * QUICK)
        jobs.await_quick(QUICK)
        for _ in range(2):
            send(client, b"meet", b"meet")
            jobs.await_met()


def test_plain_consumers_of_a_group_share_too(broker: BrokerProcess, client: fasti.Client) -> None:
    client.create_topic("jobs", kind="log", **LONG)
    jobs = Jobs(2)
    with consumers(broker, jobs, group="workers"):
        send(client, *[b"quick"] * QUICK)
        jobs.await_quick(QUICK)
        for _ in range(2):
            send(client, b"meet", b"meet")
            jobs.await_met()


def test_consumers_of_tasks_share_too(broker: BrokerProcess, client: fasti.Client) -> None:
    client.create_topic("jobs", **LONG)

    async def main() -> None:
        quick, meeting, met = asyncio.Semaphore(0), asyncio.Barrier(4), asyncio.Semaphore(0)

        async def work(consumer: fasti.aio.Consumer) -> None:
            async for message in consumer:
                if message.payload == b"meet":
                    await meeting.wait()
                    met.release()
                else:
                    quick.release()
                message.ack()

        connected = [await fasti.aio.connect(broker.address) for _ in range(2)]
        made = [each.consumer("jobs") for each in connected]
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
            for consumer in made * 2:
                tasks.create_task(work(consumer))
            for _ in range(2):
                await asyncio.to_thread(send, client, *[b"meet"] * 4)
                for _ in range(4):
                    await met.acquire()
                await asyncio.to_thread(send, client, *[b"quick"] * QUICK)
                for _ in range(QUICK):
                    await quick.acquire()
            for consumer in made:
                consumer.stop()
        for each in connected:
            await each.close()

    asyncio.run(main())


def test_code_with_many_hands_gets_a_message_for_each(
    broker: BrokerProcess, client: fasti.Client
) -> None:
    """Whoever takes messages and finishes them later, in threads of its own, isn't held up."""
    client.create_topic("jobs", **LONG)
    send(client, *[b"hold"] * 40)
    with client.consumer("jobs", timeout="60s") as consumer:
        messages = iter(consumer)
        held = [next(messages) for _ in range(32)]
        for message in held:
            message.ack()
        for _ in range(8):
            next(messages).ack()


def test_a_consumer_that_nobody_iterates_over_holds_nothing(
    broker: BrokerProcess, client: fasti.Client
) -> None:
    client.create_topic("jobs", **LONG)
    send(client, *[b"quick"] * 200)
    with (
        client.consumer("jobs", timeout="60s") as left,
        client.consumer("jobs", timeout="60s") as right,
    ):
        messages = iter(left)
        for _ in range(100):
            next(messages).ack()
        # Now it rests, with all that came meanwhile; and what comes later is not for it either.
        others = iter(right)
        for _ in range(100):
            next(others).ack()
        send(client, *[b"quick"] * 100)
        for _ in range(100):
            next(others).ack()
