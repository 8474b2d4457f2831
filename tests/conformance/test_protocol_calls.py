"""Streams of calls, and parts that stand in a header, as docs/protocol.md has them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import (
    CallStream,
    Client,
    Refused,
    expand,
    rows,
    statuses,
)

HOUR_US = 3_600_000_000


@pytest.fixture
def stream(client: Client) -> Iterator[CallStream]:
    opened = client.calls()
    yield opened
    opened.cancel()


@pytest.fixture
def topic(client: Client, make_topic: Callable[..., str]) -> str:
    name = make_topic()
    keys = [f"k{n}" for n in range(4)]
    client.send(name, rows(payload=[b"x"] * 4, key=keys, delay_us=[HOUR_US] * 4))
    return name


def named(topic: str) -> dict[str, Any]:
    return {"topic": topic, "owner": ""}


def test_the_broker_says_what_may_be_called(stream: CallStream) -> None:
    quick = {"get", "update", "move", "cancel", "ack", "count", "transaction", "kv_put", "reply"}
    assert quick <= set(stream.actions)
    assert not {"checkpoint", "topics", "cancel_where", "begin_backup"} & set(stream.actions)


def test_calls_are_answered_one_after_another(
    client: Client, stream: CallStream, topic: str
) -> None:
    assert statuses(stream.call("cancel", named(topic), rows(key=["k0"]))) == ["ok"]
    # Written without waiting: the answers come in the order of the requests.
    stream.write("move", named(topic), rows(key=["k1"], delay_us=[2 * HOUR_US]))
    stream.write("cancel", named(topic), rows(key=["k0", "k2"]))
    stream.write("get", {"topic": topic, "payload": True}, rows(key=["k1"]))
    stream.write("count", {"topic": topic})
    assert expand(stream.answer()[0])[0].version == 2
    assert statuses(stream.answer()[0]) == ["cancelled", "ok"]
    _, (table,) = stream.answer()
    assert table.column("payload").to_pylist() == [b"x"]
    counts = stream.answer()[0]["counts"]
    assert counts == client.call("count", {"topic": topic})["counts"]
    assert (counts["scheduled"], counts["cancelled"]) == (2, 2)


def test_an_error_is_an_answer_and_the_stream_goes_on(stream: CallStream, topic: str) -> None:
    bad: list[tuple[Any, dict[str, Any], str]] = [
        ("cancel", named("nowhere"), "not_found"),
        ("cancel", {**named(topic), "colour": "red"}, "invalid_argument"),
        ("cancel", {**named(topic), "version": 7}, "invalid_argument"),
        ("checkpoint", {}, "invalid_argument"),
        ("nothing", {}, "invalid_argument"),
        (["cancel"], named(topic), "invalid_argument"),
        (None, named(topic), "invalid_argument"),
    ]
    for action, header, code in bad:
        with pytest.raises(Refused) as refused:
            stream.call(action, header, rows(key=["k0"]))
        assert refused.value.code == code, action
    with pytest.raises(Refused):
        stream.call("count", {"topic": topic}, rows(key=["k0"]))
    for body in (b"", b"xx", struct.pack("<I", 99) + b"{}", struct.pack("<I", 2) + b"[]"):
        stream.write_raw(body or b" ")
        with pytest.raises(Refused, match="invalid_argument"):
            stream.answer()
    assert statuses(stream.call("cancel", named(topic), rows(key=["k0"]))) == ["ok"]


def test_the_descriptor_and_the_schema_are_checked(client: Client) -> None:
    with pytest.raises(Refused, match="invalid_argument"):
        client.calls(topic="x")
    with pytest.raises(Refused, match="invalid_argument"):
        client.calls(version=2)
    with pytest.raises(Refused, match="invalid_argument"):
        client.calls(schema=pa.schema([("id", pa.int64())]))


def test_a_stream_that_is_finished_answers_what_is_left(stream: CallStream, topic: str) -> None:
    stream.write("cancel", named(topic), rows(key=["k0"]))
    stream.write("cancel", named(topic), rows(key=["k1"]))
    stream.finish()
    assert statuses(stream.answer()[0]) == ["ok"]
    assert statuses(stream.answer()[0]) == ["ok"]
    assert stream.is_over()


def test_a_part_may_stand_in_the_header(client: Client, stream: CallStream, topic: str) -> None:
    move = {"key": ["k1", "k2"], "delay_us": [HOUR_US, 2 * HOUR_US]}
    assert statuses(stream.call("move", named(topic), move)) == ["ok", "ok"]
    assert statuses(client.call("move", named(topic), move)) == ["ok", "ok"]
    ids = [message["id"] for message in client.get(topic, rows(key=["k1", "k2"]))]
    assert statuses(stream.call("cancel", named(topic), {"id": ids})) == ["ok", "ok"]
    # Both kinds in one request, in the order of the commands.
    commands = [{"op": "produce", "topic": topic}, {"op": "cancel", "topic": topic}]
    parts = (rows(payload=[b"new"], key=["k9"]), {"key": ["k0"]})
    assert stream.call("transaction", {"commands": commands}, *parts)["committed"] is True


BAD_COLUMNS: dict[str, Any] = {
    "no list": {"key": "k0"},
    "empty": {"key": []},
    "null": {"key": ["k0", None]},
    "mixed": {"key": ["k0", 1]},
    "a float": {"id": [1.5]},
    "a whole float": {"id": [1.0]},
    "a bool": {"id": [True]},
    "too large": {"id": [1 << 63]},
    "nested": {"key": [["k0"]]},
    "an object": {"key": [{}]},
    "half a character": {"key": ["\ud800"]},
    "lengths": {"key": ["k0", "k1"], "delay_us": [1]},
    "another type": {"key": [7]},
    "an unknown column": {"key": ["k0"], "colour": ["red"]},
    "no columns": {},
    "both names": {"key": ["k0"], "id": [1]},
}


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_columns_in_a_header_that_are_refused(
    client: Client, stream: CallStream, topic: str, name: str
) -> None:
    text = json.dumps({"version": 1, **named(topic), "parts": [BAD_COLUMNS[name]]})
    body = struct.pack("<I", len(text)) + text.encode()
    from_action = client.raw_call("cancel", body)
    assert b'"invalid_argument"' in from_action
    stream.write("cancel", named(topic), BAD_COLUMNS[name])
    with pytest.raises(Refused, match="invalid_argument"):
        stream.answer()
    assert client.call("count", {"topic": topic})["counts"]["scheduled"] == 4
