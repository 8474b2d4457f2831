"""The change feed of real brokers: everything once, in order, over kills, retention and reconnections."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.client.changes import Position
from fasti.client.client import Client
from fasti.errors import Gone, InvalidArgument, NotFound
from tests.integration.serve_rig import emptied
from tests.unit.cli.rig import run_here


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    with emptied(shared):
        yield shared


@pytest.fixture
def begin(client: Client) -> Position:
    """Where the feed is when a test begins: what others did stands before it."""
    return client.feed().last


def rows_of(client: Client, **options: Any) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if value is not None}
        for table in client.changes(**options)
        for row in table.to_pylist()
    ]


def ops(rows: list[dict[str, Any]]) -> list[str]:
    return [row["op"] for row in rows]


def a_life(client: Client) -> None:
    client.create_topic("t", max_attempts=2)
    producer = client.producer("t")
    producer.send(b"one", key="k", delay="1h").result()
    messages = client.messages("t")
    assert messages.move(key="k", delay="2h").ok
    assert messages.update(key="k", payload=b"two").ok
    assert messages.move(key="k", delay="0s").ok
    message = next(iter(client.consumer("t", name="worker")))
    message.ack(wait=True)


@pytest.mark.one_shard
def test_the_life_of_a_message(client: Client, begin: Position) -> None:
    a_life(client)
    rows = rows_of(client, start=begin, payload=True)
    told = [row for row in rows if row["op"] != "renewed"]
    assert ops(told) == [
        "topic_created", "produced", "moved", "updated", "moved", "leased", "acked",
    ]  # fmt: skip
    produced, updated, leased, acked = told[1], told[3], told[5], told[6]
    assert len({row["id"] for row in told[1:]}) == 1
    assert (produced["key"], produced["payload"], produced["version"]) == ("k", b"one", 1)
    assert (updated["payload"], updated["version"]) == (b"two", 3)
    assert leased["consumer"] == "worker"
    assert acked["started_us"] >= told[4]["due_us"]
    places = [(row["position"], row["row"]) for row in rows]
    assert places == sorted(set(places))


@pytest.mark.one_shard
def test_it_goes_on_where_it_was(client: Client, begin: Position) -> None:
    a_life(client)
    first = client.changes(start=begin)
    seen = [row["op"] for table in first for row in table.to_pylist()]
    assert seen
    client.messages("t")
    client.create_topic("u")
    again = client.changes(start=first.position)
    assert [row["op"] for table in again for row in table.to_pylist()] == ["topic_created"]
    text = str(first.position)
    assert Position.parse(text) == first.position
    assert ops(rows_of(client, start=text)) == ["topic_created"]


@pytest.mark.one_shard
def test_bounds_and_places(client: Client) -> None:
    begin = datetime.now(UTC)
    a_life(client)
    bounds = client.feed()
    assert bounds.first.frame == 0
    assert bounds.last.frame > 3
    assert ops(rows_of(client, start="latest")) == []
    assert "topic_created" in ops(rows_of(client, start=begin - timedelta(seconds=1)))
    assert rows_of(client, start=datetime.now(UTC) + timedelta(hours=1)) == []
    ahead = Position(bounds.last.shard, bounds.last.frame + 1000)
    with pytest.raises(NotFound):
        rows_of(client, start=ahead)
    with pytest.raises(Gone):
        rows_of(client, start=Position("0" * 16, 0))
    for nonsense in ("yesterday", 5, None):
        with pytest.raises(InvalidArgument):
            client.changes(start=nonsense)


@pytest.mark.one_shard
def test_one_topic_of_several_also_when_it_is_gone(client: Client, begin: Position) -> None:
    a_life(client)
    client.create_topic("other")
    client.producer("other").send(b"x").result()
    client.delete_topic("other")
    other = rows_of(client, start=begin, topic="other")
    assert ops(other) == ["topic_created", "produced", "topic_deleted"]
    assert "other" not in {row["topic"] for row in rows_of(client, topic="t")}
    assert rows_of(client, topic="nobody") == []


@pytest.mark.one_shard
def test_a_plan_splits_it_without_a_gap(client: Client) -> None:
    client.create_topic("t")
    for number in range(30):
        client.producer("t").send_batch([b"%d" % number] * 7)
    whole = rows_of(client)
    for splits in (1, 3, 7, 1000):
        tickets = client.transport.plan({"call": "changes", "splits": splits})
        assert len(tickets) <= splits
        found = []
        for ticket in tickets:
            ticket.pop("version", None)
            for batch in client.transport.read(ticket):
                found += batch.select(["position", "row"]).to_pylist()
        assert found == [{"position": r["position"], "row": r["row"]} for r in whole]


def test_following_shows_what_happens_and_ends_by_its_time(client: Client) -> None:
    client.create_topic("t")
    changes = client.changes(start="latest", follow=True, timeout=0.5)
    assert list(changes) == []
    found: list[str] = []
    came = threading.Event()

    def follow() -> None:
        with client.changes(start="latest", follow=True) as following:
            started.set()
            for table in following:
                found.extend(table.column("op").to_pylist())
                if len(found) >= 3:
                    came.set()
                    return

    started = threading.Event()
    thread = threading.Thread(target=follow)
    thread.start()
    assert started.wait(60)
    sent = client.producer("t").send_batch([b"a", b"b"])
    client.messages("t").cancel(id=sent.ids.tolist()[0])
    assert came.wait(60)
    thread.join(60)
    assert found == ["produced", "produced", "cancelled"]


@pytest.mark.one_shard
def test_a_closed_one_ends(client: Client, begin: Position) -> None:
    client.create_topic("t")
    changes = client.changes(start=begin, follow=True)
    assert next(changes).num_rows == 1
    closer = threading.Timer(0.2, changes.close)
    closer.start()
    assert list(changes) == []
    changes.close()


@pytest.mark.one_shard
def test_asyncio(broker: BrokerProcess) -> None:
    async def read(begin: Position) -> list[str]:
        async with fasti.aio.connect(broker.address) as client:
            found = []
            async for table in await client.changes(start=begin, topic="t"):
                found += table.column("op").to_pylist()
            assert (await client.feed()).last.frame > begin.frame
            return found

    with fasti.connect(broker.address) as client, emptied(client):
        begin = client.feed().last
        a_life(client)
        assert asyncio.run(read(begin))[:2] == ["topic_created", "produced"]


def test_a_follower_over_kills_misses_nothing_and_sees_nothing_twice(tmp_path: Path) -> None:
    sent = 0
    seen: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    ids: list[int] = []
    with BrokerProcess(tmp_path, settings={"segment_size": "1MiB"}) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t", partitions=2)
            stop = threading.Event()

            def follow() -> None:
                with client.changes(follow=True, topic="t") as changes:
                    for table in changes:
                        for row in table.to_pylist():
                            if row["op"] == "produced":
                                seen[row["partition"]].append((row["position"], row["row"]))
                                ids.append(row["id"])
                        if stop.is_set() and len(ids) >= sent:
                            return

            thread = threading.Thread(target=follow)
            thread.start()
            producer = client.producer("t")
            for round_number in range(4):
                for _ in range(20):
                    outcomes = producer.send_batch([b"x" * 500] * 50, timeout="60s")
                    assert outcomes.all_ok
                    sent += 50
                if round_number < 3:
                    broker.kill()
                    broker.start()
            stop.set()
            producer.send(b"last").result(timeout=60)
            thread.join(60)
            assert not thread.is_alive()
            assert len(ids) == len(set(ids)) >= sent
            # A partition is all on one shard, whose frames have an order.
            assert all(places == sorted(set(places)) for places in seen.values())


@pytest.mark.one_shard
def test_retention_is_short_and_what_is_gone_is_said(tmp_path: Path) -> None:
    settings = {"segment_size": "64KiB", "feed_size": "0B", "checkpoint_size": "64KiB"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t")
            start = client.feed().last
            for _ in range(40):
                assert client.producer("t").send_batch([b"x" * 1000] * 20, due=1).all_ok
            client.checkpoint()
            with pytest.raises(Gone) as caught:
                rows_of(client, start=start)
            assert caught.value.details["first"] == client.feed().first.frame > 0


@pytest.mark.one_shard
def test_counts_hold_at_their_position(client: Client, begin: Position) -> None:
    """Under traffic: what the feed tells up to there adds up to what was counted, exactly."""
    client.create_topic("t")
    stop = threading.Event()
    sent = threading.Semaphore(0)

    def produce() -> None:
        producer = client.producer("t")
        while not stop.is_set():
            assert producer.send_batch([b"x"] * 7, due=[1 << 60] * 7).all_ok
            sent.release()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        counted = []
        for _ in range(4):
            # However slow the producer is: there is more than the last time. A batch that was
            # sent after another one that came after now is new to us.
            while sent.acquire(blocking=False):
                pass
            for _ in range(2):
                assert sent.acquire(timeout=60)
            counted += [client.topic("t") for _ in range(5)]
            counted += [client.topics()[0] for _ in range(5)]
    finally:
        stop.set()
        thread.join()
    rows = rows_of(client, start=begin)
    produced = [row["position"] for row in rows if row["op"] == "produced"]
    assert counted[-1].counts["scheduled"] > counted[0].counts["scheduled"]
    for topic in counted:
        assert topic.position is not None
        told = sum(position <= topic.position.frame for position in produced)
        assert topic.counts["scheduled"] == told


@pytest.mark.one_shard
def test_the_command_line(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client, emptied(client):
        begin = str(client.feed().last)
        a_life(client)
        position = client.feed().last

    def run(*arguments: str) -> str:
        done = run_here("changes", *arguments, "--address", broker.address)
        assert done.code == 0, done.err
        return done.out

    lines = run("--from", begin, "--json", "--payload").splitlines()
    told = [json.loads(line) for line in lines]
    assert told[1]["op"] == "produced"
    assert told[1]["key"] == "k"
    assert Position.parse(told[1]["position"]).shard == position.shard
    assert len(run("-n", "2").splitlines()) == 2
    assert "acked" in run("--from", begin, "--topic", "t")
    assert "topic_created" not in run("--from", str(position))
    assert run("--from", "-1h", "-n", "1").split()[1] == "topic_created"
