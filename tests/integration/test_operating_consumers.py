"""Operators: who consumes, taking leases back, and pausing topics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.errors import InvalidArgument, NotFound
from fasti.testing.virtual import START, VirtualBroker
from tests.integration.serve_rig import SEGMENTS


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker() as made:
        yield made


@pytest.fixture
def client(broker: VirtualBroker) -> fasti.Client:
    made = broker.client()
    made.create_topic("jobs", lease="30s", lookahead=0)
    return made


# Consumers


def test_who_has_what(broker: VirtualBroker, client: fasti.Client) -> None:
    assert client.consumers() == []
    client.producer("jobs").send_batch([b"a", b"b", b"c"])
    with client.consumer("jobs", name="w1", prefetch=2) as consumer:
        # Both: what it still asks for would be heard at any time.
        next(consumer), next(consumer)
        broker.advance("10s")
        (found,) = client.consumers("jobs")
        assert (found.topic, found.group, found.consumer) == ("jobs", "", "w1")
        assert (found.connected, found.peer, found.leases) == (True, "embedded", 2)
        # Virtual time lets no lease run out by itself.
        assert (found.oldest_lease, found.lease_until) == (START, START + timedelta(seconds=40))
        assert (found.connected_since, found.idle_s) == (START, 10.0)
    # What it had begun it still has, though it is gone.
    (found,) = client.consumers()
    assert (found.connected, found.peer, found.leases, found.credit) == (False, None, 2, 0)
    with pytest.raises(NotFound):
        client.consumers("nothing")


def test_one_that_waits_has_credit(broker: VirtualBroker, client: fasti.Client) -> None:
    with client.consumer("jobs", name="w1", prefetch=7) as consumer:
        assert consumer.take(timeout=0.05) == []
        (found,) = client.consumers()
        assert (found.leases, found.credit, found.oldest_lease) == (0, 7, None)


def test_groups_of_logs_are_told_apart(broker: VirtualBroker, client: fasti.Client) -> None:
    client.create_topic("events", kind="log", partitions=2)
    client.producer("events").send_batch([b"%d" % n for n in range(6)])
    with (
        client.consumer("events", group="billing", name="w1", prefetch=2) as billing,
        client.consumer("events", group="mail", name="w1", prefetch=1) as mail,
    ):
        next(billing), next(mail)
        found = {each.group: each.leases for each in client.consumers("events")}
        assert found == {"billing": 2, "mail": 1}
        assert client.release_consumer("w1", group="mail") == 1
        assert {each.group: each.leases for each in client.consumers("events")}["billing"] == 2


def test_over_the_wire_it_has_an_address(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("jobs")
        client.producer("jobs").send(b"a").result(60)
        with client.consumer("jobs", name="w1") as consumer:
            next(consumer)
            (found,) = client.consumers()
            assert found.peer is not None
            assert found.peer.startswith("127.0.0.1:")


# Taking back


def test_a_hung_workers_messages_go_to_others(broker: VirtualBroker, client: fasti.Client) -> None:
    client.producer("jobs").send_batch([b"a", b"b"])
    hung = client.consumer("jobs", name="hung", prefetch=2)
    held = [next(hung), next(hung)]
    assert client.release_consumer("hung") == 2
    assert client.release_consumer("hung") == 0
    with client.consumer("jobs", name="w2") as consumer:
        again = next(consumer)
        assert (again.id, again.attempts) == (held[0].id, 1)
        assert held[0].ack(wait=True).status == "stale_lease"
        assert again.ack(wait=True).status == "ok"


def test_by_id(broker: VirtualBroker, client: fasti.Client) -> None:
    ids = client.producer("jobs").send_batch([b"a", b"b"]).ids.tolist()
    with client.consumer("jobs", name="w1", prefetch=1) as consumer:
        message = next(consumer)
        jobs = client.messages("jobs")
        assert jobs.release(ids[0]).status == "ok"
        # It is there again, and so is its old due time.
        assert jobs.get(id=ids[0])["due_us"] == message.due_us
        found = jobs.release([ids[1], 4711])
        assert [outcome.status for outcome in found] == ["conflict", "not_found"]
        assert message.nack("late", wait=True).status == "stale_lease"
    with pytest.raises(InvalidArgument):
        client.transport.call("release_leases", {"topic": "jobs"})


# Pausing


def test_a_paused_topic_hands_nothing_out(broker: VirtualBroker, client: fasti.Client) -> None:
    producer = client.producer("jobs")
    producer.send_batch([b"a", b"b"])
    with client.consumer("jobs", name="w1", prefetch=1) as consumer:
        held = next(consumer)
        assert (client.pause_topic("jobs"), client.pause_topic("jobs")) == (True, False)
        assert client.topic("jobs").paused
        assert [topic.paused for topic in client.topics()] == [True]
        # Produce goes on, and so do live leases.
        assert producer.send(b"c", delay="1s").result(60).ok
        assert held.extend("1m", wait=True).status == "ok"
        assert held.ack(wait=True).status == "ok"
        broker.advance("1h")
        assert consumer.take(timeout=0.05) == []
        broker.settle(timeout=5)
        assert (client.resume_topic("jobs"), client.resume_topic("jobs")) == (True, False)
        got = [next(consumer)]
        got[0].ack(wait=True)
        got.append(next(consumer))
        got[1].ack(wait=True)
        assert [message.payload for message in got] == [b"b", b"c"]
    assert not client.topic("jobs").paused


def test_a_lease_that_ends_meanwhile_waits(broker: VirtualBroker, client: fasti.Client) -> None:
    id = client.producer("jobs").send(b"a").result(60).id
    with client.consumer("jobs", name="w1", prefetch=1) as consumer:
        next(consumer).release(wait=True)
        again = next(consumer)
        client.pause_topic("jobs")
        again.release(wait=True)
        assert consumer.take(timeout=0.05) == []
        assert client.messages("jobs").get(id=id)["state"] == "ready"
        # A change can still be made, which an idle consumer must not undo.
        assert client.messages("jobs").cancel(id=id).status == "ok"
        client.resume_topic("jobs")
        assert consumer.take(timeout=0.05) == []


def test_groups_of_a_paused_log_wait(broker: VirtualBroker, client: fasti.Client) -> None:
    client.create_topic("events", kind="log")
    client.pause_topic("events")
    client.producer("events").send_batch([b"0", b"1"])
    with client.consumer("events", group="g", prefetch=5) as consumer:
        assert consumer.take(timeout=0.05) == []
        # A log itself can be read.
        assert len(list(client.reader("events", follow=False))) == 2
        client.resume_topic("events")
        assert next(consumer).payload == b"0"


def test_schedules_go_on_filling_it(broker: VirtualBroker, client: fasti.Client) -> None:
    client.create_topic("nightly", kind="cron")
    client.schedules("nightly").put("n", every="1h", target="jobs", payload=b"x")
    client.pause_topic("jobs")
    broker.advance("3h")
    assert client.messages("jobs").count()["ready"] >= 2


@pytest.mark.parametrize("kind", ["kv", "cron"])
def test_nothing_to_pause(client: fasti.Client, kind: str) -> None:
    client.create_topic("other", kind=kind)
    with pytest.raises(InvalidArgument, match="has no consumers"):
        client.pause_topic("other")
    with pytest.raises(NotFound):
        client.pause_topic("missing")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_it_stays_paused_over_a_restart(tmp_path: Path, checkpoint: bool) -> None:
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("jobs")
        client.producer("jobs").send(b"a").result(60)
        client.pause_topic("jobs")
        if checkpoint:
            client.checkpoint()
    with fasti.connect(f"embedded:{tmp_path}") as client:
        assert client.topic("jobs").paused
        assert re.search(
            r'^fasti_topic_paused{.*topic="jobs"} 1\.0$', client.metrics(), re.MULTILINE
        )
        with client.consumer("jobs") as consumer:
            assert consumer.take(timeout=0.2) == []
            client.resume_topic("jobs")
            assert next(consumer).payload == b"a"
        feed = client.feed()
        ops = [op for table in client.changes(start=feed.first) for op in table["op"].to_pylist()]
        # The feed of every shard has both.
        shards = client.transport.shard_count
        assert [op for op in ops if "pause" in op or "resumed" in op] == [
            "topic_paused",
            "topic_resumed",
        ] * shards


def test_tasks_do_it_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with fasti.aio.connect(f"embedded:{tmp_path}") as client:
            await client.create_topic("jobs")
            await client.producer("jobs").send(b"a")
            async with client.consumer("jobs", name="w1") as consumer:
                message = await anext(consumer)
                assert [each.consumer for each in await client.consumers()] == ["w1"]
                assert await client.pause_topic("jobs")
                assert (await client.messages("jobs").release(message.id)).status == "ok"
                assert await client.release_consumer("w1") == 0
                assert await client.resume_topic("jobs")
                assert (await anext(consumer)).id == message.id

    asyncio.run(run())
