"""The protocol from outside: streams of batches and their receipts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.conformance.protocol_client import (
    Client,
    ProduceStream,
    Refused,
    expand,
    partition_of_id,
    rows,
    statuses,
)

MakeTopic = Callable[..., str]
HOUR_US = 3_600_000_000
_producers = itertools.count(1)


@pytest.fixture
def producer() -> str:
    return f"producer-{next(_producers)}"


def later(*payloads: bytes, **columns: Any) -> pa.RecordBatch:
    """Messages that are due in an hour."""
    return rows(payload=payloads, delay_us=[HOUR_US] * len(payloads), **columns)


def scheduled(client: Client, topic: str) -> int:
    return client.call("count", {"topic": topic})["counts"]["scheduled"]


# Receipts


def test_receipts_come_in_order_without_waiting(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    batch = later(*[b"x"] * 100)
    stream = client.produce(batch.schema, topic=topic)
    for _ in range(200):
        stream.write(batch)
    receipts = stream.finish()
    assert [receipt["batch"] for receipt in receipts] == list(range(200))
    ids = [outcome.id for receipt in receipts for outcome in expand(receipt)]
    assert len(set(ids)) == 20_000
    assert ids == sorted(ids), "one partition, in the order in which they were sent"
    assert scheduled(client, topic) == 20_000


def test_a_large_batch_is_told_in_runs(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    batch = later(*[b"x"] * 5000)
    stream = client.produce(batch.schema, topic=topic)
    receipt = stream.ask(batch)
    ((first, count),) = receipt["ids"]
    assert count == 5000
    assert receipt["status"] == [["ok", 5000]]
    assert receipt["versions"] == [[1, 5000]]
    assert not receipt.get("sent_before")
    assert not receipt.get("at_us")
    assert not receipt.get("by")
    assert stream.finish() == []
    found = client.get(topic, rows(id=[first, first + 4999]), payload=False)
    assert [row["status"] for row in found] == ["ok", "ok"]


def test_a_stream_without_batches_just_ends(client: Client, make_topic: MakeTopic) -> None:
    stream = client.produce(pa.schema([("payload", pa.binary())]), topic=make_topic())
    assert stream.finish() == []


# When


def test_each_row_has_its_own_time(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    before_us = client.call("clock")["now_us"]
    (outcomes,) = client.send(
        topic,
        rows(
            payload=[b"due", b"delay", b"now", b"past"],
            due_us=[9_000_000_000_000_000, None, None, 5],
            delay_us=[None, HOUR_US, None, None],
        ),
    )
    after_us = client.call("clock")["now_us"]
    due, delay, now, past = client.get(topic, rows(id=[o.id for o in outcomes]))
    assert (due["due_us"], due["state"]) == (9_000_000_000_000_000, "scheduled")
    assert before_us + HOUR_US <= delay["due_us"] <= after_us + HOUR_US
    assert before_us <= now["due_us"] <= after_us
    assert now["state"] == "ready"
    assert past["state"] == "ready"
    assert [row["payload"] for row in (due, delay, now, past)] == [
        b"due",
        b"delay",
        b"now",
        b"past",
    ]


def test_headers_and_content_types(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    headers = [[("a", "1"), ("b", "")], [], None]
    batch = rows(payload=[b""] * 3, headers=headers, content_type=["x/y", "", None])
    (outcomes,) = client.send(topic, batch)
    found = client.get(topic, rows(id=[o.id for o in outcomes]))
    assert [dict(row["headers"] or []) for row in found] == [{"a": "1", "b": ""}, {}, {}]
    assert found[0]["content_type"] == "x/y"


# Keys


def test_a_taken_key(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ((first,),) = client.send(topic, later(b"old", key=["k"]), owner="billing")
    for metadata in ({}, {"on_conflict": "reject"}):
        ((outcome,),) = client.send(topic, later(b"new", key=["k"]), metadata=metadata)
        assert (outcome.status, outcome.id, outcome.version) == ("conflict", first.id, 1)
    ((outcome,),) = client.send(topic, later(b"new", key=["k"]), metadata={"on_conflict": "keep"})
    assert (outcome.status, outcome.id) == ("duplicate", first.id)
    replace = {"on_conflict": "replace"}
    ((outcome,),) = client.send(topic, later(b"new", key=["k"]), metadata=replace, owner="sales")
    assert outcome.status == "not_owner"
    (row,) = client.get(topic, rows(key=["k"]))
    assert (row["payload"], row["version"]) == (b"old", 1)
    ((outcome,),) = client.send(topic, later(b"new", key=["k"]), metadata=replace, owner="billing")
    assert (outcome.status, outcome.id, outcome.version) == ("ok", first.id, 2)
    (row,) = client.get(topic, rows(key=["k"]))
    assert (row["payload"], row["version"]) == (b"new", 2)


def test_a_leased_key_is_not_replaced(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, rows(payload=[b"old"], key=["k"]))
    session = client.consume(topic, "worker")
    session.take(1)
    ((outcome,),) = client.send(
        topic, later(b"new", key=["k"]), metadata={"on_conflict": "replace"}
    )
    assert (outcome.status, outcome.by) == ("leased", "worker")
    assert outcome.at_us is not None
    session.finish()


@pytest.mark.parametrize(
    ("on_conflict", "expected", "payload"),
    [
        ("reject", ["ok", "conflict", "ok"], b"1"),
        ("keep", ["ok", "duplicate", "ok"], b"1"),
        ("replace", ["ok", "ok", "ok"], b"2"),
    ],
)
def test_rows_of_one_batch_with_one_key_come_one_after_another(
    client: Client, make_topic: MakeTopic, on_conflict: str, expected: list[str], payload: bytes
) -> None:
    topic = make_topic()
    batch = later(b"1", b"2", b"3", key=["k", "k", None])
    (outcomes,) = client.send(topic, batch, metadata={"on_conflict": on_conflict})
    assert statuses(outcomes) == expected
    assert outcomes[0].id == outcomes[1].id
    (row,) = client.get(topic, rows(key=["k"]))
    assert row["payload"] == payload
    assert scheduled(client, topic) == 2


def test_atomic_is_all_or_none(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, later(b"old", key=["k"]))
    batch = later(b"a", b"b", b"c", key=["x", "k", None])
    (outcomes,) = client.send(topic, batch, metadata={"atomic": True})
    assert statuses(outcomes) == ["aborted", "conflict", "aborted"]
    assert scheduled(client, topic) == 1
    (outcomes,) = client.send(topic, batch, metadata={"atomic": False})
    assert statuses(outcomes) == ["ok", "conflict", "ok"]
    assert scheduled(client, topic) == 3


def test_the_partition_of_rows_without_keys(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=5)
    (outcomes,) = client.send(topic, later(*[b""] * 9), metadata={"partition": 3})
    assert {partition_of_id(outcome.id) for outcome in outcomes} == {3}
    (outcomes,) = client.send(topic, later(*[b""] * 9))
    assert len({partition_of_id(outcome.id) for outcome in outcomes}) == 1, "one for the batch"
    for batch, partition in ((later(b""), 5), (later(b""), -1), (later(b"", key=["k"]), 3)):
        with pytest.raises(Refused) as info:
            client.send(topic, batch, metadata={"partition": partition})
        assert info.value.code == "invalid_argument"


# What is refused


@pytest.mark.parametrize(
    "batch",
    [
        rows(payload=[]),
        rows(payload=[None]),
        rows(payload=[b"good", None]),
        rows(payload=[b"x"], due_us=[5], delay_us=[5]),
        rows(payload=[b"x"], delay_us=[-1]),
        rows(payload=[b"x"], due_us=[(1 << 63) - 1]),
        rows(payload=[b"x"], due_us=[-(1 << 63)]),
        rows(payload=[b"x"], delay_us=[(1 << 63) - 1]),
        rows(payload=[b"x" * ((1 << 20) + 1)]),
        rows(payload=[b"x"], key=["k" * 513]),
        rows(payload=[b"x"], key=[""]),
        rows(payload=[b"x"], headers=[[("h", "v" * 16_384)]]),
    ],
)
def test_a_batch_that_can_not_be_is_refused_whole(
    client: Client, make_topic: MakeTopic, batch: pa.RecordBatch
) -> None:
    topic = make_topic()
    stream = client.produce(batch.schema, topic=topic)
    receipt = stream.ask(batch)
    assert receipt["batch"] == 0
    assert receipt["error"]["code"] == "invalid_argument"
    assert receipt["error"]["retryable"] is False
    assert "status" not in receipt
    # Without a producer, the stream goes on.
    good = {name: None for name in batch.schema.names if name != "payload"}
    batch = rows(payload=[b"y"], **{name: [value] for name, value in good.items()})
    receipt = stream.ask(batch)
    assert (receipt["batch"], statuses(receipt)) == (1, ["ok"])
    assert stream.finish() == []
    counts = client.call("count", {"topic": topic})["counts"]
    assert counts["scheduled"] + counts["ready"] == 1


@pytest.mark.parametrize(
    "metadata",
    [
        {"colour": 1},
        {"sequence": "1"},
        {"sequence": 1},
        {"on_conflict": "explode"},
        {"on_conflict": 1},
        {"atomic": "yes"},
        {"partition": "0"},
        {"partition": 0.5},
        {"stage": 7},
        {"stage": "s" * 256},
    ],
)
def test_metadata_that_can_not_be_is_refused(
    client: Client, make_topic: MakeTopic, metadata: Any
) -> None:
    topic = make_topic()
    stream = client.produce(later().schema, topic=topic)
    receipt = stream.ask(later(b"x"), metadata)
    assert receipt["batch"] == 0
    assert receipt["error"]["code"] == "invalid_argument"
    assert statuses(stream.ask(later(b"x"))) == ["ok"]
    assert stream.finish() == []
    assert scheduled(client, topic) == 1


@pytest.mark.parametrize("raw", [b"{", b"\xff", b"[]"])
def test_metadata_that_can_not_be_read_ends_the_stream(
    client: Client, make_topic: MakeTopic, raw: bytes
) -> None:
    topic = make_topic()
    stream = client.produce(later().schema, topic=topic)
    stream.write(later(b"x"))
    stream.write(later(b"x"), raw)
    assert statuses(stream.receipt()) == ["ok"]
    with pytest.raises(Refused) as info:
        stream.receipt()
    assert info.value.code == "invalid_argument"
    assert scheduled(client, topic) == 1


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("key", pa.string())]),
        pa.schema([("payload", pa.string())]),
        pa.schema([("payload", pa.binary()), ("colour", pa.string())]),
        pa.schema([("payload", pa.binary()), ("due_us", pa.int32())]),
        pa.schema([("payload", pa.binary()), ("due_us", pa.timestamp("us"))]),
        pa.schema([("payload", pa.binary()), ("key", pa.binary())]),
        pa.schema([("payload", pa.binary()), ("headers", pa.map_(pa.string(), pa.int64()))]),
        pa.schema([("payload", pa.binary()), ("payload", pa.binary())]),
        pa.schema([("payload", pa.dictionary(pa.int32(), pa.binary()))]),
    ],
)
def test_a_stream_of_another_schema_is_not_opened(
    client: Client, make_topic: MakeTopic, schema: pa.Schema
) -> None:
    topic = make_topic()
    stream = client.produce(schema, topic=topic)
    with pytest.raises(Refused) as info:
        stream.receipt()
    assert info.value.code == "invalid_argument"
    assert scheduled(client, topic) == 0


def test_the_topic_goes_away_under_a_stream(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    stream = client.produce(later().schema, topic=topic)
    assert statuses(stream.ask(later(b"x"))) == ["ok"]
    client.call("delete_topic", {"topic": topic})
    assert stream.ask(later(b"x"))["error"]["code"] == "not_found"
    assert stream.end() == []


# Producers that number their batches


def test_a_batch_that_was_sent_before(client: Client, make_topic: MakeTopic, producer: str) -> None:
    topic = make_topic()
    client.send(topic, later(b"", key=["taken"]))
    batches = [later(b"a%d" % n, b"b", key=[f"k{n}", "taken"]) for n in range(1, 11)]
    first = client.produce(later(key=[]).schema, topic=topic, producer=producer)
    receipts = [first.ask(batch, {"sequence": n}) for n, batch in enumerate(batches, 1)]
    assert first.finish() == []
    assert not any(receipt.get("sent_before") for receipt in receipts)
    assert all(statuses(receipt) == ["ok", "conflict"] for receipt in receipts)
    # Over another stream, from the first one that might have no receipt: the last 8 are kept.
    second = client.produce(batches[0].schema, topic=topic, producer=producer)
    for number in range(3, 11):
        again = second.ask(batches[number - 1], {"sequence": number})
        assert again["sent_before"] is True
        assert again["batch"] == number - 3
        assert statuses(again) == ["ok", "conflict"]
        before = expand(receipts[number - 1])
        assert [(o.id, o.version) for o in expand(again)] == [(o.id, o.version) for o in before]
    # Older ones are not carried out again either, but their receipt is gone.
    forgotten = second.ask(batches[0], {"sequence": 1})
    assert forgotten["sent_before"] is True
    assert statuses(forgotten) == ["duplicate", "duplicate"]
    assert statuses(second.ask(later(b"new", key=["n"]), {"sequence": 11})) == ["ok"]
    assert second.finish() == []
    assert scheduled(client, topic) == 12


def test_numbers_count_over_streams_and_topics(
    client: Client, make_topic: MakeTopic, producer: str
) -> None:
    topics = [make_topic(), make_topic()]
    streams = [client.produce(later().schema, topic=t, producer=producer) for t in topics]
    for number in range(1, 7):
        receipt = streams[number % 2].ask(later(b"x"), {"sequence": number})
        assert statuses(receipt) == ["ok"]
    for stream in streams:
        assert stream.finish() == []
    assert [scheduled(client, topic) for topic in topics] == [3, 3]


def test_a_gap_in_the_numbers(client: Client, make_topic: MakeTopic, producer: str) -> None:
    topic = make_topic()
    stream = client.produce(later().schema, topic=topic, producer=producer)
    stream.write(later(b"1"), {"sequence": 1})
    stream.write(later(b"3"), {"sequence": 3})
    stream.write(later(b"4"), {"sequence": 4})
    good, gap, after = stream.end()
    assert statuses(good) == ["ok"]
    assert gap["error"]["code"] == "invalid_argument"
    # The refused batch stops its stream, so that order holds.
    assert after["error"] == gap["error"]
    assert scheduled(client, topic) == 1


def test_after_a_refused_batch_none_is_carried_out(
    client: Client, make_topic: MakeTopic, producer: str
) -> None:
    topic = make_topic()
    stream = client.produce(later().schema, topic=topic, producer=producer)
    stream.write(later(b"1"), {"sequence": 1})
    stream.write(later(b"x" * ((1 << 20) + 1)), {"sequence": 2})
    for number in (3, 4, 5):
        stream.write(later(b"%d" % number), {"sequence": number})
    receipts = stream.end()
    assert [receipt["batch"] for receipt in receipts] == [0, 1, 2, 3, 4]
    assert statuses(receipts[0]) == ["ok"]
    assert len({str(receipt["error"]) for receipt in receipts[1:]}) == 1, "the same error"
    # A new stream begins again with the first refused one.
    stream = client.produce(later().schema, topic=topic, producer=producer)
    receipts = [stream.ask(later(b"x"), {"sequence": number}) for number in (2, 3, 4, 5)]
    assert [statuses(receipt) for receipt in receipts] == [["ok"]] * 4
    assert stream.finish() == []
    assert scheduled(client, topic) == 5


def test_an_unknown_producer_begins_with_one(
    client: Client, make_topic: MakeTopic, producer: str
) -> None:
    topic = make_topic()
    stream = client.produce(later().schema, topic=topic, producer=producer)
    receipt = stream.ask(later(b"x"), {"sequence": 5})
    assert receipt["error"]["code"] == "unknown_producer"
    assert receipt["error"]["retryable"] is False
    assert len(stream.end()) == 0
    stream = client.produce(later().schema, topic=topic, producer=producer + "-new")
    assert statuses(stream.ask(later(b"x"), {"sequence": 1})) == ["ok"]
    stream.finish()


@pytest.mark.parametrize("metadata", [None, {}, {"sequence": 0}, {"sequence": -1}])
def test_a_producer_numbers_its_batches(
    client: Client, make_topic: MakeTopic, producer: str, metadata: Any
) -> None:
    topic = make_topic()
    stream = client.produce(later().schema, topic=topic, producer=producer)
    assert stream.ask(later(b"x"), metadata)["error"]["code"] == "invalid_argument"
    stream.end()
    assert scheduled(client, topic) == 0


# Other descriptors


def test_descriptors_of_other_kinds_are_refused(client: Client) -> None:
    descriptor = fl.FlightDescriptor.for_path("emails")
    schema = pa.schema([("payload", pa.binary())])
    stream = ProduceStream(*client.flight.do_put(descriptor, schema, client.options()))
    with pytest.raises(Refused) as info:
        stream.receipt()
    assert info.value.code == "invalid_argument"


# Expiry


def test_a_message_tells_by_when_it_must_be_begun(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    far_us = 4_000_000_000_000_000
    (outcomes,) = client.send(
        topic,
        rows(
            payload=[b"at", b"after", b"never"],
            due_us=[far_us] * 3,
            expires_us=pa.array([far_us + 5, None, None], pa.int64()),
            expires_after_us=pa.array([None, 7, None], pa.int64()),
        ),
    )
    ids = [outcome.id for outcome in outcomes]
    found = client.get(topic, rows(id=ids), payload=False)
    assert [row["expires_us"] for row in found] == [far_us + 5, far_us + 7, None]


@pytest.mark.parametrize(
    "columns",
    [
        {"expires_us": [0]},
        {"expires_us": [-1]},
        {"expires_after_us": [0]},
        {"expires_us": [1 << 62]},
        {"expires_after_us": [(1 << 63) - 1]},
        {"expires_us": [5], "expires_after_us": [5]},
    ],
)
def test_moments_that_can_not_be_are_refused(
    client: Client, make_topic: MakeTopic, columns: dict[str, list[int]]
) -> None:
    topic = make_topic()
    batch = rows(payload=[b"x"], **columns)
    stream = client.produce(batch.schema, topic=topic)
    assert stream.ask(batch)["error"]["code"] == "invalid_argument"
    assert stream.finish() == []
    assert scheduled(client, topic) == 0
