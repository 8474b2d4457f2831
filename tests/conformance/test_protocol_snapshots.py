"""The protocol from outside: snapshots by number and name, in splits, by columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import Client, Refused, rows

MakeTopic = Callable[..., str]
FAR_US = 9_000_000_000_000_000


def listing(topic: str, **fields: Any) -> dict[str, Any]:
    return {"version": 1, "call": "list", "topic": topic, **fields}


def far(count: int, **columns: Any) -> pa.RecordBatch:
    payloads = [b"%d" % n for n in range(count)]
    return rows(payload=payloads, due_us=[FAR_US + n for n in range(count)], **columns)


def entries(keys: list[str], value: bytes) -> pa.RecordBatch:
    values = pa.array([value] * len(keys), pa.binary())
    return pa.RecordBatch.from_arrays([pa.array(keys), values], names=["key", "value"])


def plan(client: Client, **fields: Any) -> list[dict[str, Any]]:
    return [json.loads(ticket) for ticket in client.plan({"version": 1, **fields})]


def refused(do: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as info:
        do()
    return info.value


def test_splits_share_a_partition_evenly(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, far(50_000))
    tickets = plan(client, call="list", topic=topic, splits=4, columns=["id", "payload"])
    assert len(tickets) == 4
    told = {"snapshot", "position", "shard", "deadline_us"}
    assert len({tuple(ticket[name] for name in told) for ticket in tickets}) == 1
    client.call("checkpoint")
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(client.read, tickets))
    assert all(table.column_names == ["id", "payload"] for table in tables)
    assert max(map(len, tables)) < 2 * min(map(len, tables))
    found = sorted(row for table in tables for row in zip(*table.to_pydict().values(), strict=True))
    assert found == [(n + 1, b"%d" % n) for n in range(50_000)]
    # They can be read again, until the snapshot is dropped.
    assert client.read(tickets[0]).num_rows == len(tables[0])
    client.call("drop_snapshot", {"snapshot": tickets[0]["snapshot"]})
    assert refused(lambda: client.read(tickets[0])).code == "gone"


def test_splits_join_partitions_and_leave_none_out(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=8)
    for partition in range(0, 8, 2):
        client.send(topic, far(100), metadata={"partition": partition})
    tickets = plan(client, call="list", topic=topic, splits=2)
    assert len(tickets) == 2
    ids = [id_ for ticket in tickets for id_ in client.read(ticket).column("id").to_pylist()]
    assert sorted(ids) == sorted(row["id"] for row in client.list(topic))
    (empty,) = plan(client, call="list", topic=make_topic(partitions=3), splits=5)
    assert client.read(empty).num_rows == 0


def test_filters_and_columns_of_a_snapshot(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, far(10, key=[f"k{n}" for n in range(10)]), owner="mine")
    client.send(topic, far(5), owner="theirs")
    client.send(topic, rows(payload=[b"now"] * 3))
    number = client.call("take_snapshot", {})["snapshot"]

    def ids(**fields: Any) -> list[int]:
        table = client.read(listing(topic, snapshot=number, columns=["id"], **fields))
        return sorted(table.column("id").to_pylist())

    assert ids() == list(range(1, 19))
    assert ids(states=["ready", "dead"]) == [16, 17, 18]
    assert ids(owners=["theirs", "nobody"]) == list(range(11, 16))
    assert ids(keys=["k3", "k7", "other"]) == [4, 8]
    assert ids(after_id=4, until_id=8) == [5, 6, 7]
    assert ids(after_id=4, until_id=8, due_from_us=FAR_US + 5) == [6, 7]
    assert ids(limit=4) == [1, 2, 3, 4]
    whole = client.read(listing(topic, snapshot=number, payload=True)).to_pylist()
    assert whole == client.list(topic, payload=True)
    for fields in ({"columns": ["nothing"]}, {"columns": ["id", "id"]}, {"states": ["asleep"]}):
        error = refused(
            lambda fields=fields: client.read(listing(topic, snapshot=number, **fields))
        )
        assert error.code == "invalid_argument"
    error = refused(lambda: client.read(listing(topic, keys=["k3"])))
    assert error.code == "invalid_argument"
    assert "snapshot" in error.message


def test_a_name_is_one_snapshot_for_all_who_ask(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, far(2))
    with ThreadPoolExecutor(8) as pool:
        name = {"name": f"query of {topic}"}
        found = list(pool.map(lambda _: client.call("take_snapshot", name), range(8)))
    assert len({(each["snapshot"], each["position"]) for each in found}) == 1
    client.send(topic, far(2))
    first = client.call("take_snapshot", name)
    assert first["position"] == found[0]["position"]
    ticket = listing(topic, snapshot=first["snapshot"], position=first["position"])
    assert client.read(ticket).num_rows == 2
    # Its feed goes on behind it.
    changes = {"version": 1, "call": "changes", "after": first["position"], "topic": topic}
    assert client.read(changes).column("op").to_pylist() == ["produced"] * 2
    assert (
        refused(lambda: client.read({**ticket, "position": first["position"] + 1})).code == "gone"
    )
    client.call("drop_snapshot", {"snapshot": first["snapshot"]})
    # A name never means another moment.
    assert refused(lambda: client.call("take_snapshot", name)).code == "gone"


def test_readers_say_how_many_they_are_and_which(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, far(2))
    name = {"name": f"parts of {topic}", "readers": 2, "linger_us": 30_000_000}
    first = client.call("take_snapshot", name)
    for part in (0, 1):
        ticket = listing(topic, snapshot=first["snapshot"], part=part)
        assert client.read(ticket).num_rows == 2
    # All have read it: it goes soon, and until then it is there. The broker may note the end of a
    # stream after its reader has seen it.
    again = client.call("take_snapshot", name)
    while again["deadline_us"] >= first["deadline_us"] - 500_000_000:
        again = client.call("take_snapshot", name)
    assert again["snapshot"] == first["snapshot"]
    client.call("drop_snapshot", {"snapshot": first["snapshot"]})


def test_a_reader_of_an_earlier_life_gets_no_other_snapshot(client: Client) -> None:
    life = client.call("take_snapshot", {"name": "here"})["life"]
    assert client.call("take_snapshot", {"name": "new", "life": life})["life"] == life
    earlier = {"name": "never seen", "life": "0123456789abcdef"}
    assert refused(lambda: client.call("take_snapshot", earlier)).code == "gone"
    for name in ("here", "new"):
        number = client.call("take_snapshot", {"name": name})["snapshot"]
        client.call("drop_snapshot", {"snapshot": number})


def test_named_snapshots_that_nobody_reads_make_room(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for number in range(100):
        client.call("take_snapshot", {"name": f"{topic} {number}"})
    assert refused(lambda: client.call("take_snapshot", {"name": f"{topic} 0"})).code == "gone"
    last = client.call("take_snapshot", {"name": f"{topic} 99"})
    assert client.read(listing(topic, snapshot=last["snapshot"])).num_rows == 0
    for number in range(100):
        try:
            taken = client.call("take_snapshot", {"name": f"{topic} {number}"})
        except Refused:
            continue
        client.call("drop_snapshot", {"snapshot": taken["snapshot"]})


@pytest.mark.parametrize(
    "fields", [{"keep_us": 1}, {"keep_us": 1 << 50}, {"name": "n" * 201}, {"life": "x"}]
)
def test_snapshots_that_can_not_be_are_refused(client: Client, fields: dict[str, Any]) -> None:
    error = refused(lambda: client.call("take_snapshot", fields))
    assert error.code == "invalid_argument"
    assert error.details["field"] == next(iter(fields))


def test_entries_of_one_moment_in_splits(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(kind="kv", partitions=2)
    keys = [f"user-{n:05d}" for n in range(9_000)]
    client.call("kv_put", {"topic": topic}, entries(keys, b"old"))
    tickets = plan(client, call="kv", topic=topic, splits=3, columns=["key", "value"])
    assert len(tickets) > 1
    # None of this is in the snapshot.
    client.call("kv_put", {"topic": topic}, entries(["user-00007", "new"], b"new"))
    client.call("kv_delete", {"topic": topic}, rows(key=["user-00008"]))
    found = [row for ticket in tickets for row in client.read(ticket).to_pylist()]
    assert sorted(row["key"] for row in found) == keys
    assert {row["value"] for row in found} == {b"old"}
    number = tickets[0]["snapshot"]
    scan = {"version": 1, "call": "kv", "topic": topic, "snapshot": number}
    assert client.read({**scan, "prefix": "user-0001"}).num_rows == 10
    assert client.read({**scan, "keys": ["user-00008", "new"]}).num_rows == 1
    assert refused(lambda: client.read({**scan, "key": "user-00008"})).code == "invalid_argument"
    client.call("drop_snapshot", {"snapshot": number})


def test_changes_by_op_and_column_keep_their_places(client: Client, make_topic: MakeTopic) -> None:
    one, other = make_topic(), make_topic()
    begin = client.call("feed")["last"]
    client.send(one, far(3))
    part = rows(payload=[b"x"], due_us=[FAR_US])
    commands = [{"op": "produce", "topic": name, "owner": "", "on_conflict": "reject"} for name in (other, one)]  # fmt: skip
    assert client.call("transaction", {"commands": commands}, part, part)["committed"]
    client.call("cancel", {"topic": one}, rows(id=[1, 2]))
    ticket = {"version": 1, "call": "changes", "after": begin}
    whole = client.read(ticket).to_pylist()
    names = ["position", "row", "op"]
    for fields, keep in (
        ({"ops": ["cancelled"]}, lambda row: row["op"] == "cancelled"),
        ({"topic": one}, lambda row: row["topic"] == one),
        ({"topics": [other, "nobody"]}, lambda row: row["topic"] == other),
        ({"topic": one, "ops": ["produced"]}, lambda row: (row["topic"], row["op"]) == (one, "produced")),
    ):  # fmt: skip
        found = client.read({**ticket, **fields, "columns": names})
        assert found.column_names == names
        expected = [{name: row[name] for name in names} for row in whole if keep(row)]
        assert found.to_pylist() == expected
        assert expected
