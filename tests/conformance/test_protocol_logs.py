"""The protocol from outside: logs, those who follow them, and groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from xxhash import xxh64_intdigest

from tests.conformance.protocol_client import (
    HEADERS,
    RETURNED,
    VERSION,
    Client,
    Refused,
    Session,
    returned,
    rows,
    statuses,
)

MakeTopic = Callable[..., str]
LOG_ROWS = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "created_us": pa.int64(),
    "key": pa.string(),
    "headers": HEADERS,
    "content_type": pa.string(),
    "subject": pa.string(),
    "payload": pa.binary(),
}
MASK = (1 << 64) - 1
M1 = 0x9E3779B97F4A7C15
M3, M4 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53


def log_partition_of(key: str, partitions: int) -> int:
    """The partition whose score is highest."""
    h = xxh64_intdigest(key.encode())
    scores = [_mixed(h ^ ((p + 1) * M1 & MASK)) for p in range(partitions)]
    return scores.index(max(scores))


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * M3 & MASK
    value = (value ^ value >> 33) * M4 & MASK
    return value ^ value >> 33


def log_of(make_topic: MakeTopic, partitions: int = 1, **settings: Any) -> str:
    return make_topic(kind="log", partitions=partitions, **settings)


def append(client: Client, topic: str, count: int, partition: int = 0, **columns: Any) -> list[int]:
    """Rows whose payloads are their offsets, if they are the partition's first; their ids."""
    batch = rows(payload=[b"%d" % n for n in range(count)], **columns)
    (outcomes,) = client.send(topic, batch, metadata={"partition": partition})
    assert statuses(outcomes) == ["ok"] * count
    assert {outcome.version for outcome in outcomes} == {1}
    return [outcome.id for outcome in outcomes]


def read(client: Client, topic: str, **place: Any) -> list[dict[str, Any]]:
    return client.read({"version": VERSION, "call": "log", "topic": topic, **place}).to_pylist()


def places(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in found]


def follow(client: Client, topic: str, **place: Any) -> Session:
    command = {"version": VERSION, "call": "follow", "topic": topic, **place}
    return Session(*client.open_exchange(json.dumps(command).encode()), RETURNED)


def followed(session: Session, count: int) -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = []
    while len(got) < count:
        chunk = session.expect(lambda chunk: chunk.kind == "rows")
        assert {row["partition"] for row in chunk.rows} == {chunk.metadata["partition"]}
        assert chunk.metadata["end"] > chunk.rows[-1]["offset"]
        got += chunk.rows
    return got


def consume(client: Client, topic: str, group: str, consumer: str = "worker") -> Session:
    command = {
        "version": VERSION,
        "call": "consume",
        "topic": topic,
        "consumer": consumer,
        "group": group,
    }
    return Session(*client.open_exchange(json.dumps(command).encode()), RETURNED)


def group_of(client: Client, topic: str, group: str) -> dict[str, Any]:
    (found,) = client.call("groups", {"topic": topic, "group": group})["groups"]
    assert found["group"] == group
    return found


# Appending


def test_ids_are_made_of_partitions_and_offsets(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic, partitions=3)
    for partition in range(3):
        found = append(client, topic, 4, partition)
        assert found == [partition << 51 | offset + 1 for offset in range(4)]
    assert append(client, topic, 1, 2) == [2 << 51 | 5]


@pytest.mark.parametrize(
    ("key", "h", "of"),
    [
        ("user-7", 0x216DEC03713B4CFD, {2: 0, 3: 0, 4: 0, 8: 6, 64: 6}),
        ("order-1", 0x3BAF4120AA43A0AD, {2: 1, 3: 1, 4: 1, 8: 1, 64: 16}),
        ("a", 0xD24EC4F1A98C6E5B, {2: 1, 3: 1, 4: 1, 8: 6, 64: 52}),
        ("Ωmega", 0x085247E55E8ABD60, {2: 1, 3: 2, 4: 2, 8: 2, 64: 38}),
    ],
)
def test_the_page_says_where_keys_go(key: str, h: int, of: dict[int, int]) -> None:
    assert xxh64_intdigest(key.encode()) == h
    assert {count: log_partition_of(key, count) for count in of} == of


def test_keys_choose_their_partition_by_the_highest_score(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = log_of(make_topic, partitions=5)
    keys = [f"key-{n % 40}" for n in range(100)]
    (outcomes,) = client.send(topic, rows(payload=[b"x"] * 100, key=keys))
    assert [outcome.id >> 51 for outcome in outcomes] == [log_partition_of(k, 5) for k in keys]
    # A key is no name, and a partition that is named goes before it.
    (outcomes,) = client.send(topic, rows(payload=[b"y"], key=["key-1"]), metadata={"partition": 4})
    assert outcomes[0].id >> 51 == 4


def test_rows_without_keys_go_to_one_partition_after_another(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = log_of(make_topic, partitions=3)
    batches = [rows(payload=[b"x"] * 2) for _ in range(6)]
    found = client.send(topic, *batches)
    assert sorted({outcome.id >> 51 for outcome in batch}.pop() for batch in found) == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("columns", "metadata"),
    [
        ({"delay_us": [60_000_000]}, {}),
        ({"due_us": [1 << 52]}, {}),
        ({}, {"on_conflict": "replace"}),
        ({}, {"stage": "s"}),
        ({}, {"partition": 9}),
    ],
)
def test_rows_of_a_log_are_there_at_once_and_stay(
    client: Client, make_topic: MakeTopic, columns: dict[str, Any], metadata: dict[str, Any]
) -> None:
    topic = log_of(make_topic)
    with pytest.raises(Refused) as refused:
        client.send(topic, rows(payload=[b"x"], **columns), metadata=metadata)
    assert refused.value.code == "invalid_argument"
    assert read(client, topic) == []


def test_a_producer_that_repeats_itself_appends_once(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    batch = rows(payload=[b"x", b"y"])
    for _ in range(2):
        stream = client.produce(batch.schema, topic=topic, producer="me")
        stream.write(batch, {"sequence": 1})
        (receipt,) = stream.finish()
        assert receipt["ids"] == [[1, 2]]
    assert receipt["sent_before"] is True
    assert len(read(client, topic)) == 2


# Reading


def test_a_ticket_reads_all_partitions_one_after_the_other(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = log_of(make_topic, partitions=2)
    for partition in range(2):
        append(client, topic, 5, partition, headers=[[("a", "b")]] * 5, content_type=["t"] * 5)
    table = client.read({"version": VERSION, "call": "log", "topic": topic})
    assert {field.name: field.type for field in table.schema} == LOG_ROWS
    found = table.to_pylist()
    assert places(found) == [(p, offset) for p in range(2) for offset in range(5)]
    assert all(row["payload"] == b"%d" % row["offset"] for row in found)
    assert found[0]["headers"] == [("a", "b")]
    assert found[0]["key"] is None


def test_where_a_read_begins_and_ends(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic, partitions=2)
    for partition in range(2):
        append(client, topic, 6, partition)
    now_us = client.call("clock")["now_us"]
    assert places(read(client, topic, partition=1, offset=4)) == [(1, 4), (1, 5)]
    assert places(read(client, topic, partition=0, offset=1, end_offset=3)) == [(0, 1), (0, 2)]
    assert places(read(client, topic, offsets={"0": 5, "1": -1}, limit=3)) == [
        (0, 5),
        (1, 0),
        (1, 1),
    ]
    assert read(client, topic, offsets={"1": -2}) == read(client, topic, start="latest") == []
    assert len(read(client, topic, time_us=0)) == len(read(client, topic, start="earliest")) == 12
    assert read(client, topic, time_us=now_us + 1_000_000) == []
    assert read(client, topic, partition=0, offset=6) == []


@pytest.mark.parametrize(
    ("place", "field"),
    [
        ({"offset": 7, "partition": 0}, "offset"),
        ({"offset": -3, "partition": 0}, "offset"),
        ({"offset": 1}, "partition"),
        ({"partition": 2}, "partition"),
        ({"start": "newest"}, "start"),
        ({"offset": 1, "partition": 0, "start": "latest"}, "start"),
        ({"offsets": {"9": 0}}, "partition"),
        ({"offsets": {"x": 0}}, "offsets"),
        ({"offsets": {"0": "1"}}, "offsets"),
        ({"offsets": [1]}, "offsets"),
        ({"limit": -1}, "limit"),
        ({"nothing": 1}, "nothing"),
    ],
)
def test_places_that_are_none_are_refused_by_name(
    client: Client, make_topic: MakeTopic, place: dict[str, Any], field: str
) -> None:
    topic = log_of(make_topic, partitions=2)
    append(client, topic, 6)
    with pytest.raises(Refused) as refused:
        read(client, topic, **place)
    assert refused.value.code == "invalid_argument"
    assert refused.value.details["field"] == field


def test_a_plan_has_exact_tickets(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic, partitions=3)
    for partition in range(3):
        append(client, topic, 4, partition)
    tickets = client.plan({"version": VERSION, "call": "log", "topic": topic, "time_us": 0})
    append(client, topic, 5)
    assert [json.loads(ticket)["end_offset"] for ticket in tickets] == [4, 4, 4]
    found = [client.read(ticket).to_pylist() for ticket in tickets]
    assert [places(part) for part in found] == [[(p, n) for n in range(4)] for p in range(3)]


def test_rows_that_were_dropped_are_gone(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    append(client, topic, 10)
    reply = client.call("truncate", {"topic": topic, "before": 4})
    (partition,) = reply["partitions"]
    assert (partition["partition"], partition["earliest"], partition["end"]) == (0, 4, 10)
    with pytest.raises(Refused) as refused:
        read(client, topic, offset=3)
    assert refused.value.code == "gone"
    assert refused.value.details["earliest"] == 4
    session = follow(client, topic, offset=3)
    assert session.ended().code == "gone"
    assert places(read(client, topic))[0] == (0, 4)
    client.call("truncate", {"topic": topic, "start": "latest"})
    (partition,) = client.call("log", {"topic": topic})["partitions"]
    assert (partition["earliest"], partition["end"], partition["bytes"]) == (10, 10, 0)
    with pytest.raises(Refused):
        client.call("truncate", {"topic": topic, "before": 11})
    with pytest.raises(Refused):
        client.call("truncate", {"topic": topic})


def test_a_log_that_was_made_again_is_another(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    identity = client.call("log", {"topic": topic})["identity"]
    append(client, topic, 2)
    assert client.call("log", {"topic": topic})["identity"] == identity
    assert identity.startswith(client.call("hello")["shard"])
    client.call("delete_topic", {"topic": topic})
    client.call("create_topic", {"topic": topic, "settings": {"kind": "log"}})
    assert client.call("log", {"topic": topic})["identity"] != identity


def test_offsets_by_time(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic, partitions=2)
    append(client, topic, 3)
    append(client, topic, 3)
    found = read(client, topic)
    later_us = found[3]["created_us"]
    assert later_us > found[0]["created_us"]
    offsets = client.call("offsets", {"topic": topic, "time_us": later_us})["offsets"]
    assert offsets == {"0": 3, "1": 0}
    reply = client.call("offsets", {"topic": topic, "time_us": later_us + 1, "partition": 0})
    assert reply["offsets"] == {"0": 6}


# Following


def test_following_goes_on_with_what_is_appended(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic, partitions=2)
    append(client, topic, 5)
    session = follow(client, topic)
    assert places(followed(session, 5)) == [(0, n) for n in range(5)]
    append(client, topic, 3, 1)
    assert places(followed(session, 3)) == [(1, n) for n in range(3)]
    append(client, topic, 2)
    assert places(followed(session, 2)) == [(0, 5), (0, 6)]
    assert session.schema is not None
    assert {field.name: field.type for field in session.schema} == LOG_ROWS
    assert [chunk for chunk in session.finish() if chunk.kind != "idle"] == []


def test_following_begins_where_it_is_told(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic, partitions=2)
    append(client, topic, 5, 0)
    append(client, topic, 5, 1)
    session = follow(client, topic, offsets={"1": 3})
    assert places(followed(session, 2)) == [(1, 3), (1, 4)]
    append(client, topic, 1, 0)
    append(client, topic, 1, 1)
    assert places(followed(session, 1)) == [(1, 5)]
    session.cancel()


def test_a_follower_has_nothing_to_say(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    session = follow(client, topic)
    session.credit(1)
    assert session.ended().code == "invalid_argument"


def test_a_follower_learns_that_its_topic_is_gone(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    append(client, topic, 1)
    session = follow(client, topic)
    followed(session, 1)
    client.call("delete_topic", {"topic": topic})
    assert session.ended().code == "not_found"


# Groups


def test_a_group_leases_acks_and_commits(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    ids = append(client, topic, 5)
    session = consume(client, topic, "billing")
    got = session.take(5)
    assert [row["id"] for row in got] == ids
    assert [(row["attempts"], row["version"]) for row in got] == [(1, 1)] * 5
    assert got[0]["due_us"] == got[0]["created_us"]
    (place,) = group_of(client, topic, "billing")["partitions"]
    assert (place["committed"], place["consumed"], place["lag"], place["leased"]) == (0, 4, 5, 5)
    assert statuses(session.use("ack", [ids[0], ids[2]])) == ["ok", "ok"]
    (place,) = group_of(client, topic, "billing")["partitions"]
    assert (place["committed"], place["lag"], place["leased"]) == (1, 3, 3)
    # As an action, with the group's name.
    part = returned([ids[1]], [session.tokens[ids[1]]])
    assert statuses(client.call("ack", {"topic": topic, "group": "billing"}, part)) == ["ok"]
    assert statuses(client.call("ack", {"topic": topic, "group": "billing"}, part)) == ["done"]
    assert statuses(session.use("release", ids[3:], delay_us=0)) == ["ok", "ok"]
    again = session.take(2)
    assert [(row["id"], row["attempts"]) for row in again] == [(ids[3], 1), (ids[4], 1)]
    assert session.ask("heartbeat")["held"] == 2
    session.use("ack", ids[3:])
    (place,) = group_of(client, topic, "billing")["partitions"]
    assert (place["committed"], place["end"], place["lag"]) == (5, 5, 0)
    session.finish()


def test_groups_have_each_their_own(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    ids = append(client, topic, 3)
    for group in ("one", "two"):
        session = consume(client, topic, group)
        assert [row["id"] for row in session.take(3)] == ids
        session.use("ack", ids)
        session.finish()
    found = client.call("groups", {"topic": topic})["groups"]
    assert [group["group"] for group in found] == ["one", "two"]


def test_a_transaction_acks_for_a_group_and_appends(client: Client, make_topic: MakeTopic) -> None:
    source, target = log_of(make_topic), log_of(make_topic, partitions=2)
    (id_,) = append(client, source, 1)
    session = consume(client, source, "billing")
    session.take(1)
    commands = [
        {"op": "ack", "topic": source, "group": "billing"},
        {"op": "produce", "topic": target, "partition": 1},
    ]
    parts = [returned([id_], [session.tokens[id_]]), rows(payload=[b"made"])]
    assert client.call("transaction", {"commands": commands}, *parts)["committed"] is True
    assert places(read(client, target)) == [(1, 0)]
    # The lease is used: nothing happens a second time.
    assert client.call("transaction", {"commands": commands}, *parts)["committed"] is False
    assert len(read(client, target)) == 1
    session.finish()


def test_dead_rows_of_a_group(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    ids = append(client, topic, 3)
    session = consume(client, topic, "billing")
    session.take(3)
    assert statuses(session.use("reject", ids[:2], reason="no account")) == ["ok", "ok"]
    session.use("ack", ids[2:])
    header = {"topic": topic, "group": "billing"}
    reply, (table,) = client.reply("dead", {**header, "limit": 1, "payload": True})
    (dead,) = table.to_pylist()
    assert (dead["id"], dead["reason"], dead["payload"]) == (ids[0], "no account", b"0")
    assert (dead["state"], dead["attempts"]) == ("dead", 1)
    assert dead["died_us"] >= dead["due_us"]
    reply, (table,) = client.reply("dead", {**header, "after_id": reply["next_after_id"]})
    assert table.column("id").to_pylist() == [ids[1]]
    assert reply["next_after_id"] == 0
    _, (table,) = client.reply("dead", {**header, "reason": "another"})
    assert table.num_rows == 0
    assert statuses(client.call("redrive", header, rows(id=[ids[0]]))) == ["ok"]
    assert [(row["id"], row["attempts"]) for row in session.take(1)] == [(ids[0], 1)]
    assert statuses(client.call("purge", header, rows(id=ids[1:]))) == ["ok", "done"]
    session.finish()


def test_groups_are_made_reset_and_deleted(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic, partitions=2)
    append(client, topic, 5, 0)
    append(client, topic, 5, 1)
    group = {"topic": topic, "group": "billing"}
    made = client.call("create_group", {**group, "start": "latest", "ordered": True})["group"]
    assert made["ordered"] is True
    assert [place["committed"] for place in made["partitions"]] == [5, 5]
    with pytest.raises(Refused) as refused:
        client.call("create_group", group)
    assert refused.value.code == "already_exists"
    found = client.call("reset_group", {**group, "partition": 1, "offset": 2})["group"]
    assert [place["lag"] for place in found["partitions"]] == [0, 3]
    found = client.call("reset_group", {**group, "time_us": 0})["group"]
    assert [place["lag"] for place in found["partitions"]] == [5, 5]
    found = client.call("reset_group", {**group, "offsets": {"0": 4}})["group"]
    assert [place["lag"] for place in found["partitions"]] == [1, 5]
    for bad in ({}, {"offset": 1}, {"offset": 6, "partition": 0}, {"start": "x"}):
        with pytest.raises(Refused) as refused:
            client.call("reset_group", {**group, **bad})
        assert refused.value.code == "invalid_argument"
    client.call("delete_group", group)
    with pytest.raises(Refused) as refused:
        client.call("delete_group", group)
    assert refused.value.code == "not_found"


def test_a_group_that_is_behind_learns_it(client: Client, make_topic: MakeTopic) -> None:
    topic = log_of(make_topic)
    append(client, topic, 10)
    group = {"topic": topic, "group": "billing"}
    client.call("create_group", group)
    client.call("truncate", {"topic": topic, "before": 6})
    (place,) = group_of(client, topic, "billing")["partitions"]
    assert (place["behind"], place["committed"]) == (6, 6)
    session = consume(client, topic, "billing")
    session.credit(1)
    refused = session.ended()
    assert refused.code == "gone"
    assert (refused.details["lost"], refused.details["earliest"]) == (6, 6)
    client.call("reset_group", {**group, "start": "earliest"})
    session = consume(client, topic, "billing")
    assert [row["payload"] for row in session.take(4)] == [b"6", b"7", b"8", b"9"]
    session.finish()


def test_only_logs_have_groups(client: Client, make_topic: MakeTopic) -> None:
    timeline, log = make_topic(), log_of(make_topic)
    for topic, group in ((timeline, "billing"), (log, "")):
        session = consume(client, topic, group)
        session.credit(1)
        assert session.ended().code == "invalid_argument"
    for action in ("log", "groups"):
        with pytest.raises(Refused) as refused:
            client.call(action, {"topic": timeline})
        assert refused.value.code == "invalid_argument"
        with pytest.raises(Refused) as refused:
            client.call(action, {"topic": "no-such-topic"})
        assert refused.value.code == "not_found"
