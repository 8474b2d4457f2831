"""Garbage, lies and excess about entries at a real broker's port: definite answers, no surprises."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.conformance.protocol_client import VERSION, Client, statuses
from tests.conformance.test_protocol_kv import entries
from tests.integration.test_hostile_input import (  # noqa: F401  (fixtures)
    BEYOND,
    EXTREMES,
    broker,
    claiming,
    client,
    idle_bytes,
    refused,
    refused_at_most,
    wait_until,
)

# They speak the protocol without the SDK, to one shard.
pytestmark = pytest.mark.one_shard

NUMBERS = [*EXTREMES, *BEYOND]
TOPIC = "entries"


@pytest.fixture
def kv(client: Client) -> str:  # noqa: F811
    """A topic with an entry that nobody here may change."""
    client.call("create_topic", {"topic": TOPIC, "settings": {"kind": "kv", "partitions": 2}})
    client.call("kv_put", {"topic": TOPIC}, entries(key=["mine"], value=[b"untouched"]))
    return TOPIC


def mine(client: Client) -> Any:  # noqa: F811
    _, (table,) = client.reply("kv_get", {"topic": TOPIC}, entries(key=["mine"]))
    return table.column("value")[0].as_py()


def count(client: Client) -> int:  # noqa: F811
    return int(client.call("kv_describe", {"topic": TOPIC})["entries"])


def test_numbers_from_nowhere(client: Client, kv: str) -> None:  # noqa: F811
    header = {"topic": kv}
    for number in EXTREMES:
        for name in ("ttl_us", "expires_us", "version"):
            batch = entries(key=["number"], value=[b"x"], **{name: [number]})
            with refused_at_most(name, number):
                assert statuses(client.call("kv_put", header, batch))[0] in ("ok", "conflict")
        with refused_at_most(number):
            batch = entries(key=["mine"], version=[number])
            assert statuses(client.call("kv_delete", header, batch)) == ["conflict"]
    for number in NUMBERS:
        with refused_at_most(number):
            client.read({"version": VERSION, "call": "kv", "topic": kv, "limit": number})
        assert watch_refusal(client, position=number), number
    client.call("kv_delete", header, entries(key=["number"]))
    assert mine(client) == b"untouched"


def watch_refusal(client: Client, **more: Any) -> str:  # noqa: F811
    descriptor = {"version": VERSION, "call": "watch", "topic": TOPIC, **more}
    command = fl.FlightDescriptor.for_command(json.dumps(descriptor))
    writer, reader = client.flight.do_exchange(command)
    try:
        reader.read_chunk()
    except (fl.FlightError, pa.ArrowException) as error:
        return str(error)
    finally:
        with suppress(fl.FlightError, pa.ArrowException):
            writer.done_writing()
        with suppress(fl.FlightError, pa.ArrowException):
            writer.close()
    return ""


@pytest.mark.parametrize(
    "more",
    [
        {"position": "0"},
        {"position": 0.5},
        {"position": True},
        {"position": [0]},
        {"prefix": 7},
        {"prefix": ["a"]},
        {"limit": 1},
        {"topic": None},
        {"topic": "nowhere"},
    ],
)
def test_watchers_that_lie(client: Client, kv: str, more: dict[str, Any]) -> None:  # noqa: F811
    told = watch_refusal(client, **more)
    assert told.startswith(("invalid_argument", "not_found")), told
    assert mine(client) == b"untouched"


def test_parts_that_are_missing_or_too_many(client: Client, kv: str) -> None:  # noqa: F811
    batch = entries(key=["a"], value=[b"x"])
    for action in ("kv_put", "kv_get", "kv_delete"):
        assert refused(lambda a=action: client.call(a, {"topic": kv}))
        assert refused(lambda a=action: client.call(a, {"topic": kv}, batch, batch))
        assert refused(lambda a=action: client.call(a, {}, batch))
        assert refused(lambda a=action: client.call(a, {"topic": 7}, batch))
    assert refused(lambda: client.call("kv_describe", {"topic": kv}, batch))
    assert refused(lambda: client.call("kv_get", {"topic": kv, "value": "no"}, entries(key=["a"])))
    twice = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["key", "key"])
    for action in ("kv_put", "kv_get", "kv_delete"):
        assert refused(lambda a=action: client.call(a, {"topic": kv}, twice))
    assert count(client) == 1


def test_columns_of_other_types(client: Client, kv: str) -> None:  # noqa: F811
    wrong: dict[str, pa.Array] = {
        "key": pa.array([b"a"]),
        "clustering": pa.array([1]),
        "value": pa.array(["text"]),
        "version": pa.array([1.0]),
        "ttl_us": pa.array([1], pa.int32()),
        "expires_us": pa.array([None], pa.null()),
        "headers": pa.array(["a=b"]),
        "content_type": pa.array([b"x"]),
    }
    for name, column in wrong.items():
        good = {"key": pa.array(["a"]), "value": pa.array([b"x"])} | {name: column}
        batch = pa.RecordBatch.from_arrays(list(good.values()), names=list(good))
        assert refused(lambda b=batch: client.call("kv_put", {"topic": kv}, b)), name
    assert count(client) == 1


@pytest.mark.parametrize("claimed", [778, 1 << 16, 1 << 20])
def test_batches_that_claim_more_rows(client: Client, kv: str, claimed: int) -> None:  # noqa: F811
    keys = [f"key-{n}" for n in range(777)]
    puts = entries(key=keys, value=[b"xx"] * 777)
    for action, batch in (("kv_put", puts), ("kv_get", entries(key=keys))):
        lie = claiming(batch, claimed)
        # Arrow itself, on this side, may not take it.
        with refused_at_most(action, claimed), suppress(pa.ArrowException, OSError):
            client.call(action, {"topic": kv}, lie)
    client.call("kv_delete", {"topic": kv}, entries(key=keys))
    assert count(client) == 1


def test_more_than_the_limits(client: Client, kv: str) -> None:  # noqa: F811
    header = {"topic": kv}
    for columns in (
        {"key": ["k" * 513], "value": [b"x"]},
        {"key": ["k"], "clustering": ["c" * 512], "value": [b"x"]},
        {"key": ["k"], "value": [bytes((1 << 20) + 1)]},
        {"key": ["k"], "value": [b"x"], "headers": [[("h", "v" * 20_000)]]},
        {"key": ["k"], "value": [b"x"], "content_type": ["t" * 20_000]},
        {"key": [f"{n}" for n in range(100_001)], "value": [b""] * 100_001},
    ):
        assert refused(lambda c=columns: client.call("kv_put", header, entries(**c)))
    many = [f"{n}" for n in range(100_001)]
    for action in ("kv_get", "kv_delete"):
        assert refused(lambda a=action: client.call(a, header, entries(key=many)))
    assert count(client) == 1


def test_more_values_than_fit_an_answer(client: Client, kv: str) -> None:  # noqa: F811
    client.call("kv_put", {"topic": kv}, entries(key=["large"], value=[bytes(1 << 20)]))
    asked = entries(key=["large"] * 100)
    assert refused(lambda: client.call("kv_get", {"topic": kv}, asked)) == "invalid_argument"
    _, (table,) = client.reply("kv_get", {"topic": kv, "value": False}, asked)
    assert len(table) == 100
    client.call("kv_delete", {"topic": kv}, entries(key=["large"]))


def test_one_key_a_hundred_thousand_times(client: Client, kv: str) -> None:  # noqa: F811
    rows = 100_000
    header = {"topic": kv}
    for versions in ({}, {"version": list(range(rows))}, {"version": [7] * rows}):
        client.call("kv_delete", header, entries(key=["often"]))
        batch = entries(key=["often"] * rows, value=[b"x"] * rows, **versions)
        told = client.call("kv_put", header, batch)
        assert {status for status, _ in told["status"]} <= {"ok", "conflict"}
        assert sum(number for _, number in told["status"]) == rows
    gone = client.call("kv_delete", header, entries(key=["often"] * rows))
    assert sum(number for _, number in gone["status"]) == rows
    assert count(client) == 1


def test_transactions_that_lie(client: Client, kv: str) -> None:  # noqa: F811
    batch = entries(key=["mine"], value=[b"changed"])
    for command in (
        {"op": "kv_get", "topic": kv},
        {"op": "kv_put"},
        {"op": "kv_put", "topic": kv, "owner": "me"},
        {"op": "kv_put", "topic": "nowhere"},
        {"op": "kv_delete", "topic": kv},
    ):
        header = {"commands": [command]}
        assert refused(lambda h=header: client.call("transaction", h, batch)), command
    assert mine(client) == b"untouched"


def test_watchers_that_go_without_a_word(client: Client, kv: str) -> None:  # noqa: F811
    for _ in range(20):
        descriptor = {"version": VERSION, "call": "watch", "topic": kv, "position": 0}
        command = fl.FlightDescriptor.for_command(json.dumps(descriptor))
        writer, reader = client.flight.do_exchange(command)
        assert reader.read_chunk() is not None
        reader.cancel()
        with suppress(fl.FlightError, pa.ArrowException):
            writer.close()
    wait_until(lambda: "fasti_watchers 0.0" in client.call("metrics")["text"], "watchers are left")
    assert mine(client) == b"untouched"
