"""The protocol from outside: listings, snapshots and their tickets."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import Client, Refused, partition_of_id, rows, statuses

MakeTopic = Callable[..., str]
FAR_US = 9_000_000_000_000_000
METADATA = {
    "id": pa.int64(),
    "partition": pa.int32(),
    "state": pa.string(),
    "due_us": pa.int64(),
    "version": pa.int64(),
    "attempts": pa.int32(),
    "owner": pa.string(),
    "consumer": pa.string(),
    "reason": pa.string(),
    "priority": pa.int32(),
    "leased_us": pa.int64(),
    "lease_until_us": pa.int64(),
    "died_us": pa.int64(),
    "expires_us": pa.int64(),
}
CONTENTS = {
    "key": pa.string(),
    "created_us": pa.int64(),
    "headers": pa.map_(pa.string(), pa.string()),
    "content_type": pa.string(),
    "subject": pa.string(),
    "payload": pa.binary(),
}


def listing(topic: str, **filters: Any) -> dict[str, Any]:
    return {"version": 1, "call": "list", "topic": topic, **filters}


def far(count: int, **columns: Any) -> pa.RecordBatch:
    due_us = [FAR_US + n for n in range(count)]
    return rows(payload=[b"%d" % n for n in range(count)], due_us=due_us, **columns)


def ids_of(table: pa.Table) -> list[int]:
    return table.column("id").to_pylist()


def test_the_columns_of_a_listing(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for count in (0, 3):
        if count:
            client.send(topic, far(count))
        bare = client.read(listing(topic))
        full = client.read(listing(topic, payload=True))
        assert dict(zip(bare.schema.names, bare.schema.types, strict=True)) == METADATA
        assert dict(zip(full.schema.names, full.schema.types, strict=True)) == METADATA | CONTENTS
        assert len(bare) == len(full) == count
    assert full.column("payload").to_pylist() == [b"0", b"1", b"2"]


def test_every_filter(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    for partition in range(3):
        client.send(topic, far(4), metadata={"partition": partition}, owner=f"owner-{partition}")
    client.send(topic, rows(payload=[b"held", b"dead"]))
    session = client.consume(topic, "worker")
    held, dead = session.take(2)
    assert statuses(session.use("reject", [dead["id"]], reason="why")) == ["ok"]
    client.send(topic, rows(payload=[b"ready"], key=["k"]), owner="owner-9")
    everything = client.list(topic)
    ids = [row["id"] for row in everything]
    assert ids == sorted(ids)
    assert len(ids) == 15
    for row in everything:
        assert row["partition"] == partition_of_id(row["id"])
    assert [row["id"] for row in client.list(topic, state="leased")] == [held["id"]]
    (row,) = client.list(topic, state="dead")
    assert (row["id"], row["reason"]) == (dead["id"], "why")
    (row,) = client.list(topic, state="leased")
    assert (row["consumer"], row["attempts"]) == ("worker", 1)
    (row,) = client.list(topic, state="ready", payload=True)
    assert (row["payload"], row["key"], row["owner"]) == (b"ready", "k", "owner-9")
    assert len(client.list(topic, state="scheduled")) == 12
    assert {row["partition"] for row in client.list(topic, owner="owner-1")} == {1}
    assert len(client.list(topic, owner="owner-1")) == 4
    assert len(client.list(topic, owner="nobody")) == 0
    between = client.list(topic, due_from_us=FAR_US + 1, due_to_us=FAR_US + 3)
    assert sorted(row["due_us"] - FAR_US for row in between) == [1, 1, 1, 2, 2, 2]
    assert [row["id"] for row in client.list(topic, limit=7)] == ids[:7]
    assert client.list(topic, limit=0) == []
    assert [row["id"] for row in client.list(topic, partition=2)] == [
        id_ for id_ in ids if partition_of_id(id_) == 2
    ]
    both = client.list(topic, partition=0, due_to_us=FAR_US + 1, state="scheduled", limit=10)
    assert [row["due_us"] for row in both] == [FAR_US]
    session.finish()


def test_a_long_listing_is_whole(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    batch = far(50_000)
    client.send(topic, batch, metadata={"partition": 0})
    client.send(topic, batch, metadata={"partition": 1})
    ids = ids_of(client.read(listing(topic)))
    assert len(set(ids)) == 100_000
    assert ids == sorted(ids)
    assert ids_of(client.read(listing(topic, limit=70_000))) == ids[:70_000]
    full = client.read(listing(topic, payload=True))
    assert full.column("payload").to_pylist() == batch.column("payload").to_pylist() * 2


def test_large_payloads_come_in_batches_that_fit(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(max_attempts=1)
    megabytes = [bytes([n]) * (1 << 20) for n in range(50)]
    for _ in range(2):
        client.send(topic, rows(payload=megabytes, due_us=[5] * 50))
    # More than one gRPC message may have, which is 80 MiB here.
    full = client.read(listing(topic, payload=True))
    assert full.column("payload").to_pylist() == megabytes * 2
    (ticket,) = client.plan(listing(topic, payload=True))
    assert client.read(ticket).num_rows == 100
    ids = ids_of(full)
    with pytest.raises(Refused) as info:
        client.get(topic, rows(id=ids))
    assert info.value.code == "invalid_argument"
    assert len(client.get(topic, rows(id=ids[:60]))) == 60
    assert len(client.get(topic, rows(id=ids), payload=False)) == 100
    # What reads them only for their keys takes any number.
    session = client.consume(topic, "worker")
    got = session.take(100)
    assert sorted(m["id"] for m in got) == ids
    assert set(statuses(session.use("reject", ids))) == {"ok"}
    session.finish()
    part = rows(id=ids)
    header = {"topic": topic, "delay_us": 3_600_000_000}
    assert set(statuses(client.call("redrive", header, part))) == {"ok"}
    part = rows(id=ids, payload=[b"small"] * 100)
    assert set(statuses(client.call("update", {"topic": topic}, part))) == {"ok"}


@pytest.mark.parametrize(
    "filters",
    [
        {"state": "done"},
        {"state": 1},
        {"due_from_us": "now"},
        {"due_to_us": 1 << 63},
        {"limit": -1},
        {"limit": 1.5},
        {"payload": "yes"},
        {"partition": 1},
        {"partition": -1},
        {"snapshot": "x"},
        {"owner": 7},
    ],
)
def test_a_filter_that_can_not_be_is_refused(
    client: Client, make_topic: MakeTopic, filters: dict[str, Any]
) -> None:
    topic = make_topic()
    with pytest.raises(Refused) as info:
        client.read(listing(topic, **filters))
    assert info.value.code == "invalid_argument"
    assert next(iter(filters)) in f"{info.value.message} {info.value.details}"


# Snapshots


def test_a_plan_has_an_endpoint_for_each_partition(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=4)
    for partition in range(4):
        client.send(topic, far(10), metadata={"partition": partition})
    before = client.list(topic, payload=True)
    tickets = client.plan(listing(topic, payload=True))
    found = [json.loads(ticket) for ticket in tickets]
    assert [ticket["partition"] for ticket in found] == [0, 1, 2, 3]
    assert len({ticket["snapshot"] for ticket in found}) == 1
    # None of this is in the snapshot.
    client.send(topic, far(5))
    client.call("cancel", {"topic": topic}, rows(id=[before[0]["id"], before[15]["id"]]))
    client.call("update", {"topic": topic}, rows(id=[before[30]["id"]], payload=[b"new"]))
    client.call("checkpoint")
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(client.read, tickets))
    assert [row for table in tables for row in table.to_pylist()] == before
    for number, table in enumerate(tables):
        assert {partition_of_id(id_) for id_ in ids_of(table)} == {number}
    # All were read to their end, so it is dropped.
    with pytest.raises(Refused) as info:
        client.read(tickets[0])
    assert info.value.code == "gone"


def test_the_filters_of_a_plan_are_those_of_its_tickets(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=2)
    client.send(topic, far(10), owner="mine", metadata={"partition": 1})
    client.send(topic, far(10), owner="theirs", metadata={"partition": 1})
    tickets = client.plan(listing(topic, owner="mine", due_from_us=FAR_US + 4))
    tables = [client.read(ticket) for ticket in tickets]
    assert [len(table) for table in tables] == [0, 6]
    assert set(tables[1].column("owner").to_pylist()) == {"mine"}


def test_a_snapshot_that_was_dropped_is_gone(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    client.send(topic, far(3))
    tickets = client.plan(listing(topic))
    number = json.loads(tickets[0])["snapshot"]
    client.read(tickets[0])
    client.call("drop_snapshot", {"snapshot": number})
    for ticket in tickets:
        with pytest.raises(Refused) as info:
            client.read(ticket)
        assert info.value.code == "gone"
        assert info.value.retryable is False


def test_two_plans_see_each_its_own_moment(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, far(1))
    (first,) = client.plan(listing(topic))
    client.send(topic, far(1))
    (second,) = client.plan(listing(topic))
    client.send(topic, far(1))
    assert len(client.read(second)) == 2
    assert len(client.read(first)) == 1
    assert len(client.list(topic)) == 3


def test_snapshots_that_nobody_took_are_gone(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for number in (1 << 40, -1, (1 << 63) - 1):
        with pytest.raises(Refused) as info:
            client.read(listing(topic, partition=0, snapshot=number))
        assert info.value.code == "gone"


def test_the_number_of_snapshots_is_bounded(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, far(1))
    taken: list[bytes] = []
    with pytest.raises(Refused) as info:  # noqa: PT012
        for _ in range(1000):
            taken += client.plan(listing(topic))
    assert info.value.code in ("overloaded", "invalid_argument")
    assert len(taken) <= 64
    for ticket in taken:
        assert len(client.read(ticket)) == 1
    assert len(client.read(client.plan(listing(topic))[0])) == 1
