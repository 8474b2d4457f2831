"""Consumer groups of logs through the SDK: over a broker process, embedded, asyncio, apps."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.client.client import Client
from fasti.errors import (
    AlreadyExists,
    Fenced,
    Gone,
    InvalidArgument,
    NotFound,
    TransactionAborted,
)
from fasti.testing import VirtualBroker
from tests.integration.log_rig import fill
from tests.integration.serve_rig import emptied

QUICK = fasti.Backoff("1ms", factor=1, limit="1ms")


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    with emptied(shared):
        yield shared


def take(client: Client, count: int, group: str = "billing", **more: Any) -> list[Any]:
    """So many messages, acked."""
    with client.consumer("events", group=group, timeout="60s", **more) as consumer:
        found = []
        for message in consumer:
            found.append(message)
            message.ack()
            if len(found) == count:
                break
        return found


def test_a_group_gets_every_row_once(client: Client) -> None:
    fill(client, partitions=3)
    found = take(client, 30)
    assert sorted(message.payload for message in found) == sorted(
        b"%d:%d" % (p, offset) for p in range(3) for offset in range(10)
    )
    assert {(m.group, m.topic, m.attempts, m.version) for m in found} == {
        ("billing", "events", 1, 1)
    }
    assert all(m.payload == b"%d:%d" % (m.partition, m.offset) for m in found)
    group = client.groups("events").describe("billing")
    assert [(p.committed, p.consumed, p.end, p.lag) for p in group.partitions] == [
        (10, 9, 10, 0)
    ] * 3
    assert (group.lag, group.leased, group.dead, group.behind) == (0, 0, 0, 0)


def test_every_row_is_due_when_it_was_appended_also_from_a_block(client: Client) -> None:
    client.create_topic("events", kind="log", partitions=1)
    for number in range(3):
        client.producer("events").send(b"%d" % number).result()
    client.checkpoint()
    appended = [message.created_us for message in client.reader("events")]
    assert len(set(appended)) == 3
    assert [message.due_us for message in take(client, 3)] == appended


def test_consumers_of_a_group_share_its_rows_and_groups_do_not(client: Client) -> None:
    """Broadcast is one group for each subscriber."""
    fill(client, partitions=2, rows=50)
    seen: dict[str, Counter[bytes]] = {"mail": Counter(), "audit": Counter()}
    lock, all_seen = threading.Lock(), threading.Event()

    def work(group: str, consumer: Any) -> None:
        for message in consumer:
            message.ack()
            with lock:
                seen[group][message.payload] += 1
                if all(len(counts) == 100 for counts in seen.values()):
                    all_seen.set()

    consumers = [
        (group, client.consumer("events", group=group, prefetch=5))
        for group in ("mail", "mail", "audit")
    ]
    threads = [threading.Thread(target=work, args=each) for each in consumers]
    for thread in threads:
        thread.start()
    assert all_seen.wait(60)
    for _, consumer in consumers:
        consumer.close()
    for thread in threads:
        thread.join(60)
    assert all(set(counts.values()) == {1} for counts in seen.values())


def test_what_is_nacked_comes_again_beside_what_is_new(client: Client) -> None:
    fill(client, rows=5, retry=QUICK)
    attempts: Counter[int] = Counter()
    with client.consumer("events", group="billing", timeout="60s") as consumer:
        for message in consumer:
            attempts[message.offset] += 1
            assert message.attempts == attempts[message.offset]
            if message.offset == 1 and message.attempts < 3:
                message.nack("not yet")
            else:
                message.ack()
            if attempts == {0: 1, 1: 3, 2: 1, 3: 1, 4: 1}:
                break
    assert client.groups("events").lag("billing") == 0


def test_one_slow_message_holds_nothing_up(client: Client) -> None:
    fill(client, rows=100)
    with client.consumer("events", group="billing", prefetch=10, timeout="60s") as consumer:
        slow = next(consumer)
        assert slow.offset == 0
        others = []
        for message in consumer:
            message.ack()
            others.append(message.offset)
            if len(others) == 99:
                break
        consumer.flush()
        (place,) = client.groups("events").describe("billing").partitions
        assert (place.committed, place.consumed, place.lag, place.leased) == (0, 99, 1, 1)
        slow.ack(wait=True)
        (place,) = client.groups("events").describe("billing").partitions
        assert (place.committed, place.lag) == (100, 0)
    assert others == list(range(1, 100))


def test_rows_that_fail_for_good_are_dead_for_their_group_alone(client: Client) -> None:
    fill(client, rows=4, max_attempts=1)
    groups = client.groups("events")
    with client.consumer("events", group="billing", timeout="60s") as consumer:
        for message in consumer:
            outcome = (
                message.reject("no such account", wait=True)
                if message.offset == 1
                else message.nack("timeout", wait=True)
                if message.offset == 2
                else message.ack(wait=True)
            )
            assert outcome is not None
            if message.offset == 3:
                break
    dead = groups.dead("billing", payload=True)
    assert dead.column("reason").to_pylist() == ["no such account", "timeout"]
    assert dead.column("payload").to_pylist() == [b"0:1", b"0:2"]
    assert dead.column("attempts").to_pylist() == [1, 1]
    assert groups.dead("billing", reason="time").column("id").to_pylist() == [3]
    assert groups.describe("billing").lag == 0
    take(client, 4, group="other")
    # One gets another life, one is forgotten.
    assert groups.redrive("billing", reason="time").counts() == {"ok": 1}
    (again,) = take(client, 1)
    assert (again.offset, again.attempts) == (2, 1)
    assert groups.purge("billing").counts() == {"ok": 1}
    assert groups.dead("billing").num_rows == 0
    assert groups.purge("billing", 2).status != "ok"
    assert len(list(client.reader("events"))) == 4


def test_groups_are_made_reset_and_deleted(client: Client) -> None:
    fill(client, partitions=2)
    groups = client.groups("events")
    made = groups.create("tail", start="latest")
    assert [(p.committed, p.lag) for p in made.partitions] == [(10, 0), (10, 0)]
    with pytest.raises(AlreadyExists):
        groups.create("tail")
    assert groups.create("some", start={0: 7}).lag == 13
    assert groups.create("future", start=datetime.now(UTC) + timedelta(days=1)).lag == 0
    assert [group.name for group in groups.list()] == ["future", "some", "tail"]
    assert groups.reset("tail", to=4, partition=1).lag == 6
    assert {(m.partition, m.offset) for m in take(client, 6, "tail")} == {
        (1, offset) for offset in range(4, 10)
    }
    assert groups.reset("tail", to="earliest").lag == 20
    assert groups.reset("tail", to={0: 9, 1: 10}).lag == 1
    assert groups.reset("tail", to=datetime.now(UTC) - timedelta(days=1)).lag == 20
    groups.delete("tail")
    for call in (groups.describe, groups.delete, groups.lag):
        with pytest.raises(NotFound):
            call("tail")
    with pytest.raises(InvalidArgument):
        groups.reset("some", to=999, partition=0)
    with pytest.raises(InvalidArgument):
        groups.reset("some", to=3)


def test_a_reset_takes_leases_away(client: Client) -> None:
    fill(client, rows=3)
    with client.consumer("events", group="billing", timeout="60s") as consumer:
        held = next(consumer)
        client.groups("events").reset("billing", to="latest")
        outcome = held.ack(wait=True)
        assert outcome is not None
        assert outcome.status != "ok"


def test_a_group_that_is_behind_learns_it(client: Client) -> None:
    fill(client)
    take(client, 2)
    client.log("events").truncate(5)
    group = client.groups("events").describe("billing")
    assert group.behind == 3
    with pytest.raises(Gone) as gone:
        take(client, 1)
    assert gone.value.details["earliest"] == 5
    assert gone.value.details["lost"] == 3
    client.groups("events").reset("billing", to="earliest")
    assert [message.offset for message in take(client, 5)] == list(range(5, 10))


def test_consumers_that_are_at_work_learn_that_their_group_is_behind(client: Client) -> None:
    fill(client)
    consumer = client.consumer("events", group="billing", prefetch=2)
    held = next(consumer)
    client.log("events").truncate(6)
    # The end of the session may be here before the answer to this.
    with suppress(Gone):
        outcome = held.ack(wait=True)
        assert outcome is not None
        assert outcome.status != "ok"

    def work() -> None:
        # What came before may still be given out.
        for message in consumer:
            message.ack(wait=True)

    with pytest.raises(Gone) as gone:
        work()
    assert gone.value.details["group"] == "billing"
    consumer.close()


def test_deleting_a_group_ends_its_consumers(client: Client) -> None:
    fill(client, rows=1)
    consumer = client.consumer("events", group="billing", timeout="60s")
    next(consumer).ack(wait=True)
    client.groups("events").delete("billing")
    with pytest.raises(Gone, match="deleted"):
        next(consumer)
    # Another one of that name begins anew.
    assert [message.offset for message in take(client, 1)] == [0]


def test_order_per_key_within_a_group(client: Client) -> None:
    client.create_topic("events", kind="log", retry=QUICK)
    keys = [f"k{n % 3}" for n in range(30)]
    client.producer("events").send_batch([b"%d" % n for n in range(30)], key=keys)
    client.groups("events").create("billing", ordered=True)
    out: dict[str, int] = {}
    done: dict[str, list[int]] = {}
    with client.consumer("events", group="billing", timeout="60s") as consumer:
        for message in consumer:
            key = message.key
            assert out.setdefault(key, message.offset) == message.offset
            if message.offset % 7 == 0 and message.attempts == 1:
                message.nack("again")
                continue
            del out[key]
            done.setdefault(key, []).append(message.offset)
            message.ack()
            if sum(map(len, done.values())) == 30:
                break
    assert done == {f"k{n}": list(range(n, 30, 3)) for n in range(3)}


def test_a_transaction_acks_for_a_group(client: Client) -> None:
    fill(client, rows=2)
    client.create_topic("results", kind="log")
    client.create_topic("emails", partitions=1)
    with client.consumer("events", group="billing", timeout="60s") as consumer:
        message = next(consumer)
        with client.transaction() as tx:
            tx.ack(message)
            tx.send("results", b"done")
            tx.send("emails", b"mail", key="one")
        assert client.groups("events").describe("billing").partitions[0].committed == 1
        assert [row.payload for row in client.reader("results")] == [b"done"]
        other = next(consumer)
        tx = client.transaction()
        tx.ack(other)
        tx.send("results", b"never")
        tx.send("emails", b"mail", key="one")
        with pytest.raises(TransactionAborted):
            tx.commit()
        assert len(list(client.reader("results"))) == 1
        assert client.groups("events").describe("billing").leased == 1
        other.ack()


def test_only_logs_have_groups_and_logs_need_one(client: Client) -> None:
    fill(client)
    client.create_topic("emails")
    with pytest.raises(InvalidArgument, match="group"):
        next(client.consumer("emails", group="billing"))
    with pytest.raises(InvalidArgument, match="group"):
        next(client.consumer("events"))
    with pytest.raises(InvalidArgument):
        client.consumer("events", group="")


def test_a_consumer_comes_back_to_what_it_had(client: Client) -> None:
    fill(client, rows=3)
    first = client.consumer("events", group="billing", name="w1", timeout="60s")
    held = next(first)
    second = client.consumer("events", group="billing", name="w1", timeout="60s")
    again = {next(second).offset for _ in range(3)}
    assert held.offset in again
    # What it had here it may still give out; then it learns that its name is taken.
    with pytest.raises(Fenced, match="w1"):
        list(first)
    second.close()
    first.close()


def test_groups_of_an_event_loop(broker: BrokerProcess) -> None:
    asyncio.run(consume_in_a_loop(broker.address))


async def consume_in_a_loop(address: str) -> None:
    async with fasti.aio.connect(address) as client:
        await client.create_topic("loop", kind="log", partitions=2, max_attempts=1)
        producer = client.producer("loop")
        for partition in range(2):
            await producer.send_batch([b"x"] * 10, partition=partition)
        groups = client.groups("loop")
        assert (await groups.create("billing", start="earliest")).lag == 20
        taken = 0
        async with client.consumer("loop", group="billing", timeout="60s") as consumer:
            async for message in consumer:
                taken += 1
                if message.offset == 5:
                    message.reject("bad")
                elif message.offset == 6:
                    async with client.transaction() as tx:
                        tx.ack(message)
                else:
                    message.ack()
                if taken == 20:
                    break
        assert await groups.lag("billing") == 0
        assert (await groups.dead("billing")).num_rows == 2
        assert (await groups.redrive("billing")).counts() == {"ok": 2}
        assert [group.name for group in await groups.list()] == ["billing"]
        assert (await groups.reset("billing", to="latest")).lag == 0
        assert (await groups.purge("billing")).counts() == {}
        assert (await groups.describe("billing")).dead == 0
        await groups.delete("billing")
        await client.delete_topic("loop")


def test_an_app_handles_groups_in_virtual_time() -> None:
    with VirtualBroker() as broker:
        app = fasti.App(broker.client())
        seen: dict[str, list[int]] = {"billing": [], "audit": []}

        @app.on("events", group="billing", retry=fasti.Backoff("1m", jitter=0))
        def bill(event: dict[str, int]) -> None:
            seen["billing"].append(event["n"])
            if event["n"] == 1 and seen["billing"].count(1) == 1:
                raise ValueError("not yet")

        @app.on("events", group="audit")
        def audit(event: dict[str, int]) -> None:
            seen["audit"].append(event["n"])

        with pytest.raises(AlreadyExists, match="billing"):
            app.on("events", group="billing")(lambda event: None)
        with app:
            for n in range(3):
                bill.later({"n": n}).result()
            broker.settle()
            assert sorted(seen["audit"]) == [0, 1, 2]
            assert sorted(seen["billing"]) == [0, 1, 2]
            broker.advance("1m")
            broker.settle()
            assert sorted(seen["billing"]) == [0, 1, 1, 2]
            assert set(app.stats()) == {"events/billing", "events/audit"}
        assert broker.client().groups("events").lag("billing") == 0


@pytest.mark.one_shard
def test_metrics_tell_of_logs_and_groups(client: Client) -> None:
    fill(client, partitions=2)
    take(client, 5)
    text = client.metrics()
    lag = client.groups("events").describe("billing").partitions[0].lag
    assert f'fasti_group_lag{{group="billing",partition="0",topic="events"}} {lag}.0' in text
    assert 'fasti_log_rows{partition="1",topic="events"} 10.0' in text
    assert 'fasti_log_end_offset{partition="0",topic="events"} 10.0' in text
    assert text.count("# TYPE fasti_watchers gauge") == 1
    assert 'fasti_messages{state="ready",topic="events"} 0.0' in text
    assert 'fasti_log_dropped_rows_total{topic="events",why="truncated"} 0.0' in text
    client.log("events").truncate(before=7, partition=1)
    dropped = 'fasti_log_dropped_rows_total{topic="events",why="truncated"} 7.0'
    assert dropped in client.metrics()


def test_leases_survive_a_restart(tmp_path: Path) -> None:
    place = f"embedded:{tmp_path}"
    with fasti.connect(place, segment_bytes=1 << 20) as client:
        fill(client, rows=4)
        consumer = client.consumer("events", group="billing", name="w1", timeout="60s")
        held = [next(consumer) for _ in range(4)]
        held[0].ack(wait=True)
        held[2].ack(wait=True)
        client.checkpoint()
    with fasti.connect(place, segment_bytes=1 << 20) as client:
        (group,) = client.groups("events").list()
        assert (group.partitions[0].committed, group.lag) == (1, 2)
        found = take(client, 2, name="w1")
        assert sorted(message.offset for message in found) == [1, 3]
