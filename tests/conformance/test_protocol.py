"""The protocol from outside: greeting, envelopes, topics, errors, operating the broker."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import (
    Client,
    ProduceStream,
    Refused,
    Session,
    pack,
    partition_of,
    partition_of_id,
    rows,
    unpack,
)

MakeTopic = Callable[..., str]
HOUR_US = 3_600_000_000
COUNTED = {"scheduled", "ready", "leased", "dead", "staged", "done", "cancelled"}

# What each action needs besides its version, to be understood at all.
ACTIONS: dict[str, tuple[dict[str, Any], list[pa.RecordBatch]]] = {
    "hello": ({}, []),
    "clock": ({}, []),
    "create_topic": ({"topic": "t", "settings": {}}, []),
    "change_topic": ({"topic": "t", "settings": {}}, []),
    "delete_topic": ({"topic": "t"}, []),
    "topic": ({"topic": "t"}, []),
    "topics": ({}, []),
    "pause_topic": ({"topic": "t"}, []),
    "resume_topic": ({"topic": "t"}, []),
    "consumers": ({}, []),
    "release_leases": ({"topic": "t", "consumer": "c"}, []),
    "get": ({"topic": "t"}, [rows(id=[1])]),
    "update": ({"topic": "t"}, [rows(id=[1], payload=[b""])]),
    "move": ({"topic": "t"}, [rows(id=[1], delay_us=[0])]),
    "cancel": ({"topic": "t"}, [rows(id=[1])]),
    "ack": ({"topic": "t"}, [rows(id=[1], token=[1], started_us=[None])]),
    "nack": ({"topic": "t"}, [rows(id=[1], token=[1], started_us=[None])]),
    "reject": ({"topic": "t"}, [rows(id=[1], token=[1], started_us=[None])]),
    "release": (
        {"topic": "t", "delay_us": 0},
        [rows(id=[1], token=[1], started_us=[None])],
    ),
    "extend": (
        {"topic": "t", "length_us": 1_000_000},
        [rows(id=[1], token=[1], started_us=[None])],
    ),
    "redrive": ({"topic": "t"}, [rows(id=[1])]),
    "purge": ({"topic": "t"}, [rows(id=[1])]),
    "redrive_dead": ({"topic": "t"}, []),
    "purge_dead": ({"topic": "t"}, []),
    "count_dead": ({"topic": "t"}, []),
    "cancel_where": ({"topic": "t"}, []),
    "references": ({"topic": "t"}, []),
    "move_where": ({"topic": "t", "by_us": 1}, []),
    "reply": (
        {"topic": "t"},
        [rows(to=["u"], payload=[b""]), rows(id=[1], token=[1], started_us=[None])],
    ),
    "count": ({"topic": "t"}, []),
    "forecast": ({"topic": "t", "from_us": 0, "to_us": 10, "bucket_us": 1}, []),
    "transaction": ({"commands": []}, []),
    "publish": ({"stage": "s", "skip_conflicts": False}, []),
    "drop_stage": ({"stage": "s"}, []),
    "take_snapshot": ({}, []),
    "drop_snapshot": ({"snapshot": 1}, []),
    "checkpoint": ({}, []),
    "scrub": ({}, []),
    "scrub_status": ({}, []),
    "health": ({}, []),
    "metrics": ({}, []),
    "cluster": ({}, []),
    "drain": ({"broker": "b"}, []),
}


def refused(client: Client, action: str, header: Any = None, *parts: pa.RecordBatch) -> Refused:
    with pytest.raises(Refused) as info:
        client.call(action, header, *parts)
    return info.value


# Greeting and versions


def test_hello_tells_who_answers(client: Client) -> None:
    hello = client.call("hello")
    assert hello["protocol"] == 1
    assert isinstance(hello["server"], str)
    assert isinstance(hello["now_us"], int)
    assert hello["limits"]["payload_bytes_max"] == 1 << 20
    assert hello["limits"]["batch_rows_max"] == 100_000
    assert hello["shard"] == client.call("hello")["shard"]


def test_the_clock_goes_forward(client: Client) -> None:
    first = client.call("clock")["now_us"]
    second = client.call("clock")["now_us"]
    assert 1_700_000_000_000_000 < first <= second


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_action_refuses_another_version(client: Client, action: str) -> None:
    header, parts = ACTIONS[action]
    for version in (0, 2, "1", None, True, 1.5):
        with pytest.raises(Refused) as info:
            client.reply(action, header, *parts, version=version)
        assert info.value.code == "invalid_argument"
        assert 1 in info.value.details["supported"]
        assert not info.value.retryable
    reply = unpack(client.raw_call(action, pack(header, parts)))[0]
    assert reply["error"]["code"] == "invalid_argument", "a version must be named"


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_action_names_a_field_that_it_does_not_know(client: Client, action: str) -> None:
    header, parts = ACTIONS[action]
    error = refused(client, action, {**header, "colour": "red"}, *parts)
    assert error.code == "invalid_argument"
    assert "colour" in error.message


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_action_names_a_field_that_is_missing(client: Client, action: str) -> None:
    header, parts = ACTIONS[action]
    # What the page calls optional, or gives a default.
    needed = header.keys() - {"settings", "skip_conflicts", "delay_us"}
    for name in needed:
        rest = {key: value for key, value in header.items() if key != name}
        error = refused(client, action, rest, *parts)
        assert error.code == "invalid_argument", name
        assert name in error.message
    if parts:
        assert refused(client, action, header).code == "invalid_argument"


# Envelopes


def test_an_unknown_action_has_a_code(client: Client) -> None:
    error = refused(client, "levitate")
    assert error.code == "invalid_argument"
    assert "levitate" in error.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01\x00",
        struct.pack("<I", 100) + b"{}",
        struct.pack("<I", 0xFFFFFFFF) + b"{}",
        struct.pack("<I", 4) + b"nope",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 4) + b"null",
        struct.pack("<I", 3) + b'"\xff"',
        pack({"version": 1}) + b"more",
        pack({"version": 1, "parts": [5]}) + b"abc",
        pack({"version": 1, "parts": [3]}) + b"abc",
        pack({"version": 1, "parts": [-1]}),
        pack({"version": 1, "parts": [1 << 62]}),
        pack({"version": 1, "parts": ["1"]}),
        pack({"version": 1, "parts": {}}),
    ],
)
def test_a_malformed_envelope_is_refused(client: Client, body: bytes) -> None:
    header, parts = unpack(client.raw_call("hello", body))
    assert header["error"]["code"] == "invalid_argument"
    assert set(header["error"]) == {"code", "message", "retryable", "retry_after_us", "details"}
    assert not parts


def test_parts_that_nobody_asked_for_are_refused(client: Client) -> None:
    assert refused(client, "hello", None, rows(id=[1])).code == "invalid_argument"


# Topics


def test_a_topic_is_made_once(client: Client, make_topic: MakeTopic) -> None:
    name = make_topic(partitions=3, retry={"base_us": 5, "jitter": 0.0})
    again = {"topic": name, "settings": {"partitions": 3, "retry": {"base_us": 5, "jitter": 0.0}}}
    reply = client.call("create_topic", again)
    assert reply["created"] is False
    assert reply["settings"]["partitions"] == 3
    assert reply["settings"]["retry"]["base_us"] == 5
    assert reply["settings"]["lease_us"] == 30_000_000
    error = refused(client, "create_topic", {"topic": name, "settings": {"partitions": 4}})
    assert error.code == "topic_mismatch"
    assert {"partitions", "retry"} <= set(json.dumps(error.details).split('"'))
    assert client.call("topic", {"topic": name})["settings"] == reply["settings"]


def test_create_says_that_it_made_one(client: Client) -> None:
    assert client.call("create_topic", {"topic": "made-once", "settings": {}})["created"] is True
    client.call("delete_topic", {"topic": "made-once"})


def test_a_topic_changes_only_what_is_named(client: Client, make_topic: MakeTopic) -> None:
    name = make_topic(lease_us=5_000_000)
    changed = client.call("change_topic", {"topic": name, "settings": {"max_attempts": 2}})
    assert changed["settings"]["max_attempts"] == 2
    assert changed["settings"]["lease_us"] == 5_000_000
    assert client.call("topic", {"topic": name})["settings"] == changed["settings"]
    again = client.call("change_topic", {"topic": name, "settings": {"retry": {"factor": 1.0}}})
    assert again["settings"]["retry"] == {**changed["settings"]["retry"], "factor": 1.0}
    for settings in ({"partitions": 2}, {"kind": "log"}, {"lease": 1}, {"lease_us": 0}):
        error = refused(client, "change_topic", {"topic": name, "settings": settings})
        assert error.code in ("invalid_argument", "topic_mismatch"), settings
        assert next(iter(settings)) in f"{error.message} {error.details}"
    assert client.call("topic", {"topic": name})["settings"] == again["settings"]


def test_a_topic_is_deleted_with_all_in_it(client: Client, make_topic: MakeTopic) -> None:
    name = make_topic()
    client.send(name, rows(payload=[b"x"], delay_us=[HOUR_US]))
    client.call("delete_topic", {"topic": name})
    assert refused(client, "topic", {"topic": name}).code == "not_found"
    assert refused(client, "delete_topic", {"topic": name}).code == "not_found"
    assert refused(client, "change_topic", {"topic": name, "settings": {}}).code == "not_found"
    client.call("create_topic", {"topic": name, "settings": {}})
    assert client.call("count", {"topic": name})["counts"]["scheduled"] == 0


def test_topics_are_listed_by_name(client: Client, make_topic: MakeTopic) -> None:
    mine = sorted(make_topic(max_attempts=n) for n in range(1, 4))
    client.send(mine[0], rows(payload=[b"x", b"y"], delay_us=[HOUR_US, HOUR_US]))
    listed = client.call("topics")["topics"]
    names = [entry["topic"] for entry in listed]
    assert names == sorted(names)
    assert set(mine) <= set(names)
    entry = listed[names.index(mine[0])]
    assert entry["counts"]["scheduled"] == 2
    assert {"settings": entry["settings"], "counts": entry["counts"]} == {
        name: value
        for name, value in client.call("topic", {"topic": mine[0]}).items()
        if name in ("settings", "counts")
    }


def test_counts_name_every_state(client: Client, make_topic: MakeTopic) -> None:
    name = make_topic()
    client.send(name, rows(payload=[b"a", b"b", b"c"], delay_us=[None, HOUR_US, HOUR_US]))
    target = rows(id=[m["id"] for m in client.list(name)][-1:])
    client.call("cancel", {"topic": name}, target)
    counts = client.call("count", {"topic": name})["counts"]
    assert counts.keys() == COUNTED
    assert counts == {**dict.fromkeys(COUNTED, 0), "ready": 1, "scheduled": 1, "cancelled": 1}


@pytest.mark.parametrize("name", ["", "x" * 256, "bad\x00name", 7, None, ["t"]])
def test_a_topic_needs_a_proper_name(client: Client, name: Any) -> None:
    error = refused(client, "create_topic", {"topic": name, "settings": {}})
    assert error.code == "invalid_argument"


@pytest.mark.parametrize(
    "settings",
    [
        [],
        "x",
        {"partitions": 0},
        {"partitions": 4097},
        {"partitions": "1"},
        {"partitions": 1.5},
        {"partitions": True},
        {"lease_us": 999_999},
        {"lease_us": 1 << 63},
        {"lease_us": -(1 << 63)},
        {"hold_us": 1},
        {"max_attempts": -1},
        {"lookahead_us": 60_000_001},
        {"retry": 5},
        {"retry": {"factor": 0.5}},
        {"retry": {"factor": "NaN"}},
        {"retry": {"base": 5}},
        {"kind": "nonsense"},
        {"outcome_age_us": None},
    ],
)
def test_settings_that_can_not_be_are_refused(client: Client, settings: Any) -> None:
    error = refused(client, "create_topic", {"topic": "never-made", "settings": settings})
    assert error.code == "invalid_argument"
    assert refused(client, "topic", {"topic": "never-made"}).code == "not_found"


# The partition of a key


def test_the_partition_of_a_key_is_the_page_s(client: Client, make_topic: MakeTopic) -> None:
    name = make_topic(partitions=7)
    keys = ["a", "1234567", "12345678", "123456789", "grün", "キー" * 11, "x" * 512]
    keys += [f"user-{n}" for n in range(500)]
    (sent,) = client.send(name, rows(payload=[b""] * len(keys), key=keys))
    found = [partition_of_id(outcome.id) for outcome in sent]
    assert [outcome.status for outcome in sent] == ["ok"] * len(keys)
    assert found == [partition_of(key, 7) for key in keys]
    assert len(set(found)) == 7
    got = client.get(name, rows(key=keys), payload=False)
    assert [row["partition"] for row in got] == found


# Errors of calls without a reply


@pytest.mark.parametrize(
    ("ticket", "code"),
    [
        (b"", "invalid_argument"),
        (b"\xff\xfe", "invalid_argument"),
        (b"[]", "invalid_argument"),
        ({"call": "list", "topic": "t"}, "invalid_argument"),
        ({"version": 2, "call": "list", "topic": "t"}, "invalid_argument"),
        ({"version": 1, "topic": "t"}, "invalid_argument"),
        ({"version": 1, "call": "levitate", "topic": "t"}, "invalid_argument"),
        ({"version": 1, "call": "produce", "topic": "t"}, "invalid_argument"),
        ({"version": 1, "call": "list"}, "invalid_argument"),
        ({"version": 1, "call": "list", "topic": "t", "colour": 1}, "invalid_argument"),
        ({"version": 1, "call": "list", "topic": "no-such-topic"}, "not_found"),
    ],
)
def test_a_read_is_refused_by_status(client: Client, ticket: Any, code: str) -> None:
    for read in (client.read, client.plan):
        with pytest.raises(Refused) as info:
            read(ticket)
        assert info.value.code == code
        assert info.value.retryable is False
        assert isinstance(info.value.details, dict)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (b"", "invalid_argument"),
        (b"{", "invalid_argument"),
        (b'{"version": 1, "call": "list", "topic": "t"}', "invalid_argument"),
        (b'{"version": 3, "call": "CALL", "topic": "t"}', "invalid_argument"),
        (b'{"version": 1, "call": "CALL", "topic": "no-such-topic", "consumer": "c"}', None),
        (b'{"version": 1, "call": "CALL", "topic": "t", "colour": 1}', "invalid_argument"),
        (b'{"version": 1, "call": "CALL", "topic": 7}', "invalid_argument"),
        (b'{"version": 1, "call": "CALL"}', "invalid_argument"),
    ],
)
def test_a_stream_that_can_not_be_opened(client: Client, command: bytes, code: str | None) -> None:
    schema = pa.schema([("payload", pa.binary())])
    produce = command.replace(b"CALL", b"produce").replace(b', "consumer": "c"', b"")
    with pytest.raises(Refused) as info:
        ProduceStream(*client.open_put(produce, schema)).receipt()
    assert info.value.code == (code or "not_found")
    with pytest.raises(Refused) as info:
        Session(*client.open_exchange(command.replace(b"CALL", b"consume"))).pending()
    assert info.value.code == (code or "not_found")


# Operating


def test_health_and_metrics(client: Client) -> None:
    health = client.call("health")
    assert (health["ready"], health["state"]) == (True, "serving")
    text = client.call("metrics")["text"]
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert samples
    for line in samples:
        float(line.rsplit(" ", 1)[1])


def test_a_checkpoint_changes_nothing_that_can_be_seen(
    client: Client, make_topic: MakeTopic
) -> None:
    name = make_topic()
    client.send(name, rows(payload=[b"a", b"b"], delay_us=[HOUR_US] * 2, key=["k", None]))
    before = client.list(name, payload=True)
    client.call("checkpoint")
    assert client.list(name, payload=True) == before
