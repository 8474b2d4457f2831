"""Dead letters by filter: redriven within their topic or to another, purged, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.errors import InvalidArgument, NotFound
from fasti.testing import VirtualBroker
from tests.integration.serve_rig import SEGMENTS


@pytest.fixture(scope="module", params=["process", "embedded"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[fasti.Client]:
    if request.param == "process":
        with (
            BrokerProcess(tmp_path_factory.mktemp("data"), settings=SEGMENTS) as broker,
            fasti.connect(broker.address) as made,
        ):
            yield made
    else:
        with fasti.connect(f"embedded:{tmp_path_factory.mktemp('data')}") as made:
            yield made


@pytest.fixture
def topic(client: fasti.Client, request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.node.name.split("[")[0])
    client.create_topic(name)
    client.create_topic(f"{name}-other")
    yield name
    client.delete_topic(name)
    client.delete_topic(f"{name}-other")


def die(client: fasti.Client, topic: str, reasons: list[str], **columns: Any) -> list[int]:
    """Messages that died of these reasons, one each; their ids."""
    payloads = [b"%d" % number for number in range(len(reasons))]
    sent = client.producer(topic).send_batch(payloads, **columns)
    ids = sent.ids.tolist()
    why = dict(zip(ids, reasons, strict=True))
    with client.consumer(topic, prefetch=1000) as consumer:
        for _, message in zip(ids, consumer, strict=False):
            message.reject(why[message.id])
    return ids


def dead(client: fasti.Client, topic: str, **filters: Any) -> list[int]:
    return client.messages(topic).dead(limit=None, **filters).column("id").to_pylist()


def test_listed_and_counted_by_reason(client: fasti.Client, topic: str) -> None:
    ids = die(client, topic, ["refused: a", "no address", "refused: b", "no address"])
    messages = client.messages(topic)
    assert dead(client, topic) == ids
    assert dead(client, topic, reason="refused") == [ids[0], ids[2]]
    assert dead(client, topic, reason="REFUSED") == []
    assert messages.list(reason="address").num_rows == 2
    assert messages.dead_counts() == {"no address": 2, "refused: a": 1, "refused: b": 1}
    assert next(iter(messages.dead_counts())) == "no address"
    assert messages.dead_counts(reason="b") == {"refused: b": 1}


def test_redriven_by_filter_within_their_topic(client: fasti.Client, topic: str) -> None:
    ids = die(client, topic, ["refused", "no address", "refused"])
    told: list[tuple[int, int]] = []
    messages = client.messages(topic)
    found = messages.redrive(
        reason="ref", delay="1h", progress=lambda done, total: told.append((done, total))
    )
    assert (found.counts(), found.all_ok, found.ok, len(found)) == ({"ok": 2}, True, 2, 2)
    assert told == [(0, 2), (2, 2)]
    assert dead(client, topic) == [ids[1]]
    assert messages.count()["scheduled"] == 2
    assert messages.redrive().counts() == {"ok": 1}
    assert messages.redrive().counts() == {}
    row = messages.get(id=ids[1])
    assert (row["state"], row["attempts"]) == ("ready", 0)


def test_filters_are_joined_by_and(client: fasti.Client, topic: str) -> None:
    messages = client.messages(topic)
    mine = die(client, topic, ["x", "y"], due=[1_000_000, 2_000_000])
    with client.producer(topic, owner="other") as producer:
        producer.send(b"").result()
    with client.consumer(topic) as consumer:
        next(iter(consumer)).reject("x")
    assert messages.dead_counts(reason="x") == {"x": 2}
    assert messages.dead_counts(reason="x", owner="other") == {"x": 1}
    assert messages.dead_counts(due_from=1_500_000, due_to=3_000_000) == {"y": 1}
    assert messages.purge(reason="x", due_to=3_000_000).counts() == {"ok": 1}
    assert mine[0] not in dead(client, topic)
    assert messages.purge(owner="other").counts() == {"ok": 1}
    assert dead(client, topic) == [mine[1]]


def test_to_another_topic_with_what_they_died_of(client: fasti.Client, topic: str) -> None:
    other = f"{topic}-other"
    ids = die(
        client,
        topic,
        ["refused", "no address"],
        key=["a", "b"],
        headers=[{"lang": "en"}, {"fasti-dead-reason": "an earlier one"}],
        content_type=["text/plain", None],
    )
    found = client.messages(topic).redrive(to=other, delay="1h")
    assert found.counts() == {"ok": 2}
    assert dead(client, topic) == []
    counts = client.messages(topic).count()
    assert (counts["scheduled"], counts["ready"], counts["dead"]) == (0, 0, 0)
    rows = client.messages(other).get(key=["a", "b"]).to_pylist()
    assert [row["payload"] for row in rows] == [b"0", b"1"]
    assert [row["state"] for row in rows] == ["scheduled"] * 2
    assert [row["content_type"] for row in rows] == ["text/plain", None]
    assert dict(rows[0]["headers"]) == {
        "lang": "en",
        "fasti-dead-topic": topic,
        "fasti-dead-reason": "refused",
        "fasti-dead-attempts": "1",
    }
    assert dict(rows[1]["headers"])["fasti-dead-reason"] == "no address"
    assert len(rows[1]["headers"]) == 3
    assert client.messages(topic).redrive(ids[0]).status in ("gone", "dead")


def test_a_taken_key_stays_dead(client: fasti.Client, topic: str) -> None:
    other = f"{topic}-other"
    client.producer(other).send(b"there", key="b", delay="1h").result()
    ids = die(client, topic, ["x"] * 4, key=["a", "b", "c", None])
    # A key is free again when its message is dead, so two of the dead may have the same.
    again = die(client, topic, ["x"], key=["c"])
    found = client.messages(topic).redrive(to=other)
    assert found.counts() == {"ok": 3, "conflict": 2}
    left = sorted([ids[1], again[0]])
    assert found.failed == [{"id": each, "status": "conflict"} for each in left]
    assert dead(client, topic) == left
    assert client.messages(other).get(key="b")["payload"] == b"there"


def test_owners_stay(client: fasti.Client, topic: str) -> None:
    for owner in ("ann", "bob", ""):
        client.producer(topic, owner=owner).send(b"%s" % owner.encode()).result()
    with client.consumer(topic) as consumer:
        for _, message in zip(range(3), consumer, strict=False):
            message.reject("x")
    assert client.messages(topic).redrive(to=f"{topic}-other").counts() == {"ok": 3}
    rows = client.messages(f"{topic}-other").list(payload=True).to_pylist()
    assert sorted(((row["owner"] or "").encode(), row["payload"]) for row in rows) == [
        (b"", b""),
        (b"ann", b"ann"),
        (b"bob", b"bob"),
    ]


def test_named_ones_to_another_topic(client: fasti.Client, topic: str) -> None:
    ids = die(client, topic, ["x"] * 3)
    messages = client.messages(topic)
    found = messages.redrive([ids[2], ids[0], 99_999], to=f"{topic}-other")
    assert found.counts() == {"ok": 2, "not_found": 1}
    assert dead(client, topic) == [ids[1]]
    with pytest.raises(InvalidArgument, match="not both"):
        messages.redrive(ids, reason="x")
    with pytest.raises(NotFound, match="nowhere"):
        messages.redrive(to="nowhere")
    with pytest.raises(InvalidArgument):
        messages.redrive(delay="1h", due=5)
    assert dead(client, topic) == [ids[1]]


def test_more_than_one_piece(client: fasti.Client, topic: str) -> None:
    # All on one shard: a piece is what one shard does at a time.
    topic += "-alone"
    for name in (topic, f"{topic}-other"):
        client.create_topic(name, partitions=1)
    messages, other = client.messages(topic), client.messages(f"{topic}-other")
    client.producer(topic).send_batch([b"x" * 1000] * 11_000)
    left = 11_000
    with client.consumer(topic) as consumer:
        for batch in consumer.batches(5_000, wait="1s"):
            batch.reject(None, "x")
            left -= len(batch)
            if not left:
                break
    told: list[int] = []
    found = messages.redrive(to=other.topic, progress=lambda done, total: told.append(done))
    assert found.counts() == {"ok": 11_000}
    assert told[0] == 0
    assert told[-1] == 11_000
    # 4 MiB of payloads at a time, which is less than the rows that a piece may have.
    assert 0 < told[1] < 5_000
    assert (messages.count()["dead"], other.count()["ready"]) == (0, 11_000)
    for name in (topic, f"{topic}-other"):
        client.delete_topic(name)


def test_tasks_redrive_too() -> None:
    async def story(broker: VirtualBroker) -> None:
        async with fasti.aio.Client(broker.client()) as client:
            await client.create_topic("a")
            await client.create_topic("b")
            await (await client.producer("a").send(b"1"))
            async with client.consumer("a") as consumer:
                (await anext(consumer)).reject("why")
            messages = client.messages("a")
            assert await messages.dead_counts() == {"why": 1}
            told: list[int] = []
            done = await messages.redrive(to="b", progress=lambda n, _: told.append(n))
            assert done.counts() == {"ok": 1}
            assert (await messages.dead(reason="why")).num_rows == 0
            assert (await client.messages("b").count())["ready"] == 1
            assert (await client.messages("b").purge()).counts() == {}
            assert told == [0, 1]

    with VirtualBroker() as broker:
        asyncio.run(story(broker))


def test_dead_rows_of_a_group(client: fasti.Client, topic: str) -> None:
    topic += "-alone"
    log = f"{topic}-log"
    # A log's keys lie otherwise than a timeline's: only on one shard can messages go from one to the other.
    client.create_topic(log, kind="log", partitions=2, width=1)
    for name in (topic, f"{topic}-other"):
        client.create_topic(name, width=1)
    client.producer(log).send_batch([b"%d" % n for n in range(6)], key=[f"k{n}" for n in range(6)])
    groups = client.groups(log)
    with client.consumer(log, group="g") as consumer:
        for _, message in zip(range(6), consumer, strict=False):
            message.reject("odd" if int(message.payload) % 2 else "even")
    assert groups.dead_counts("g") == {"even": 3, "odd": 3}
    assert groups.redrive("g", reason="odd", to=f"{topic}-other").counts() == {"ok": 3}
    moved = client.messages(f"{topic}-other").list(payload=True).to_pylist()
    assert sorted(row["payload"] for row in moved) == [b"1", b"3", b"5"]
    assert groups.dead_counts("g") == {"even": 3}
    assert groups.redrive("g").counts() == {"ok": 3}
    assert groups.dead_counts("g") == {}
    with client.consumer(log, group="g") as consumer:
        for _, message in zip(range(3), consumer, strict=False):
            message.reject("again")
    assert groups.purge("g", reason="again").counts() == {"ok": 3}
    # And from a timeline into a log.
    die(client, topic, ["x", "x"])
    assert client.messages(topic).redrive(to=log).counts() == {"ok": 2}
    assert client.topic(log).counts["ready"] == 8
    for name in (log, topic, f"{topic}-other"):
        client.delete_topic(name)
