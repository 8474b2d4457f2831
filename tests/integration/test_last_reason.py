"""Why a message came back, who has it since when, and when it died: as users see it, and for good."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.client.durations import moment_us
from fasti.testing.virtual import START, VirtualBroker

START_US = moment_us(START)
SECOND_US = 1_000_000
RETRY = fasti.Backoff("1ms")


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as made:
        yield made


@pytest.fixture
def client(broker: VirtualBroker) -> fasti.Client:
    made = broker.client()
    made.create_topic("jobs", lease="30s", lookahead=0, max_attempts=3, retry=RETRY)
    return made


def shown(client: fasti.Client, id: int, *names: str) -> tuple[Any, ...]:
    found = client.messages("jobs").get(id=id)
    return tuple(found[name] for name in names)


def test_a_message_that_comes_back_says_why(broker: VirtualBroker, client: fasti.Client) -> None:
    id = client.producer("jobs").send(b"a").result(60).id
    with client.consumer("jobs", name="w1", prefetch=1) as consumer:
        first = next(consumer)
        assert first.last_reason is None
        first.nack("no paper", wait=True)
        assert shown(client, id, "state", "reason", "attempts") == ("scheduled", "no paper", 1)
        broker.advance("1h")
        second = next(consumer)
        assert (second.last_reason, second.attempts) == ("no paper", 2)
        # A release is no failure: what it failed of before is still the last reason.
        second.release(wait=True)
        third = next(consumer)
        assert (third.last_reason, third.attempts) == ("no paper", 2)
        third.nack(wait=True)
    assert shown(client, id, "state", "reason") == ("scheduled", None)


def test_who_has_it_since_when_and_until_when(broker: VirtualBroker, client: fasti.Client) -> None:
    id = client.producer("jobs").send(b"a").result(60).id
    names = ("state", "consumer", "leased_us", "lease_until_us", "reason", "died_us")
    assert shown(client, id, *names) == ("ready", None, None, None, None, None)
    broker.advance("5s")
    begun_us = START_US + 5 * SECOND_US
    with client.consumer("jobs", name="w1", prefetch=1) as consumer:
        message = next(consumer)
        leased = ("leased", "w1", begun_us, begun_us + 30 * SECOND_US, None, None)
        assert shown(client, id, *names) == leased
        listed = client.messages("jobs").list(state="leased").to_pylist()
        assert tuple(listed[0][name] for name in names) == leased
        broker.advance("10s")
        message.extend("1m", wait=True)
        assert shown(client, id, "leased_us", "lease_until_us") == (
            begun_us,
            begun_us + 70 * SECOND_US,
        )
        broker.expire_leases()
    assert shown(client, id, *names) == ("ready", None, None, None, "the lease expired", None)


def test_when_it_died_and_what_of(broker: VirtualBroker, client: fasti.Client) -> None:
    id = client.producer("jobs").send(b"a").result(60).id
    broker.advance("1m")
    with client.consumer("jobs") as consumer:
        next(consumer).reject("no such customer", wait=True)
    died_us = START_US + 60 * SECOND_US
    assert shown(client, id, "state", "reason", "died_us", "due_us") == (
        ("dead", "no such customer", died_us, START_US)
    )
    broker.advance("1h")
    assert client.messages("jobs").dead()["died_us"].to_pylist() == [died_us]
    assert client.messages("jobs").redrive(id).status == "ok"
    assert shown(client, id, "state", "reason", "died_us") == ("ready", "no such customer", None)
    with client.consumer("jobs") as consumer:
        message = next(consumer)
        assert message.last_reason == "no such customer"
        message.ack(wait=True)


def test_a_replaced_message_begins_anew(broker: VirtualBroker, client: fasti.Client) -> None:
    producer = client.producer("jobs")
    id = producer.send(b"a", key="k").result(60).id
    with client.consumer("jobs") as consumer:
        next(consumer).nack("why", wait=True)
    assert shown(client, id, "reason") == ("why",)
    assert producer.send(b"b", key="k", on_conflict="replace").result(60).id == id
    assert shown(client, id, "reason", "attempts") == (None, 0)


def test_tasks_see_it_too(tmp_path: Path) -> None:
    async def reason() -> str | None:
        async with fasti.aio.connect(f"embedded:{tmp_path}") as client:
            await client.create_topic("jobs", retry=RETRY)
            await client.producer("jobs").send(b"a")
            async with client.consumer("jobs") as consumer:
                await (await anext(consumer)).nack("why", wait=True)
                return (await anext(consumer)).last_reason

    assert asyncio.run(reason()) == "why"


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restart_forgets_nothing_of_it(tmp_path: Path, checkpoint: bool) -> None:
    names = ("state", "reason", "attempts", "consumer", "leased_us", "died_us")
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("jobs", lease="12h", retry=RETRY)
        sent = client.producer("jobs").send_batch([b"0", b"1", b"2"], due=[1, 2, 3])
        ids = sent.ids.tolist()
        consumer = client.consumer("jobs", name="w1", prefetch=1, timeout="10s")
        for reason in ("zero", "one", "two"):
            next(consumer).nack(reason, wait=True)
        consumer.close()
        jobs = client.messages("jobs")
        jobs.move(id=ids[2], delay="1h")
        consumer = client.consumer("jobs", name="w1", prefetch=2, timeout="10s")
        held = next(consumer)
        next(consumer).reject("never", wait=True)
        assert held.last_reason == "zero"
        if checkpoint:
            client.checkpoint()
        before = [{name: jobs.get(id=id)[name] for name in names} for id in ids]
        assert [each["reason"] for each in before] == ["zero", "never", "two"]
        assert [each["state"] for each in before] == ["leased", "dead", "scheduled"]
    with fasti.connect(f"embedded:{tmp_path}") as client:
        jobs = client.messages("jobs")
        after = [{name: jobs.get(id=id)[name] for name in names} for id in ids]
        assert after[1:] == before[1:]
        assert after[0]["reason"] == "zero"


def test_reasons_take_a_bounded_memory(client: fasti.Client, broker: VirtualBroker) -> None:
    names = broker.shard.engine.memory.reasons
    assert names.number("x" * 1000) != names.number("y" * 1000)
    full = [names.number(f"{n:01000}") for n in range(16 << 10)]
    assert names.name(full[-1]).startswith("(not kept")
    assert len(names) < 16 << 10
