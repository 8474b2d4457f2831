"""The protocol from outside: actions that read and change messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import (
    Client,
    Outcome,
    Refused,
    expand,
    returned,
    rows,
    statuses,
)

MakeTopic = Callable[..., str]
HOUR_US = 3_600_000_000
CONTENTS = ["created_us", "key", "headers", "content_type", "subject", "payload"]
METADATA = [
    "id",
    "partition",
    "state",
    "due_us",
    "version",
    "attempts",
    "owner",
    "consumer",
    "reason",
    "priority",
    "leased_us",
    "lease_until_us",
    "died_us",
    "expires_us",
]


def sent(client: Client, topic: str, owner: str = "", **columns: Any) -> list[int]:
    """Produces an hour from now, unless the columns say otherwise; the ids."""
    if "due_us" not in columns and "delay_us" not in columns:
        columns["delay_us"] = [HOUR_US] * len(columns["payload"])
    (outcomes,) = client.send(topic, rows(**columns), owner=owner)
    assert statuses(outcomes) == ["ok"] * len(outcomes)
    return [outcome.id for outcome in outcomes]


def leased(client: Client, topic: str, count: int) -> list[dict[str, Any]]:
    """Messages that a consumer got, whose session has ended since."""
    session = client.consume(topic, "holder")
    got = session.take(count)
    session.finish()
    return got


# get


def test_get_gives_a_row_for_each_that_was_asked_for(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = sent(
        client,
        topic,
        owner="billing",
        payload=[b"a", b""],
        key=["k", None],
        headers=[[("h", "1"), ("i", "2")], None],
        content_type=["text/plain", None],
        due_us=[9_000_000_000_000_000, 9_000_000_000_000_001],
    )
    _, (table,) = client.reply("get", {"topic": topic}, rows(id=[ids[1], 77, ids[0], ids[1]]))
    assert set(table.column_names) == {*METADATA, *CONTENTS, "status"}
    second, missing, first, again = table.to_pylist()
    assert [row["status"] for row in (second, missing, first, again)] == [
        "ok",
        "not_found",
        "ok",
        "ok",
    ]
    assert again == second
    assert missing["id"] == 77
    assert missing["payload"] is None
    assert missing["state"] is None
    assert first["payload"] == b"a"
    assert first["key"] == "k"
    assert dict(first["headers"]) == {"h": "1", "i": "2"}
    assert first["content_type"] == "text/plain"
    assert first["due_us"] == 9_000_000_000_000_000
    assert (first["version"], first["attempts"], first["state"]) == (1, 0, "scheduled")
    assert (first["owner"], first["consumer"], first["reason"]) == ("billing", None, None)
    assert 1_700_000_000_000_000 < first["created_us"] <= client.call("clock")["now_us"]
    assert (second["payload"], second["key"], second["content_type"]) == (b"", None, None)


def test_get_by_key_and_without_payload(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    ids = sent(client, topic, payload=[b"a", b"b"], key=["ka", "kb"])
    _, (table,) = client.reply(
        "get", {"topic": topic, "payload": False}, rows(key=["kb", "none", "ka"])
    )
    assert "payload" not in table.column_names
    assert table.column("status").to_pylist() == ["ok", "not_found", "ok"]
    got = table.column("id").to_pylist()
    assert (got[0], got[2]) == (ids[1], ids[0])


def test_get_tells_what_became_of_finished_ones(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = sent(client, topic, payload=[b"a", b"b", b"c"], key=["a", "b", "c"], delay_us=[0, 0, 0])
    got = {message["payload"]: message for message in leased(client, topic, 3)}
    back = {p: returned([m["id"]], [m["token"]]) for p, m in got.items()}
    assert statuses(client.call("ack", {"topic": topic}, back[b"a"])) == ["ok"]
    header = {"topic": topic, "reason": "too bad"}
    assert statuses(client.call("reject", header, back[b"b"])) == ["ok"]
    done, dead, held = client.get(topic, rows(id=ids))
    assert done["status"] == "done"
    assert (dead["status"], dead["state"], dead["reason"]) == ("ok", "dead", "too bad")
    assert (held["state"], held["consumer"], held["attempts"]) == ("leased", "holder", 1)
    assert (dead["payload"], held["payload"]) == (b"b", b"c")


# update, move, cancel


def test_update_by_id_and_key(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    ids = sent(client, topic, payload=[b"a", b"b"], key=["ka", "kb"])
    found = client.outcomes(
        "update",
        {"topic": topic},
        rows(id=[ids[0], 77], payload=[b"A", b"?"], headers=[[("h", "1")], None]),
    )
    assert found == [Outcome("ok", ids[0], 2), Outcome("not_found", 77, 0)]
    found = client.outcomes(
        "update",
        {"topic": topic},
        rows(key=["kb", "none"], payload=[b"B", b"?"], content_type=["x/y", None]),
    )
    assert found[0] == Outcome("ok", ids[1], 2)
    assert found[1].status == "not_found"
    first, second = client.get(topic, rows(id=ids))
    assert (first["payload"], first["key"], dict(first["headers"])) == (b"A", "ka", {"h": "1"})
    assert (second["payload"], second["key"], second["content_type"]) == (b"B", "kb", "x/y")


@pytest.mark.parametrize("how", ["due_us", "delay_us"])
def test_move_by_id_and_key(client: Client, make_topic: MakeTopic, how: str) -> None:
    topic = make_topic()
    ids = sent(client, topic, payload=[b"a", b"b"], key=["ka", "kb"])
    now_us = client.call("clock")["now_us"]
    base = now_us if how == "due_us" else 0
    moments = [base + 2 * HOUR_US, base + 3 * HOUR_US]
    for target in ({"id": ids}, {"key": ["ka", "kb"]}):
        found = client.outcomes("move", {"topic": topic}, rows(**target, **{how: moments}))
        assert statuses(found) == ["ok", "ok"]
        assert [outcome.id for outcome in found] == ids
    got = client.get(topic, rows(id=ids), payload=False)
    assert [row["version"] for row in got] == [3, 3]
    if how == "due_us":
        assert [row["due_us"] for row in got] == moments
    else:
        assert all(row["due_us"] >= now_us + m for row, m in zip(got, moments, strict=True))


def test_cancel_by_id_and_key(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = sent(client, topic, payload=[b"a", b"b", b"c"], key=["ka", "kb", "kc"])
    assert statuses(client.call("cancel", {"topic": topic}, rows(id=ids[:1]))) == ["ok"]
    found = client.outcomes("cancel", {"topic": topic}, rows(key=["kb", "none"]))
    assert found[0] == Outcome("ok", ids[1], found[0].version)
    assert found[1].status == "not_found"
    again = client.outcomes("cancel", {"topic": topic}, rows(id=[*ids[:2], 77]))
    assert statuses(again) == ["cancelled", "cancelled", "not_found"]
    now_us = client.call("clock")["now_us"]
    assert all(0 < (outcome.at_us or 0) <= now_us for outcome in again[:2])
    assert [row["id"] for row in client.list(topic)] == ids[2:]


def test_a_version_that_is_named_must_be_the_current_one(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    ids = sent(client, topic, payload=[b"a", b"b", b"c", b"d"])
    header = {"topic": topic}
    moved = client.outcomes(
        "move", header, rows(id=ids, version=[1, 2, 0, None], delay_us=[2 * HOUR_US] * 4)
    )
    assert statuses(moved) == ["ok", "conflict", "ok", "ok"]
    assert [outcome.version for outcome in moved] == [2, 1, 2, 2]
    part = rows(id=ids[:2], version=[1, 1], payload=[b"x", b"y"])
    assert statuses(client.call("update", header, part)) == ["conflict", "ok"]
    assert statuses(client.call("cancel", header, rows(id=ids[:2], version=[1, 2]))) == [
        "conflict",
        "ok",
    ]


def test_a_version_that_never_was_is_not_taken_for_any(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    ids = sent(client, topic, payload=[b"a"])
    for version in (-1, 1 + (1 << 32), (1 << 63) - 1, -(1 << 63)):
        part = rows(id=ids, version=[version])
        assert statuses(client.call("cancel", {"topic": topic}, part)) == ["conflict"]


def test_only_the_owner_may_change_a_message(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    mine = sent(client, topic, owner="billing", payload=[b"a"])
    free = sent(client, topic, payload=[b"b"])
    parts = {
        "update": rows(id=mine + free, payload=[b"x", b"x"]),
        "move": rows(id=mine + free, delay_us=[HOUR_US, HOUR_US]),
    }
    for action, part in parts.items():
        for header in ({"topic": topic}, {"topic": topic, "owner": "sales"}):
            assert statuses(client.call(action, header, part)) == ["not_owner", "ok"]
        header = {"topic": topic, "owner": "billing"}
        assert statuses(client.call(action, header, part)) == ["ok", "ok"]
    assert statuses(client.call("cancel", {"topic": topic, "owner": "x"}, rows(id=mine))) == [
        "not_owner"
    ]
    assert statuses(client.call("cancel", {"topic": topic, "owner": "billing"}, rows(id=mine))) == [
        "ok"
    ]


def test_a_lease_beats_the_owner(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = sent(client, topic, payload=[b"a"], delay_us=[0], owner="billing")
    leased(client, topic, 1)
    now_us = client.call("clock")["now_us"]
    header = {"topic": topic, "owner": "billing"}
    for action, part in {
        "update": rows(id=ids, payload=[b"x"]),
        "move": rows(id=ids, delay_us=[0]),
        "cancel": rows(id=ids),
    }.items():
        (outcome,) = client.outcomes(action, header, part)
        assert (outcome.status, outcome.by) == ("leased", "holder")
        assert outcome.at_us is not None
        # Worked out from two clocks: give or take what may lie between two looks at them.
        assert now_us < outcome.at_us <= now_us + 31_000_000


@pytest.mark.parametrize(
    ("action", "part"),
    [
        ("get", pa.record_batch({"id": pa.array([1], pa.int32())})),
        ("get", pa.record_batch({"id": pa.array(["1"])})),
        ("get", pa.record_batch({"key": pa.array([b"1"])})),
        ("get", rows(id=[1], key=["k"])),
        ("get", rows(version=[1])),
        ("get", rows(id=[None])),
        ("get", rows(key=[None])),
        ("cancel", rows(id=[1], payload=[b""])),
        ("cancel", rows(id=[None])),
        ("cancel", rows(key=[None])),
        ("update", rows(id=[1])),
        ("update", rows(id=[1], payload=[None])),
        ("update", pa.record_batch({"id": [1], "payload": ["text"]})),
        ("move", rows(id=[1])),
        ("move", rows(id=[1], due_us=[None])),
        ("move", rows(id=[1], due_us=[1], delay_us=[1])),
        ("move", rows(id=[1], delay_us=[-1])),
        ("move", rows(id=[1], due_us=[(1 << 63) - 1])),
        ("move", rows(id=[1], delay_us=[(1 << 63) - 1])),
        ("ack", rows(id=[1], started_us=[None])),
        ("ack", rows(token=[1], started_us=[None])),
        ("ack", rows(id=[None], token=[1], started_us=[None])),
        ("ack", rows(id=[1], token=[None], started_us=[None])),
        ("redrive", rows(key=["k"])),
        ("purge", rows(id=[1], version=[1])),
    ],
)
def test_a_part_of_another_shape_is_refused(
    client: Client, make_topic: MakeTopic, action: str, part: pa.RecordBatch
) -> None:
    topic = make_topic()
    sent(client, topic, payload=[b"a"])
    before = client.list(topic, payload=True)
    with pytest.raises(Refused) as info:
        client.call(action, {"topic": topic}, part)
    assert info.value.code == "invalid_argument"
    assert client.list(topic, payload=True) == before


# Outside a session


def test_what_a_session_does_can_be_done_outside(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(retry={"base_us": HOUR_US, "jitter": 0.0})
    sent(client, topic, payload=[b"%d" % n for n in range(5)], delay_us=[0] * 5)
    now_us = client.call("clock")["now_us"]
    got = leased(client, topic, 5)
    header = {"topic": topic}
    acked, nacked, rejected, _, extended = (
        returned([m["id"]], [m["token"]], started_us=[now_us]) for m in got
    )
    assert statuses(client.call("extend", {**header, "length_us": 60_000_000}, extended)) == ["ok"]
    assert statuses(client.call("ack", header, acked)) == ["ok"]
    assert statuses(client.call("nack", {**header, "reason": "later"}, nacked)) == ["ok"]
    assert statuses(client.call("reject", {**header, "reason": "never"}, rejected)) == ["ok"]
    due_us = now_us + 7 * HOUR_US
    part = returned([got[3]["id"]], [got[3]["token"]], due_us=[due_us])
    assert statuses(client.call("release", header, part)) == ["ok"]
    by_id = {row["id"]: row for row in client.get(topic, rows(id=[m["id"] for m in got]))}
    rowsof = [by_id[m["id"]] for m in got]
    assert [row["status"] for row in rowsof] == ["done", "ok", "ok", "ok", "ok"]
    assert [row["state"] for row in rowsof[1:]] == ["scheduled", "dead", "scheduled", "leased"]
    assert rowsof[1]["due_us"] >= now_us + HOUR_US
    assert (rowsof[1]["attempts"], rowsof[3]["attempts"]) == (1, 0)
    assert rowsof[3]["due_us"] == due_us
    stale = returned([m["id"] for m in got[:4]] + [77], [m["token"] for m in got[:4]] + [1])
    assert statuses(client.call("ack", header, stale)) == [
        "done",
        "stale_lease",
        "dead",
        "stale_lease",
        "not_found",
    ]
    (outcome,) = client.outcomes("cancel", header, rows(id=[got[4]["id"]]))
    assert outcome.at_us is not None
    assert outcome.at_us > now_us + 31_000_000, "extended beyond its 30 s"


def test_release_with_a_delay(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    sent(client, topic, payload=[b"a"], delay_us=[0])
    (message,) = leased(client, topic, 1)
    now_us = client.call("clock")["now_us"]
    part = rows(id=[message["id"]], token=[message["token"]], started_us=[None])
    assert statuses(client.call("release", {"topic": topic, "delay_us": HOUR_US}, part)) == ["ok"]
    (row,) = client.list(topic)
    assert row["due_us"] >= now_us + HOUR_US


# Dead messages


def test_dead_messages_are_redriven_and_purged(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    sent(
        client, topic, payload=[b"a", b"b", b"c", b"d"], key=["a", "b", "c", "d"], delay_us=[0] * 4
    )
    got = leased(client, topic, 4)
    ids = [m["id"] for m in got]
    header = {"topic": topic}
    client.call("reject", header, returned(ids[:3], [m["token"] for m in got[:3]]))
    assert {row["id"] for row in client.list(topic, state="dead")} == set(ids[:3])
    # A dead message frees its key: another may have taken it since.
    taken = sent(client, topic, payload=[b"B"], key=[got[1]["key"]])
    due_us = client.call("clock")["now_us"] + 5 * HOUR_US
    found = client.outcomes("redrive", {**header, "due_us": due_us}, rows(id=ids[:2]))
    assert statuses(found) == ["ok", "conflict"]
    (row,) = client.get(topic, rows(id=ids[:1]))
    assert (row["state"], row["due_us"], row["attempts"]) == ("scheduled", due_us, 0)
    assert (row["key"], row["payload"]) == (got[0]["key"], got[0]["payload"])
    found = client.outcomes("purge", header, rows(id=[*ids, 77]))
    assert found[1].status == "ok"
    assert found[2].status == "ok"
    assert found[4].status == "not_found"
    assert "ok" not in statuses(found[0:1] + found[3:4]), "only the dead are purged"
    left = {row["id"] for row in client.list(topic)}
    assert left == {ids[0], ids[3], taken[0]}


# count and forecast


def test_a_forecast_has_the_buckets_with_messages(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    minute = 60_000_000
    start_us = 9_000_000_000_000_000 // HOUR_US * HOUR_US
    offsets = [0, 1, minute - 1, minute, 5 * minute + 7, 6 * minute - 1, 6 * minute, -1]
    sent(client, topic, payload=[b""] * 8, due_us=[start_us + n for n in offsets])
    header = {
        "topic": topic,
        "from_us": start_us,
        "to_us": start_us + 6 * minute,
        "bucket_us": minute,
    }
    _, (table,) = client.reply("forecast", header)
    assert table.schema.names == ["start_us", "count"]
    assert table.schema.types == [pa.int64(), pa.int64()]
    found = [(row["start_us"] - start_us, row["count"]) for row in table.to_pylist()]
    assert found == [(0, 3), (minute, 1), (5 * minute, 2)]
    for wrong in (
        {"bucket_us": 0},
        {"bucket_us": -minute},
        {"bucket_us": minute + 1},
        {"to_us": start_us},
        {"from_us": start_us + 1},
        {"from_us": "x"},
        {"to_us": (1 << 63) - 1},
    ):
        with pytest.raises(Refused) as info:
            client.call("forecast", {**header, **wrong})
        assert info.value.code == "invalid_argument", wrong


# Transactions


def test_a_transaction_happens_whole(client: Client, make_topic: MakeTopic) -> None:
    topic, other = make_topic(), make_topic()
    pending = sent(client, topic, payload=[b"u", b"m", b"c"], owner="billing")
    sent(client, topic, payload=[b"%d" % n for n in range(5)], delay_us=[0] * 5)
    got = leased(client, topic, 5)
    back = [returned([m["id"]], [m["token"]]) for m in got]
    commands: list[tuple[dict[str, Any], pa.RecordBatch]] = [
        ({"op": "ack", "topic": topic}, back[0]),
        ({"op": "nack", "topic": topic, "reason": "later"}, back[1]),
        ({"op": "reject", "topic": topic, "reason": "never"}, back[2]),
        ({"op": "release", "topic": topic, "delay_us": HOUR_US}, back[3]),
        ({"op": "extend", "topic": topic, "length_us": 60_000_000}, back[4]),
        (
            {"op": "update", "topic": topic, "owner": "billing"},
            rows(id=pending[:1], payload=[b"U"]),
        ),
        (
            {"op": "move", "topic": topic, "owner": "billing"},
            rows(id=pending[1:2], delay_us=[2 * HOUR_US]),
        ),
        ({"op": "cancel", "topic": topic, "owner": "billing"}, rows(id=pending[2:])),
        (
            {"op": "produce", "topic": other, "owner": "billing", "on_conflict": "reject"},
            rows(payload=[b"p", b"q"], key=["k", None], delay_us=[HOUR_US, HOUR_US]),
        ),
    ]
    reply = client.call(
        "transaction", {"commands": [c for c, _ in commands]}, *[p for _, p in commands]
    )
    assert reply["committed"] is True
    assert [statuses(outcomes) for outcomes in reply["outcomes"]] == [["ok"]] * 8 + [["ok", "ok"]]
    made = expand(reply["outcomes"][8])
    assert [row["id"] for row in client.list(other)] == [outcome.id for outcome in made]
    counts = client.call("count", {"topic": topic})["counts"]
    assert {name: counts[name] for name in ("done", "cancelled", "dead", "leased")} == {
        "done": 1,
        "cancelled": 1,
        "dead": 1,
        "leased": 1,
    }


def test_a_transaction_does_not_happen_by_half(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    ids = sent(client, topic, payload=[b"a", b"b"], key=["a", "b"])
    before = client.list(topic, payload=True)
    commands = [
        {"op": "move", "topic": topic},
        {"op": "produce", "topic": topic, "on_conflict": "reject"},
        {"op": "cancel", "topic": topic},
    ]
    parts = [
        rows(id=ids[:1], delay_us=[1]),
        rows(payload=[b"new", b"again"], key=[None, "a"]),
        rows(id=ids[1:]),
    ]
    reply = client.call("transaction", {"commands": commands}, *parts)
    assert reply["committed"] is False
    # What stands behind the command that failed was not tried.
    assert [statuses(outcomes) for outcomes in reply["outcomes"]] == [
        ["aborted"],
        ["aborted", "conflict"],
    ]
    assert client.list(topic, payload=True) == before
    # A command that is refused as a whole refuses the transaction.
    commands[1] = {"op": "produce", "topic": "no-such-topic"}
    with pytest.raises(Refused) as info:
        client.call("transaction", {"commands": commands}, *parts)
    assert info.value.code == "not_found"
    assert client.list(topic, payload=True) == before


@pytest.mark.parametrize(
    "commands",
    [
        "x",
        {},
        [7],
        [{}],
        [{"op": "levitate", "topic": "t"}],
        [{"op": "redrive", "topic": "t"}],
        [{"op": "cancel"}],
        [{"op": "cancel", "topic": "t", "colour": 1}],
        [{"op": "cancel", "topic": "t"}] * 2,
        [],
    ],
)
def test_a_malformed_transaction_is_refused(
    client: Client, make_topic: MakeTopic, commands: Any
) -> None:
    topic = make_topic()
    ids = sent(client, topic, payload=[b"a"])
    for command in commands if isinstance(commands, list) else []:
        if isinstance(command, dict) and "topic" in command:
            command["topic"] = topic
    with pytest.raises(Refused) as info:
        client.call("transaction", {"commands": commands}, rows(id=ids))
    assert info.value.code == "invalid_argument"
    assert [row["id"] for row in client.list(topic)] == ids


# Stages


def test_a_stage_is_invisible_until_it_is_published(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    batch = rows(payload=[b"a", b"b"], key=["a", None], delay_us=[HOUR_US, HOUR_US])
    (first,), (second,) = (client.send(topic, batch, metadata={"stage": s}) for s in "xy")
    assert statuses(first + second) == ["ok"] * 4
    assert client.list(topic) == []
    assert client.call("count", {"topic": topic})["counts"]["staged"] == 4
    reply, (skipped,) = client.reply("publish", {"stage": "x"})
    assert (reply["rows"], skipped.column("id").to_pylist()) == (2, [])
    assert sorted(m["id"] for m in client.list(topic)) == [outcome.id for outcome in first]
    # The key is taken now.
    with pytest.raises(Refused) as info:
        client.call("publish", {"stage": "y", "skip_conflicts": False})
    assert info.value.code == "already_exists"
    assert client.call("count", {"topic": topic})["counts"]["staged"] == 2
    reply, (skipped,) = client.reply("publish", {"stage": "y", "skip_conflicts": True})
    assert (reply["rows"], skipped.column("id").to_pylist()) == (1, [second[0].id])
    assert len(client.list(topic)) == 3
    assert client.call("count", {"topic": topic})["counts"]["staged"] == 0


def test_a_stage_is_dropped(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, rows(payload=[b"a"] * 3), metadata={"stage": "dropped"})
    assert client.call("drop_stage", {"stage": "dropped"})["rows"] == 3
    assert not any(client.call("count", {"topic": topic})["counts"].values())
    for action in ("publish", "drop_stage"):
        with pytest.raises(Refused) as info:
            client.call(action, {"stage": "dropped"})
        assert info.value.code == "not_found"
