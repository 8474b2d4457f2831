"""The change feed by key and by id: all rows of the messages that are meant, and of no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fasti
import fasti.aio
from fasti.broker.calls import change_filter
from fasti.broker.launch import BrokerProcess
from fasti.client.changes import Position
from fasti.client.client import Client
from fasti.errors import InvalidArgument
from tests.integration.serve_rig import emptied


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    with emptied(shared):
        yield shared


def life(client: Client, **options: Any) -> list[tuple[str, int, str]]:
    return [
        (row["topic"], row["id"], row["op"])
        for table in client.changes(**options)
        for row in table.to_pylist()
    ]


def two_topics(client: Client) -> tuple[int, int]:
    """Messages of two keys in two topics; the ids of those with `a` in `t`, the second delivered."""
    ids = []
    for topic in ("t", "u"):
        client.create_topic(topic)
    for topic in ("t", "u"):
        for key in ("b", "a"):
            sent = client.producer(topic).send(b"", key=key, delay="1h").result(60)
            ids += [sent.id] if (topic, key) == ("t", "a") else []
    messages = client.messages("t")
    assert messages.move(key="a", delay="2h").ok
    assert messages.move(key="b", delay="2h").ok
    assert messages.cancel(key="a").ok
    ids.append(client.producer("t").send(b"", key="a").result(60).id)
    with client.consumer("t", name="worker") as consumer:
        next(iter(consumer)).ack(wait=True)
    return ids[0], ids[1]


def test_by_key(client: Client) -> None:
    start = client.feed().last
    first, second = two_topics(client)
    lived = [("t", first, op) for op in ("produced", "moved", "cancelled")]
    lived += [("t", second, op) for op in ("produced", "leased", "acked")]
    assert life(client, start=start, topic="t", key="a") == lived
    both = life(client, start=start, key="a")
    assert [row for row in both if row[0] == "t"] == lived
    assert [op for topic, _, op in both if topic == "u"] == ["produced"]
    assert life(client, start=start, key="nobody") == []


def test_by_id(client: Client) -> None:
    start = client.feed().last
    first, second = two_topics(client)
    assert [op for _, _, op in life(client, start=start, topic="t", id=second)] == [
        "produced",
        "leased",
        "acked",
    ]
    found = life(client, start=start, topic="t", id=[first, second])
    assert [number for _, number, _ in found] == [first] * 3 + [second] * 3
    assert {topic for topic, _, _ in life(client, start=start, id=first)} == {"t", "u"}


def test_one_that_was_there_before_is_known_by_its_key(client: Client) -> None:
    client.create_topic("t")
    client.producer("t").send(b"", key="a", delay="1h").result(60)
    start = client.feed().last
    client.messages("t").move(key="a", delay="2h")
    client.messages("t").update(key="a", payload=b"x")
    assert [op for _, _, op in life(client, start=start, topic="t", key="a")] == [
        "moved",
        "updated",
    ]


@pytest.mark.one_shard
def test_some_ops_and_columns_of_a_key(client: Client) -> None:
    start = client.feed().last
    two_topics(client)
    ticket = {"call": "changes", "after": start.frame, "topic": "t", "key": "a"}
    ticket |= {"ops": ["acked", "cancelled"], "columns": ["row", "op"]}
    batches = list(client.transport.read(ticket))
    assert all(batch.schema.names == ["row", "op"] for batch in batches)
    found = [op for batch in batches for op in batch["op"].to_pylist()]
    assert found == ["cancelled", "acked"]


def test_rows_of_a_log_and_entries(client: Client) -> None:
    start = client.feed().last
    client.create_topic("rows", kind="log")
    client.create_topic("values", kind="kv")
    for key in ("a", "b", "a"):
        client.producer("rows").send(b"", key=key).result(60)
        client.kv("values").put(key, b"")
    client.kv("values").delete("a")
    found = life(client, start=start, topic="rows", key="a")
    assert [op for _, _, op in found] == ["appended", "appended"]
    ops = [op for _, _, op in life(client, start=start, topic="values", key="a")]
    assert (ops[0], ops[-1]) == ("put", "deleted")


def test_a_reader_that_goes_on_says_what_it_has_met(client: Client) -> None:
    """The message is done by then: nobody else could say that it had the key."""
    client.create_topic("t")
    start = client.feed().last
    client.producer("t").send(b"", key="a").result(60)
    changes = client.changes(start=start, topic="t", key="a", follow=True, timeout="60s")
    assert next(changes)["op"].to_pylist() == ["produced"]
    # As when the connection is lost.
    changes._following.end(0)
    with client.consumer("t") as consumer:
        next(iter(consumer)).ack(wait=True)
    seen: list[str] = []
    while "acked" not in seen:
        seen += next(changes)["op"].to_pylist()
    changes.close()
    assert seen == ["leased", "acked"]


def test_of_any_number_of_messages_the_latest_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_filter, "_FOLLOWED_MAX", 2)
    with fasti.connect(f"embedded:{tmp_path}") as client:
        client.create_topic("t")
        start = client.feed().last
        for _ in range(5):
            sent = client.producer("t").send(b"", key="a", delay="1h").result(60)
            client.messages("t").cancel(key="a")
        found = life(client, start=start, topic="t", key="a")
        assert [op for _, _, op in found].count("produced") == 5
        assert ("t", sent.id, "cancelled") in found


@pytest.mark.one_shard
def test_what_makes_no_sense_is_refused(client: Client) -> None:
    for given in ({"key": ""}, {"id": -1}, {"id": list(range(1001))}):
        with pytest.raises(InvalidArgument):
            life(client, **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        client.transport.plan({"call": "changes", "key": "a", "splits": 2})
    for known in ([1], [["t"]], [["t", "u"]], [[1, "t"]]):
        with pytest.raises(InvalidArgument):
            list(client.transport.read({"call": "changes", "key": "a", "known": known}))


def test_asyncio(broker: BrokerProcess) -> None:
    async def story() -> list[str]:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("tasks")
            start: Position = (await client.feed()).last
            for key in ("a", "b"):
                await client.producer("tasks").send(b"", key=key, delay="1h")
            await client.messages("tasks").cancel(key="b")
            found = await client.changes(start=start, topic="tasks", key="b")
            ops = [op async for table in found for op in table["op"].to_pylist()]
            await client.delete_topic("tasks")
            return ops

    assert asyncio.run(story()) == ["produced", "cancelled"]
