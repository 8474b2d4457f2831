"""The protocol from outside: bindings, subjects, and what becomes of messages that go to several."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import Client, Header, Refused, rows, statuses

MakeTopic = Callable[..., str]
HOUR_US = 3_600_000_000


def later(*payloads: bytes, **columns: Any) -> pa.RecordBatch:
    """Messages that are due in an hour."""
    return rows(payload=payloads, delay_us=[HOUR_US] * len(payloads), **columns)


def bind(client: Client, topic: str, pattern: str, target: str) -> Header:
    return client.call("bind", {"topic": topic, "pattern": pattern, "target": target})


def count(client: Client, topic: str) -> int:
    counts = client.call("count", {"topic": topic})["counts"]
    return int(counts["scheduled"] + counts["ready"])


def refusal(call: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value


def test_bindings_are_made_listed_and_ended(client: Client, make_topic: MakeTopic) -> None:
    topic, one, two = make_topic(), make_topic(), make_topic(kind="log")
    assert bind(client, topic, "a.*", one)["created"] is True
    assert bind(client, topic, "a.*", one)["created"] is False
    bind(client, topic, ">", two)
    listed = client.call("bindings", {"topic": topic})["bindings"]
    assert listed == [{"pattern": "a.*", "target": one}, {"pattern": ">", "target": two}]
    client.call("unbind", {"topic": topic, "pattern": "a.*", "target": one})
    ended = {"topic": topic, "pattern": "a.*", "target": one}
    assert refusal(lambda: client.call("unbind", ended)).code == "not_found"
    client.call("delete_topic", {"topic": two})
    assert client.call("bindings", {"topic": topic})["bindings"] == []


@pytest.mark.parametrize(
    ("pattern", "subjects"),
    [
        ("a.*.c", ["a.b.c"]),
        ("a.>", ["a.b", "a.b.c", "a.b.c.d"]),
        ("*", ["a"]),
        (">", ["a", "a.b", "a.b.c", "a.b.c.d", None]),
    ],
)
def test_what_a_pattern_fits(
    client: Client, make_topic: MakeTopic, pattern: str, subjects: list[str | None]
) -> None:
    topic, target = make_topic(), make_topic()
    bind(client, topic, pattern, target)
    sent = ["a", "a.b", "a.b.c", "a.b.c.d", None]
    batch = rows(payload=[b"x"] * 5, subject=sent)
    assert [each.status for each in client.send(topic, batch)[0]] == ["ok"] * 5
    assert count(client, topic) == 5
    assert [row["subject"] for row in client.list(target, payload=True)] == subjects


def test_a_row_that_a_target_can_not_take_is_nowhere(client: Client, make_topic: MakeTopic) -> None:
    topic, target = make_topic(), make_topic()
    bind(client, topic, ">", target)
    taken = later(b"old", key=["k"])
    ((there,),) = client.send(target, taken)
    batch = later(b"1", b"2", b"3", key=["k", "free", "k"])
    (found,) = client.send(topic, batch)
    assert [each.status for each in found] == ["conflict", "ok", "aborted"]
    assert (found[0].id, found[0].version, found[0].by) == (there.id, 1, target)
    assert (count(client, topic), count(client, target)) == (1, 2)
    whole = later(b"4", b"5", key=["k", "free-2"])
    again = later(b"6", key=["k"])
    for batch, metadata, expected in (
        (whole, {"atomic": True}, ["conflict", "aborted"]),
        (again, {"on_conflict": "replace"}, ["ok"]),
        (again, {"on_conflict": "keep"}, ["duplicate"]),
    ):
        assert statuses(client.send(topic, batch, metadata=metadata)[0]) == expected
    assert (count(client, topic), count(client, target)) == (2, 2)


def test_a_relay_keeps_nothing(client: Client, make_topic: MakeTopic) -> None:
    relay, target = make_topic(relay=True), make_topic()
    bind(client, relay, "a", target)
    batch = rows(payload=[b"1", b"2"], subject=["a", "b"])
    (found,) = client.send(relay, batch)
    assert [(each.status, each.id) for each in found] == [("ok", 0), ("ok", 0)]
    assert (count(client, relay), count(client, target)) == (0, 1)
    other = make_topic()
    refused = refusal(lambda: bind(client, other, ">", relay))
    assert (refused.code, refused.details["field"]) == ("invalid_argument", "target")


def test_a_batch_that_is_sent_again_is_copied_once(client: Client, make_topic: MakeTopic) -> None:
    topic, target = make_topic(), make_topic()
    bind(client, topic, ">", target)
    batch = rows(payload=[b"1"])
    first = client.produce(batch.schema, topic=topic, producer=f"p-{topic}")
    told = first.ask(batch, {"sequence": 1})
    first.finish()
    client.call("unbind", {"topic": topic, "pattern": ">", "target": target})
    second = client.produce(batch.schema, topic=topic, producer=f"p-{topic}")
    again = second.ask(batch, {"sequence": 1})
    second.finish()
    assert again["sent_before"] is True
    assert again["ids"] == told["ids"]
    assert (count(client, topic), count(client, target)) == (1, 1)


def test_in_a_transaction(client: Client, make_topic: MakeTopic) -> None:
    topic, target = make_topic(), make_topic()
    bind(client, topic, ">", target)
    commands = [{"op": "produce", "topic": topic}, {"op": "produce", "topic": target}]
    parts = [later(b"1", key=["k"]), later(b"2", key=["k"])]
    found = client.call("transaction", {"commands": commands}, *parts)
    assert found["committed"] is False
    assert [statuses(each) for each in found["outcomes"]] == [["aborted"], ["conflict"]]
    assert (count(client, topic), count(client, target)) == (0, 0)
    found = client.call("transaction", {"commands": commands[:1]}, parts[0])
    assert found["committed"] is True
    assert (count(client, topic), count(client, target)) == (1, 1)


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ({"pattern": ""}, "pattern"),
        ({"pattern": "a..b"}, "pattern"),
        ({"pattern": "a.>.b"}, "pattern"),
        ({"pattern": "a\n"}, "pattern"),
        ({"pattern": "\ud800"}, "pattern"),
        ({"pattern": "a." * 128 + "a"}, "pattern"),
        ({"pattern": 7}, "pattern"),
        ({"pattern": None}, "pattern"),
        ({"target": ["x"]}, "target"),
        ({"topicc": "x"}, "topicc"),
    ],
)
def test_bad_bindings(client: Client, make_topic: MakeTopic, header: Header, field: str) -> None:
    topic, target = make_topic(), make_topic()
    given = {"topic": topic, "pattern": "a", "target": target, **header}
    refused = refusal(lambda: client.call("bind", given))
    assert (refused.code, refused.details["field"]) == ("invalid_argument", field)
    assert client.call("bindings", {"topic": topic})["bindings"] == []


@pytest.mark.parametrize("subject", ["", "a.", "*", "a.>", "a b", "x" * 256])
def test_bad_subjects(client: Client, make_topic: MakeTopic, subject: str) -> None:
    topic = make_topic()
    batch = rows(payload=[b"fine", b"not"], subject=["a", subject])
    refused = refusal(lambda: client.send(topic, batch))
    assert (refused.code, refused.details["field"]) == ("invalid_argument", "subject")
    assert count(client, topic) == 0


def test_other_kinds_and_too_many(client: Client, make_topic: MakeTopic) -> None:
    topic, entries = make_topic(), make_topic(kind="kv")
    assert refusal(lambda: bind(client, topic, ">", entries)).details["field"] == "target"
    assert refusal(lambda: bind(client, entries, ">", topic)).details["field"] == "topic"
    assert refusal(lambda: bind(client, topic, ">", topic)).details["field"] == "target"
    assert refusal(lambda: bind(client, topic, ">", "nowhere")).code == "not_found"
    settings = {"topic": "relay-kv", "settings": {"kind": "kv", "relay": True}}
    assert refusal(lambda: client.call("create_topic", settings)).details["field"] == "relay"
    limit = client.call("hello")["limits"]["bindings_max"]
    target = make_topic()
    for number in range(limit):
        bind(client, topic, f"a.{number}", target)
    refused = refusal(lambda: bind(client, topic, "one.more", target))
    assert (refused.details["field"], refused.details["limit"]) == ("bindings_max", limit)
    assert len(json.dumps(client.call("bindings", {"topic": topic}))) > 10 * limit
