"""Garbage and excess for key-value topics and bindings, at a real broker's port.

As in test_hostile_input.py, whose broker and checks these are: something definite is said, nothing
surprises the broker, and it serves on.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.conformance.protocol_client import Client, pack, rows, status_as_error, unpack
from tests.integration.test_hostile_input import (
    EXPECTED,
    EXTREMES,
    broker,
    client,
    idle_bytes,
    refused,
    refused_at_most,
)

# They speak the protocol without the SDK, to one shard.
pytestmark = pytest.mark.one_shard

__all__ = ["broker", "client", "idle_bytes"]

NAMED = pa.RecordBatch.from_pydict({"key": ["a", "b", "c"], "clustering": ["x", None, "y"]})
PUT = NAMED.append_column("value", pa.array([b"1", b"", b"333"])).append_column(
    "version", pa.array([0, None, 7])
)


@pytest.fixture(autouse=True)
def topics(client: Client) -> None:
    for name, settings in {"entries": {"kind": "kv"}, "bound": {}, "bound-to": {}}.items():
        client.call("create_topic", {"topic": name, "settings": settings})


def mutated(body: bytes, chance: random.Random) -> bytes:
    wrong = bytearray(body)
    for _ in range(chance.choice([1, 1, 2, 8])):
        wrong[chance.randrange(len(wrong))] = chance.randrange(256)
    if chance.random() < 0.2:
        del wrong[chance.randrange(len(wrong)) :]
    return bytes(wrong)


@pytest.mark.parametrize(
    ("action", "header", "parts"),
    [
        ("kv_put", {"topic": "entries"}, [PUT]),
        ("kv_get", {"topic": "entries", "value": True}, [NAMED]),
        ("kv_delete", {"topic": "entries"}, [NAMED]),
        ("bind", {"topic": "bound", "pattern": "a.*.b", "target": "bound-to"}, []),
        ("unbind", {"topic": "bound", "pattern": "a.*.b", "target": "bound-to"}, []),
    ],
)
def test_envelopes_with_flipped_bytes(
    client: Client,
    action: str,
    header: dict[str, Any],
    parts: list[pa.RecordBatch],
) -> None:
    chance = random.Random(action)
    body = pack({"version": 1, **header}, parts)
    codes = set()
    for _ in range(300):
        answer, _ = unpack(client.raw_call(action, mutated(body, chance)))
        codes.add(answer["error"]["code"] if "error" in answer else "answered")
    assert codes <= EXPECTED | {"answered"}
    assert "invalid_argument" in codes


@pytest.mark.parametrize("call", ["kv", "watch"])
def test_tickets_and_descriptors_with_flipped_bytes(
    client: Client,
    call: str,
) -> None:
    chance = random.Random(call)
    fields: dict[str, Any] = {"prefix": "user-"}
    if call == "kv":
        fields = {"from": ["a", "b"], "to": ["c", None], "limit": 10, "value": True}
    else:
        fields["position"] = 1
    body = json.dumps({"version": 1, "call": call, "topic": "entries", **fields}).encode()
    for _ in range(150):
        wrong = mutated(body, chance)
        with refused_at_most(wrong), status_as_error():
            if call == "kv":
                client.flight.do_get(fl.Ticket(wrong), client.options()).read_all()
                continue
            writer, reader = client.open_exchange(wrong)
            try:
                writer.begin(PUT.schema)
                reader.read_chunk()
            finally:
                reader.cancel()


@pytest.mark.parametrize("column", ["version", "ttl_us", "expires_us"])
def test_extreme_numbers(client: Client, column: str) -> None:
    for number in EXTREMES:
        batch = pa.RecordBatch.from_pydict(
            {"key": ["extreme"], "value": [b"1"], column: pa.array([number], pa.int64())}
        )
        with refused_at_most(column, number):
            client.call("kv_put", {"topic": "entries"}, batch)
    with refused_at_most("watch"):
        client.call("kv_describe", {"topic": "entries"})


def test_more_than_the_limits(client: Client) -> None:
    many = pa.RecordBatch.from_pydict({"key": ["k"] * 100_001})
    assert refused(lambda: client.call("kv_get", {"topic": "entries"}, many)) == "invalid_argument"
    long = pa.RecordBatch.from_pydict({"key": ["k" * 513], "value": [b""]})
    assert refused(lambda: client.call("kv_put", {"topic": "entries"}, long)) == "invalid_argument"
    wide = pa.RecordBatch.from_pydict({"key": ["k"], "value": [b"x" * ((1 << 20) + 1)]})
    assert refused(lambda: client.call("kv_put", {"topic": "entries"}, wide)) == "invalid_argument"
    # One value, asked for so often that no answer could hold it.
    one = pa.RecordBatch.from_pydict({"key": ["large"], "value": [b"x" * (1 << 20)]})
    client.call("kv_put", {"topic": "entries"}, one)
    often = pa.RecordBatch.from_pydict({"key": ["large"] * 100_000})
    assert refused(lambda: client.call("kv_get", {"topic": "entries"}, often)) == "invalid_argument"


def test_subjects_that_are_not_utf8(client: Client) -> None:
    client.call("bind", {"topic": "bound", "pattern": ">", "target": "bound-to"})
    fine = rows(payload=[b"1"], subject=["abcd"])
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\4\0\0\0"), pa.py_buffer(b"\xff\xfe\xfd\xfc")
    )
    batch = pa.RecordBatch.from_arrays([fine.column("payload"), broken], schema=fine.schema)
    assert refused(lambda: client.send("bound", batch)) == "invalid_argument"


def test_patterns_and_subjects_of_nothing_but_signs(client: Client) -> None:
    for number in range(8, 128, 8):
        pattern = ".".join(["*"] * number) + ".>"
        header = {"topic": "bound", "pattern": pattern, "target": "bound-to"}
        client.call("bind", header)
    deep = [".".join("a" * size) for size in range(1, 129)] * 20
    (sent,) = client.send("bound", rows(payload=[b""] * len(deep), subject=deep))
    assert {outcome.status for outcome in sent} == {"ok"}
