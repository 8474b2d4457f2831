"""Calls with a number, as docs/protocol.md has them: made again, they happen once and are answered alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import Client, Refused, returned, rows, statuses

HOUR_US = 3_600_000_000
MakeTopic = Callable[..., str]
Asked = tuple[str, dict[str, Any], pa.RecordBatch | None]


@pytest.fixture
def topic(client: Client, make_topic: MakeTopic) -> str:
    name = make_topic()
    keys = [f"k{n}" for n in range(6)]
    client.send(name, rows(payload=[b"x"] * 6, key=keys, delay_us=[HOUR_US] * 6))
    return name


def once(number: int, client: str, **more: int) -> dict[str, Any]:
    return {"once": {"client": client, "number": number, **more}}


def entry(key: str, value: bytes) -> pa.RecordBatch:
    """To be put where there is none."""
    columns = {"key": pa.array([key]), "value": pa.array([value], pa.binary())}
    return pa.RecordBatch.from_pydict({**columns, "version": pa.array([0], pa.int64())})


def test_a_call_made_again_is_answered_alike(client: Client, topic: str) -> None:
    header, part = {"topic": topic, "owner": ""}, rows(key=["k0", "k1", "none"])
    first = client.call("cancel", {**header, **once(1, topic)}, part)
    assert statuses(first) == ["ok", "ok", "not_found"]
    for age_us in (1, 2_000_000):
        again = client.call("cancel", {**header, **once(1, topic, age_us=age_us)}, part)
        assert again == first
    stream = client.calls()
    assert stream.call("cancel", {**header, **once(1, topic, age_us=3)}, part) == first
    stream.cancel()
    other = client.call("cancel", {**header, **once(2, topic)}, part)
    assert statuses(other)[:2] == ["cancelled", "cancelled"]


def test_numbers_in_any_order_and_since(client: Client, topic: str) -> None:
    def cancel(number: int, **more: int) -> list[str]:
        header = {"topic": topic, "owner": "", **once(number, topic, **more)}
        return statuses(client.call("cancel", header, rows(key=[f"k{number}"])))

    assert cancel(3, since=1) == cancel(1, since=1) == cancel(2, since=1) == ["ok"]
    assert cancel(1, since=1, age_us=1) == cancel(3, since=1, age_us=1) == ["ok"]
    assert cancel(4, since=3) == ["ok"]
    assert cancel(3, since=3, age_us=1) == ["ok"]
    with pytest.raises(Refused) as refused:
        cancel(2, since=1, age_us=1)
    assert (refused.value.code, refused.value.retryable) == ("call_forgotten", False)
    assert refused.value.details == {"client": topic, "number": 2}


def test_other_rows_under_a_number_are_refused(client: Client, topic: str) -> None:
    ids = [row["id"] for row in client.get(topic, rows(key=["k0", "k1"]))]
    header = {"topic": topic, "owner": "", **once(1, topic)}
    client.call("cancel", header, rows(id=ids[:1]))
    with pytest.raises(Refused) as refused:
        client.call("cancel", {**header, **once(1, topic, age_us=1)}, rows(id=ids))
    assert refused.value.code == "call_forgotten"


@pytest.mark.parametrize(
    ("action", "number", "field"),
    [
        ("cancel", {}, "client"),
        ("cancel", {"client": "c"}, "number"),
        ("cancel", {"client": "", "number": 1}, "client"),
        ("cancel", {"client": "c" * 65, "number": 1}, "client"),
        ("cancel", {"client": "c", "number": 0}, "number"),
        ("cancel", {"client": "c", "number": True}, "number"),
        ("cancel", {"client": "c", "number": 1 << 63}, "number"),
        ("cancel", {"client": "c", "number": 2, "since": 3}, "since"),
        ("cancel", {"client": "c", "number": 2, "since": -1}, "since"),
        ("cancel", {"client": "c", "number": 2, "age_us": -1}, "age_us"),
        ("cancel", {"client": "c", "number": 2, "colour": 1}, "colour"),
        ("cancel", "c-1", "once"),
        ("get", {"client": "c", "number": 1}, "once"),
        ("reply", {"client": "c", "number": 1}, "once"),
    ],
)
def test_what_is_not_a_number(
    client: Client, topic: str, action: str, number: Any, field: str
) -> None:
    with pytest.raises(Refused) as refused:
        client.call(action, {"topic": topic, "once": number}, rows(key=["k0"]))
    assert refused.value.code == "invalid_argument"
    assert refused.value.details["field"] == field


def test_every_kind_of_change(client: Client, topic: str, make_topic: MakeTopic) -> None:
    """Each is made three times: all answers are the first one, and it happened once."""
    entries, cron, log = make_topic(kind="kv"), make_topic(kind="cron"), make_topic(kind="log")
    spare, bound = make_topic(), make_topic()
    daily = {"cron": "0 9 * * *", "target": topic, "payload": "eA=="}
    calls: list[Asked] = [
        ("update", {"topic": topic}, rows(key=["k0"], payload=[b"y"])),
        ("move", {"topic": topic}, rows(key=["k0", "k1"], delay_us=[2 * HOUR_US] * 2)),
        ("move_where", {"topic": topic, "key_prefix": "k2", "by_us": HOUR_US}, None),
        ("cancel_where", {"topic": topic, "key_prefix": "k3"}, None),
        ("kv_put", {"topic": entries}, entry("a", b"1")),
        ("kv_delete", {"topic": entries}, rows(key=["a"])),
        ("put_schedules", {"topic": cron, "schedules": [{"name": "s", "schedule": daily}]}, None),
        ("pause_schedule", {"topic": cron, "name": "s", "paused": True}, None),
        ("run_schedule", {"topic": cron, "name": "s"}, None),
        ("delete_schedule", {"topic": cron, "name": "s"}, None),
        ("create_group", {"topic": log, "group": "g"}, None),
        ("reset_group", {"topic": log, "group": "g", "start": "latest"}, None),
        ("delete_group", {"topic": log, "group": "g"}, None),
        ("truncate", {"topic": log, "start": "latest"}, None),
        ("change_topic", {"topic": spare, "settings": {"lookahead_us": 5}}, None),
        ("pause_topic", {"topic": spare}, None),
        ("resume_topic", {"topic": spare}, None),
        ("bind", {"topic": bound, "pattern": "a.*", "target": spare}, None),
        ("unbind", {"topic": bound, "pattern": "a.*", "target": spare}, None),
        ("delete_topic", {"topic": spare}, None),
    ]
    for number, (action, header, part) in enumerate(calls, 1):
        parts = [] if part is None else [part]
        first = client.call(action, {**header, **once(number, "all-" + topic)}, *parts)
        for age_us in (1, 5):
            header = {**header, **once(number, "all-" + topic, age_us=age_us)}
            again = client.call(action, header, *parts)
            if action.endswith("_where"):
                # Where to go on is behind what was changed, though nothing may be there.
                assert again.pop("next_after_id") >= first.pop("next_after_id", 0)
            assert again == first, action
    assert client.call("count", {"topic": topic})["counts"]["cancelled"] == 1


def test_a_transaction_happens_once(client: Client, topic: str, make_topic: MakeTopic) -> None:
    entries = make_topic(kind="kv")
    header = {
        "commands": [
            {"op": "cancel", "topic": topic},
            {"op": "produce", "topic": topic},
            {"op": "kv_put", "topic": entries},
        ]
    }
    parts = [
        rows(key=["k5"]),
        rows(payload=[b"new"], key=["k5"], delay_us=[HOUR_US]),
        entry("a", b"1"),
    ]
    first = client.call("transaction", {**header, **once(1, topic)}, *parts)
    assert first["committed"] is True
    for _ in range(2):
        assert client.call("transaction", {**header, **once(1, topic, age_us=1)}, *parts) == first
    assert client.call("transaction", {**header, **once(2, topic)}, *parts)["committed"] is False


def test_leases_and_the_dead(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic(max_attempts=1)
    client.send(topic, rows(payload=[b"x"] * 3))
    session = client.consume(topic, "worker")
    ids, tokens = zip(*[(row["id"], row["token"]) for row in session.take(3)], strict=True)
    calls: list[Asked] = [
        ("ack", {"topic": topic}, returned(ids[:1], tokens[:1])),
        ("reject", {"topic": topic, "reason": "no"}, returned(ids[1:], tokens[1:])),
        ("redrive", {"topic": topic, "delay_us": HOUR_US}, rows(id=ids[1:2])),
        ("purge_dead", {"topic": topic}, None),
    ]
    for number, (action, header, part) in enumerate(calls, 1):
        parts = [] if part is None else [part]
        first = client.call(action, {**header, **once(number, topic)}, *parts)
        again = client.call(action, {**header, **once(number, topic, age_us=1)}, *parts)
        for reply in (first, again):
            reply.pop("next_after_id", None)
        assert again == first, action
    counts = client.call("count", {"topic": topic})["counts"]
    assert (counts["done"], counts["dead"], counts["scheduled"]) == (1, 0, 1)
    session.cancel()
