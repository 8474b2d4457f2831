"""Fan-out by subjects, on a broker process and on one inside this process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.client.bindings import Binding
from fasti.errors import InvalidArgument, NotFound, TransactionAborted
from tests.integration.serve_rig import SEGMENTS


@pytest.fixture
def topics(client: fasti.Client) -> Iterator[dict[str, str]]:
    """Fresh topics, by what they are for."""
    kinds = {"orders": {}, "emails": {}, "audit": {"kind": "log"}, "relay": {"relay": True}}
    for name, settings in kinds.items():
        # All on one shard: else a log's rows and a timeline's messages have no common place.
        client.create_topic(name, width=1, **settings)
    yield {name: name for name in kinds}
    for name in kinds:
        client.delete_topic(name)


def payloads(client: fasti.Client, topic: str) -> list[bytes]:
    if client.topic(topic).settings.kind == "log":
        return [message.payload for message in client.reader(topic)]
    found = client.messages(topic).list(payload=True, limit=None)
    return sorted(found.column("payload").to_pylist())


@pytest.mark.usefixtures("topics")
def test_a_message_goes_where_its_subject_fits(client: fasti.Client) -> None:
    bindings = client.bindings("orders")
    assert bindings.add("orders.*.created", "emails")
    assert bindings.add("orders.>", "audit")
    assert not bindings.add("orders.>", "audit")
    assert bindings.list() == [Binding("orders.*.created", "emails"), Binding("orders.>", "audit")]
    with client.producer("orders") as producer:
        producer.send(b"1", subject="orders.eu.created", headers={"a": "b"})
        producer.send(b"2", subject="orders.eu.paid")
        producer.send(b"3")
        sent = producer.send_batch(
            pa.table({"payload": [b"4", b"5"], "subject": ["orders.us.created", "users.new"]})
        )
        assert sent.all_ok
    assert payloads(client, "orders") == [b"1", b"2", b"3", b"4", b"5"]
    assert payloads(client, "emails") == [b"1", b"4"]
    assert payloads(client, "audit") == [b"1", b"2", b"4"]
    with client.consumer("emails", timeout="60s") as consumer:
        message = next(iter(consumer))
        assert (message.subject, message.headers) == ("orders.eu.created", {"a": "b"})
        message.ack()
    # The copies are messages of their own.
    assert client.messages("orders").count()["done"] == 0
    bindings.remove("orders.>", "audit")
    with client.producer("orders") as producer:
        producer.send(b"6", subject="orders.eu.created")
    assert payloads(client, "audit") == [b"1", b"2", b"4"]
    assert b"6" in payloads(client, "emails")
    with pytest.raises(NotFound):
        bindings.remove("orders.>", "audit")


@pytest.mark.usefixtures("topics")
def test_what_one_topic_can_not_take_is_nowhere(client: fasti.Client) -> None:
    client.bindings("orders").add(">", "emails")
    with client.producer("emails") as producer:
        producer.send(b"old", delay="1h", key="user-7").result(60)
    with client.producer("orders") as producer:
        refused = producer.send(b"new", delay="1h", key="user-7")
        fine = producer.send(b"fine", delay="1h", key="user-8")
        outcome = refused.result(60)
        assert (outcome.status, outcome.by) == ("conflict", "emails")
        assert fine.result(60).ok
        whole = producer.send_batch([b"a", b"b"], key=["user-7", "user-9"], atomic=True)
        assert whole.status == ["conflict", "aborted"]
        replaced = producer.send(b"new", delay="1h", key="user-7", on_conflict="replace")
        assert replaced.result(60).ok
    assert payloads(client, "orders") == [b"fine", b"new"]
    assert payloads(client, "emails") == [b"fine", b"new"]


@pytest.mark.usefixtures("topics")
def test_a_relay_keeps_nothing(client: fasti.Client) -> None:
    client.bindings("relay").add("orders.>", "emails")
    with client.producer("relay") as producer:
        outcomes = producer.send_batch([b"1", b"2"], subject=["orders.new", "users.new"])
    assert outcomes.all_ok
    assert outcomes.ids.tolist() == [0, 0]
    assert (payloads(client, "relay"), payloads(client, "emails")) == ([], [b"1"])
    lost = [line for line in client.metrics().splitlines() if line.startswith("fasti_unrouted_t")]
    assert sum(float(line.split()[-1]) for line in lost if 'topic="relay"' in line) == 1
    with pytest.raises(InvalidArgument, match="relay"):
        client.bindings("orders").add(">", "relay")
    with pytest.raises(InvalidArgument, match="relay"):
        client.change_topic("emails", relay=True)


@pytest.mark.usefixtures("topics")
def test_in_transactions(client: fasti.Client) -> None:
    client.bindings("orders").add(">", "emails")
    with client.producer("emails") as producer:
        producer.send(b"taken", delay="1h", key="k").result(60)
    with client.transaction() as tx:
        tx.send("orders", b"1", subject="orders.new")
        tx.send("audit", b"1")
    undone = client.transaction()
    undone.send("audit", b"2")
    undone.send("orders", b"2", delay="1h", key="k")
    with pytest.raises(TransactionAborted):
        undone.commit()
    assert payloads(client, "audit") == payloads(client, "orders") == [b"1"]
    assert payloads(client, "emails") == [b"1", b"taken"]


@pytest.mark.usefixtures("topics")
def test_bad_bindings_are_refused_by_name(client: fasti.Client) -> None:
    bindings = client.bindings("orders")
    for pattern in ("", "a..b", ">.a", "a*", "a b", "x" * 256):
        with pytest.raises(InvalidArgument) as refusal:
            bindings.add(pattern, "emails")
        assert refusal.value.details["field"] == "pattern"
    with pytest.raises(InvalidArgument, match="itself"):
        bindings.add(">", "orders")
    with pytest.raises(NotFound):
        bindings.add(">", "nowhere")
    with pytest.raises(NotFound):
        client.bindings("nowhere").list()
    client.create_topic("entries", kind="kv")
    with pytest.raises(InvalidArgument, match="kv"):
        bindings.add(">", "entries")
    client.delete_topic("entries")
    with client.producer("orders") as producer:
        for subject in ("a.*", "", "a b", "x" * 256):
            with pytest.raises(InvalidArgument):
                producer.send(b"", subject=subject)
        with pytest.raises(InvalidArgument):
            producer.send_batch([b"a"], subject=["a..b"])
    assert bindings.list() == []


@pytest.mark.usefixtures("topics")
def test_a_deleted_target_is_bound_no_more(client: fasti.Client) -> None:
    client.bindings("orders").add(">", "emails")
    client.bindings("orders").add("a", "audit")
    client.delete_topic("emails")
    assert client.bindings("orders").list() == [Binding("a", "audit")]
    with client.producer("orders") as producer:
        assert producer.send(b"1", subject="a").result(60).ok
    client.create_topic("emails")
    assert payloads(client, "emails") == []


@pytest.mark.usefixtures("topics")
def test_bindings_change_while_messages_come(client: fasti.Client) -> None:
    """Each message is in both topics bound at its moment, once; none is lost or doubled."""
    client.bindings("orders").add("x.>", "audit")
    done = threading.Event()

    def flip() -> None:
        bindings = client.bindings("orders")
        while not done.is_set():
            bindings.add("x.*", "emails")
            bindings.remove("x.*", "emails")

    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        with client.producer("orders") as producer:
            receipts = [producer.send(b"%d" % n, subject="x.y") for n in range(3_000)]
            assert all(receipt.result(30).ok for receipt in receipts)
    finally:
        done.set()
        flipping.join()
    everything = sorted(b"%d" % n for n in range(3_000))
    assert payloads(client, "orders") == everything
    assert sorted(payloads(client, "audit")) == everything
    assert max(Counter(payloads(client, "emails")).values(), default=1) == 1


def test_bindings_outlive_the_broker(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
    ):
        for name in ("a", "b", "c"):
            client.create_topic(name)
        client.bindings("a").add("x.>", "b")
        client.checkpoint()
        client.bindings("a").add("x.>", "c")
        broker.kill()
        broker.start()
        assert client.bindings("a").list() == [Binding("x.>", "b"), Binding("x.>", "c")]
        with client.producer("a") as producer:
            assert producer.send(b"1", subject="x.y").result(60).ok
        assert [payloads(client, name) for name in ("a", "b", "c")] == [[b"1"]] * 3


def test_a_broker_that_is_killed_leaves_all_copies_or_none(tmp_path: Path) -> None:
    """Every message that was acknowledged is in each topic once, and no topic has one more."""
    with (
        BrokerProcess(tmp_path / "data", settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("a", width=1)
        for name, kind in {"b": "timeline", "c": "log", "d": "priority"}.items():
            client.create_topic(name, kind=kind, width=1)
            client.bindings("a").add("x.>", name)
        sent = 0
        with client.producer("a") as producer:
            receipts = []
            for round_ in range(3):
                for _ in range(40):
                    receipts.append(producer.send(b"%d" % sent, subject="x.y", key=f"k{sent}"))
                    sent += 1
                    if sent % 10 == 0:
                        receipts[-1].result(30)
                if round_ < 2:
                    broker.kill()
                    broker.start()
            assert all(receipt.result(30).ok for receipt in receipts)
        expected = sorted(b"%d" % n for n in range(sent))
        for name in ("a", "b", "c", "d"):
            assert sorted(payloads(client, name)) == expected


def test_from_an_event_loop(broker: BrokerProcess) -> None:
    async def story() -> None:
        async with fasti.aio.connect(broker.address) as client:
            for name in ("loop-a", "loop-b"):
                await client.create_topic(name)
            bindings = client.bindings("loop-a")
            assert await bindings.add("x.*", "loop-b")
            async with client.producer("loop-a") as producer:
                await (await producer.send(b"1", subject="x.y"))
            async with client.consumer("loop-b") as consumer:
                async for message in consumer:
                    assert message.subject == "x.y"
                    message.ack()
                    break
            assert await bindings.list() == [Binding("x.*", "loop-b")]
            await bindings.remove("x.*", "loop-b")
            assert await bindings.list() == []

    asyncio.run(story())
