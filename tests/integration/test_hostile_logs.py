"""Garbage, lies and excess about logs at a real broker's port: definite answers, no surprises."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.conformance.protocol_client import VERSION, Client, Refused, returned, rows, statuses
from tests.integration.test_hostile_input import (  # noqa: F401  (fixtures)
    BEYOND,
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

NUMBERS = [*EXTREMES, *BEYOND]


@pytest.fixture
def log(client: Client) -> str:  # noqa: F811
    """A log of two partitions with five rows in each; the same for all tests."""
    with refused_at_most():
        client.call("create_topic", {"topic": "log", "settings": SETTINGS})
        if not described(client)[0]["end"]:
            for partition in (0, 1):
                client.send("log", rows(payload=[b"x"] * 5), metadata={"partition": partition})
    return "log"


SETTINGS = {"kind": "log", "partitions": 2}


def described(client: Client) -> list[dict[str, Any]]:  # noqa: F811
    found: list[dict[str, Any]] = client.call("log", {"topic": "log"})["partitions"]
    return found


def read(client: Client, **place: Any) -> list[dict[str, Any]]:  # noqa: F811
    return client.read({"version": VERSION, "call": "log", "topic": "log", **place}).to_pylist()


def test_settings_that_no_log_can_have(client: Client) -> None:  # noqa: F811
    """What is taken must also work: a moment far away, or a size beyond all disks."""
    for name in ("segment_age_us", "segment_bytes", "retained_bytes", "partitions"):
        for number in [*NUMBERS, 0, 1, 10**18]:
            settings = {"kind": "log", name: number}
            with refused_at_most(name, number):
                client.call("create_topic", {"topic": "extreme", "settings": settings})
                (outcomes,) = client.send("extreme", rows(payload=[b"x"] * 3))
                assert statuses(outcomes) == ["ok"] * 3
                assert client.call("log", {"topic": "extreme"})["partitions"][0]["end"] == 3
                client.call("delete_topic", {"topic": "extreme"})
    assert refused(lambda: client.call("log", {"topic": "extreme"})) == "not_found"


def test_offsets_and_times_from_nowhere(client: Client, log: str) -> None:  # noqa: F811
    before = described(client)
    for number in NUMBERS:
        for name in ("offset", "time_us", "end_offset", "limit", "partition"):
            with refused_at_most(name, number):
                place = {name: number} | ({"partition": 0} if name == "offset" else {})
                assert len(read(client, **place)) <= 10
        with refused_at_most(number):
            read(client, offsets={"0": number})
        with refused_at_most(number):
            read(client, offsets={str(number): 0})
        for header in (
            {"partition": number, "before": 1},
            {"partition": 0, "before": number},
            {"partition": number, "time_us": 0},
        ):
            assert refused(lambda h=header: client.call("truncate", {"topic": log, **h}))
        with refused_at_most(number):
            client.call("offsets", {"topic": log, "time_us": number})
        with refused_at_most(number):
            client.call("offsets", {"topic": log, "time_us": 0, "partition": number})
    assert described(client) == before


def test_places_that_make_no_sense(client: Client, log: str) -> None:  # noqa: F811
    before = described(client)
    places: list[dict[str, Any]] = [
        {"offset": 0},
        {"offset": "0", "partition": 0},
        {"offset": 0.5, "partition": 0},
        {"offset": True, "partition": 0},
        {"offset": 0, "time_us": 0, "partition": 0},
        {"start": "middle"},
        {"start": ["earliest"]},
        {"offsets": []},
        {"offsets": {"0": "0"}},
        {"offsets": {"0": None}},
        {"offsets": {"zero": 0}},
        {"offsets": {"-1": 0}},
        {"offsets": {"²": 0}},
        {"offsets": {"00000": 0}},
        {"offsets": {str(n): 0 for n in range(5000)}},
        {"partition": "0"},
        {"unknown": 1},
        {"limit": -1},
    ]
    for place in places:
        with pytest.raises(Refused) as info:
            read(client, **place)
        assert info.value.code in EXPECTED, (place, info.value)
    for header in ({}, {"before": 0}, {"before": 1, "time_us": 1, "partition": 0}, {"start": 5}):
        assert refused(lambda h=header: client.call("truncate", {"topic": log, **h}))
    assert described(client) == before


def test_followers_that_lie(client: Client, log: str) -> None:  # noqa: F811
    for place in ({"offset": 99, "partition": 0}, {"partition": 7}, {"limit": 3}, {"start": "x"}):
        descriptor = {"version": VERSION, "call": "follow", "topic": log, **place}
        command = fl.FlightDescriptor.for_command(json.dumps(descriptor))
        writer, reader = client.flight.do_exchange(command)
        with pytest.raises(fl.FlightError, match="invalid_argument"):
            reader.read_chunk()
        with suppress(fl.FlightError, pa.ArrowException):
            writer.close()


def test_produce_that_is_not_for_logs(client: Client, log: str) -> None:  # noqa: F811
    before = described(client)
    for columns, metadata in (
        ({"priority": [1]}, {}),
        ({"due_us": [(1 << 62) - 1]}, {}),
        ({"delay_us": [1 << 40]}, {}),
        ({}, {"partition": 2}),
        ({}, {"partition": -1}),
        ({}, {"partition": 1 << 70}),
    ):
        batch = rows(payload=[b"x"], **columns)
        stream = client.produce(batch.schema, topic=log)
        receipt = stream.ask(batch, metadata)
        assert receipt["error"]["code"] == "invalid_argument", (columns, metadata)
        stream.end()
    for action in ("cancel", "move", "update"):
        part = rows(id=[1], payload=[b"x"]) if action == "update" else rows(id=[1])
        assert refused(lambda a=action, p=part: client.call(a, {"topic": log, "due_us": 0}, p))
    assert refused(lambda: client.list(log)) == "invalid_argument"
    assert described(client) == before


def test_groups_from_nowhere(client: Client, log: str) -> None:  # noqa: F811
    before = described(client)
    header = {"topic": log, "group": "g"}
    client.call("create_group", header)
    for number in NUMBERS:
        for more in ({"offset": number, "partition": 0}, {"offsets": {"0": number}}):
            with refused_at_most(number):
                client.call("reset_group", {**header, **more})
        with refused_at_most(number):
            client.call("reset_group", {**header, "time_us": number})
        with refused_at_most(number):
            client.call("dead", {**header, "after_id": number})
        with refused_at_most(number):
            client.call("dead", {**header, "limit": number})
    ids = [*EXTREMES, 0, 1 << 51, 7, 2 << 51 | 1, 4095 << 51 | 5]
    for action in ("ack", "nack", "reject"):
        answer = client.call(action, header, returned(ids, list(reversed(ids))))
        assert set(statuses(answer)) <= {"not_found", "gone", "stale_lease", "done"}
    for name in ("", "x" * 10_000, "a\nb", "\x00"):
        assert refused(lambda n=name: client.call("create_group", {"topic": log, "group": n}))
    (group,) = client.call("groups", header)["groups"]
    assert all(0 <= each["committed"] <= each["end"] for each in group["partitions"])
    client.call("delete_group", header)
    assert refused(lambda: client.call("delete_group", header)) == "not_found"
    assert described(client) == before
