"""What stays on the shard of its message: replies, copies, schedules, parcels; and how topics are spread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import fasti
from fasti.core.layout import Layout
from fasti.errors import CrossShard, NotFound, TopicMismatch
from fasti.model import partition_of
from fasti.testing import VirtualBroker

SHARDS = 4


@pytest.fixture
def broker() -> Iterator[VirtualBroker]:
    with VirtualBroker(shards=SHARDS) as broker:
        yield broker


@pytest.fixture
def client(broker: VirtualBroker) -> fasti.Client:
    return broker.client("me")


def settings(client: fasti.Client, topic: str) -> Any:
    return client.transport.shard(0).call("topic", {"topic": topic})[0]["settings"]


def test_topics_are_spread_unless_they_are_told(client: fasti.Client) -> None:
    for kind, partitions in {"timeline": 4, "kv": 4, "priority": 1, "log": 1, "cron": 1}.items():
        client.create_topic(kind, kind=kind)
        assert settings(client, kind)["partitions"] == partitions
        # Again, and it is the same.
        client.create_topic(kind, kind=kind)
    client.create_topic("timeline", partitions=4)
    with pytest.raises(TopicMismatch):
        client.create_topic("timeline", partitions=1)


def test_copies_that_would_cross_shards_are_refused_with_the_remedy(client: fasti.Client) -> None:
    client.create_topic("orders")
    client.create_topic("audit", partitions=1)
    client.create_topic("mails")
    with pytest.raises(CrossShard, match="home, partitions and width"):
        client.bindings("orders").add(">", "audit")
    client.bindings("orders").add("new.>", "mails")
    orders = client.producer("orders")
    orders.send_batch(
        [b"%d" % n for n in range(40)],
        key=[f"k{n}" if n % 2 else None for n in range(40)],
        subject=["new.order"] * 40,
    )
    assert client.messages("mails").count()["ready"] == 40
    layout = Layout(SHARDS, SHARDS)
    for number in range(SHARDS):
        own = client.transport.shard(number).call("topic", {"topic": "mails"})[0]["counts"]
        assert own["ready"] > 0
    for message in client.messages("mails").list(limit=None, payload=True).to_pylist():
        if message["key"] is not None:
            assert layout.shard_of_key(message["key"]) == layout.shard_of(
                partition_of(message["id"])
            )


def test_late_replies_are_kept_by_the_shard_of_their_request(
    broker: VirtualBroker, client: fasti.Client
) -> None:
    client.create_topic("questions")
    client.producer("questions").send_batch(
        [b"?"] * 8,
        key=[f"q{n}" for n in range(8)],
        headers=[{"reply_to": "_inbox.gone", "call_id": str(n)} for n in range(8)],
    )
    layout = Layout(SHARDS, SHARDS)
    with client.consumer("questions", timeout="10s") as consumer:
        answered = 0
        while answered < 8:
            for message in consumer.take(8):
                assert message.reply(b"!").status == "dead"
                answered += 1
    dead = [
        client.transport.shard(number).call("topic", {"topic": "_replies"})[0]["counts"]["dead"]
        for number in sorted({layout.shard_of_key(f"q{n}") for n in range(8)})
    ]
    assert sum(dead) == 8
    assert all(dead)
    # Each shard has made it for itself: for a user it is one.
    assert client.messages("_replies").count()["dead"] == 8
    client.delete_topic("_replies")
    assert [topic.name for topic in client.topics()] == ["questions"]
    with pytest.raises(NotFound):
        client.delete_topic("_replies")


def test_schedules_emit_into_partitions_of_their_shard(
    broker: VirtualBroker, client: fasti.Client
) -> None:
    client.create_topic("reports")
    client.create_topic("cron", kind="cron")
    schedules = client.schedules("cron")
    for number in range(12):
        schedules.put(f"s{number}", every="10m", target="reports", payload=b"%d" % number)
    broker.advance("11m")
    counts = client.messages("reports").count()
    assert counts["ready"] == 12
    per_shard = [
        client.transport.shard(number).call("topic", {"topic": "reports"})[0]["counts"]["ready"]
        for number in range(SHARDS)
    ]
    assert sum(per_shard) == 12
    assert sum(count > 0 for count in per_shard) > 1


def test_a_topic_goes_when_it_is_idle_on_every_shard(
    broker: VirtualBroker, client: fasti.Client
) -> None:
    client.create_topic("short", idle_age="1h")
    producer = client.producer("short")
    broker.advance("40m")
    # One shard has it in use, which the others don't know.
    producer.send(b"x", key="somebody").result()
    broker.advance("40m")
    assert client.messages("short").count()["ready"] == 1
    broker.advance("2h")
    broker.advance("1m")
    with pytest.raises(NotFound):
        client.messages("short").count()
