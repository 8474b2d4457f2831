"""The test kit as its user meets it: virtual time, real threads, no sleeps."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from fasti import aio
from fasti.errors import InvalidArgument, TimedOut
from fasti.testing.virtual import START, VirtualBroker


@pytest.fixture
def broker() -> VirtualBroker:
    with VirtualBroker() as made:
        yield made


def test_three_days_later(broker: VirtualBroker) -> None:
    client = broker.client()
    client.create_topic("emails")
    client.producer("emails").send(b"hello", delay="3d", key="user-7").result(60)
    with client.consumer("emails") as consumer:
        broker.advance(timedelta(days=3) - timedelta(microseconds=1))
        assert consumer.take(timeout=0.05) == []
        broker.advance(timedelta(microseconds=1))
        message = next(iter(consumer))
        assert message.payload == b"hello"
        assert message.due == START + timedelta(days=3)
        assert message.started_us == message.due_us
        assert message.ack(wait=True).status == "ok"
    assert client.messages("emails").count()["done"] == 1


def test_time_stands_still_and_goes_where_it_is_told(broker: VirtualBroker) -> None:
    assert broker.now == START
    christmas = datetime(2030, 12, 24, 18, tzinfo=UTC)
    broker.advance_to(christmas)
    assert broker.now == christmas
    with pytest.raises(InvalidArgument):
        broker.advance_to(START)
    client = broker.client()
    client.create_topic("t")
    client.producer("t").send(b"", delay="1h").result(60)
    assert client.messages("t").list()["due_us"].to_pylist() == [
        int((christmas + timedelta(hours=1)).timestamp() * 1e6)
    ]


def test_who_works_on_a_message_keeps_it_until_the_lease_is_ended(broker: VirtualBroker) -> None:
    client = broker.client()
    client.create_topic("t", lease="5s", lookahead=0)
    client.producer("t").send(b"work").result(60)
    first = client.consumer("t", name="first", prefetch=1)
    message = next(iter(first))
    broker.advance("1h")
    assert client.messages("t").count()["leased"] == 1
    broker.expire_leases()
    with client.consumer("t", name="second") as second:
        again = next(iter(second))
        assert (again.payload, again.attempts) == (b"work", 2)
        assert message.ack(wait=True).status == "stale_lease"
        assert again.ack(wait=True).status == "ok"


def test_settle_waits_for_workers_and_says_what_is_left(broker: VirtualBroker) -> None:
    client = broker.client()
    client.create_topic("t", max_attempts=2)
    producer = client.producer("t")
    for number in range(20):
        producer.send(str(number).encode(), delay=f"{number}m")
    producer.flush()
    broker.advance("1h")
    with pytest.raises(TimedOut, match="ready"):
        broker.settle(timeout=0.05)

    handled: list[bytes] = []
    consumer = client.consumer("t")

    def work() -> None:
        for message in consumer:
            handled.append(message.payload)
            message.ack()

    worker = threading.Thread(target=work)
    worker.start()
    broker.settle()
    assert handled == [str(number).encode() for number in range(20)]
    consumer.close()
    worker.join(60)
    assert not worker.is_alive()


def test_retries_come_back_after_their_backoff(broker: VirtualBroker) -> None:
    import fasti

    client = broker.client()
    retry = fasti.Backoff("10m", factor=2, jitter=0)
    client.create_topic("t", max_attempts=3, retry=retry, lookahead=0)
    client.producer("t").send(b"x").result(60)
    with client.consumer("t") as consumer:
        for wait in ("10m", "20m"):
            next(iter(consumer)).nack("not today", wait=True)
            assert consumer.take(timeout=0.05) == []
            broker.advance(wait)
        next(iter(consumer)).nack("never", wait=True)
    dead = client.messages("t").list(state="dead").to_pylist()
    assert [(row["attempts"], row["reason"]) for row in dead] == [(3, "never")]


def test_the_plugin_gives_fixtures_to_any_project(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_later(fasti_broker, fasti_client):
            fasti_client.create_topic("emails")
            fasti_client.producer("emails").send(b"hello", delay="30d").result(60)
            fasti_broker.advance("30d")
            assert next(iter(fasti_client.consumer("emails"))).payload == b"hello"
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_somebody_sets_the_clock(broker: VirtualBroker) -> None:
    client = broker.client()
    client.create_topic("emails")
    client.create_topic("entries", kind="kv")
    client.kv("entries").put("a", b"1", ttl="1d")
    client.producer("emails").send(b"hello", delay="1h").result(60)
    with client.consumer("emails") as consumer:
        # A glitch of a month: nobody believes it, and time goes on.
        broker.set_clock(timedelta(days=30))
        assert broker.now == START
        assert client.clock_info().state == "doubting"
        assert consumer.take(timeout=0.05) == []
        broker.advance("1m")
        broker.set_clock(timedelta(days=-30))
        assert (broker.now, client.clock_info().state) == (
            START + timedelta(minutes=1),
            "following",
        )
        assert client.kv("entries").get("a") is not None
        # An hour back: it goes on, slower.
        broker.set_clock(timedelta(hours=-1))
        assert client.clock_info().state == "slowed"
        broker.advance("2h")
        assert broker.now < START + timedelta(hours=1, minutes=2)
        (message,) = consumer.take(timeout="10s")
        assert message.started_us >= message.due_us
        message.ack()
        # It lasts.
        broker.set_clock(timedelta(days=30))
        broker.advance("5m")
        assert broker.now > START + timedelta(days=30)
        assert client.kv("entries").get("a") is None


def test_the_clock_with_asyncio(broker: VirtualBroker) -> None:
    async def accept() -> tuple[str, bool, bool]:
        async with aio.Client(broker.client()) as client:
            state = (await client.clock_info()).state
            return state, await client.accept_clock(), await client.accept_clock()

    broker.set_clock(timedelta(days=30))
    assert asyncio.run(accept()) == ("doubting", True, False)
    assert broker.now == START + timedelta(days=30)
