"""The protocol from outside: stages of sinks, publishing a batch, and what strangers may send."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.conformance.protocol_client import Client, ProduceStream, Refused, rows

MakeTopic = Callable[..., str]
HOUR_US = 3_600_000_000
_sinks = itertools.count(1)


@pytest.fixture
def sink() -> str:
    return f"sink-{next(_sinks)}"


def later(*keys: str | None, **columns: Any) -> pa.RecordBatch:
    payloads = [b"x"] * len(keys)
    given = {"key": keys} if any(keys) else {}
    return rows(payload=payloads, delay_us=[HOUR_US] * len(keys), **given, **columns)


def stage(client: Client, schema: pa.Schema, topic: str, sink: str, **more: Any) -> ProduceStream:
    place = {"batch": 0, "partition": 0, "attempt": 0, **more}
    return client.produce(schema, call="stage", topic=topic, sink=sink, **place)


def staged(client: Client, made: pa.RecordBatch, topic: str, sink: str, **more: Any) -> str:
    stream = stage(client, made.schema, topic, sink, **more)
    assert stream.ask(made, {"offset": 0}) == {"batch": 0, "rows": made.num_rows}
    stream.finish()
    place = (more.get(name, 0) for name in ("batch", "partition", "attempt"))
    return "/".join(map(str, (sink, topic, *place)))


def publish(client: Client, sink: str, batch: int, *stages: str, **more: Any) -> dict[str, Any]:
    header = {"sink": sink, "batch": batch, "stages": list(stages), **more}
    return client.call("publish_batch", header)


def refused(call: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as found:
        call()
    return found.value


def test_rows_of_a_stage_are_counted(client: Client, make_topic: MakeTopic, sink: str) -> None:
    """What is sent again stands there once, and a gap is refused."""
    topic = make_topic()
    batch = later("a", "b")
    stream = stage(client, batch.schema, topic, sink)
    assert stream.ask(batch, {"offset": 0})["rows"] == 2
    assert stream.ask(later("c", "d"), {"offset": 2})["rows"] == 4
    again = stage(client, batch.schema, topic, sink)
    assert again.ask(batch, {"offset": 0})["rows"] == 2
    assert again.ask(later("c", "d"), {"offset": 2})["rows"] == 4
    gap = again.ask(later("e"), {"offset": 5})
    assert gap["error"]["code"] == "not_found"
    # Behind a batch that was refused nothing is taken.
    assert again.ask(later("e"), {"offset": 4})["error"]["code"] == "not_found"
    for each in (stream, again):
        each.end()
    counts = client.call("count", {"topic": topic})["counts"]
    assert (counts["staged"], counts["scheduled"]) == (4, 0)
    told = publish(client, sink, 0, f"{sink}/{topic}/0/0/0")
    assert told == {"rows": 4, "skipped": 0, "repeated": False, "done": True, "outcomes": {"ok": 4}}
    assert publish(client, sink, 0) == {**told, "repeated": True}


def test_what_is_known_of_sinks(client: Client, make_topic: MakeTopic, sink: str) -> None:
    topic = make_topic()
    assert client.call("sinks", {"sink": sink}) == {"sinks": [], "next_after": ""}
    name = staged(client, later("a"), topic, sink, batch=3)
    (found,) = client.call("sinks", {"sink": sink})["sinks"]
    assert (found["batch"], found["stages"], found["rows"]) == (None, 1, 1)
    publish(client, sink, 3, name)
    (found,) = client.call("sinks", {"sink": sink})["sinks"]
    assert (found["batch"], found["done"], found["outcomes"]) == (3, True, {"ok": 1})
    for more in ("a", "b"):
        publish(client, f"{sink}-{more}", 0)
    page = client.call("sinks", {"after": sink, "limit": 1})
    assert [each["sink"] for each in page["sinks"]] == [f"{sink}-a"]
    assert page["next_after"] == f"{sink}-a"
    for name in (sink, f"{sink}-a", f"{sink}-b"):
        assert client.call("forget_sink", {"sink": name}) == {"forgotten": True}
        assert client.call("forget_sink", {"sink": name}) == {"forgotten": False}


def test_taken_keys_are_named(client: Client, make_topic: MakeTopic, sink: str) -> None:
    topic = make_topic()
    client.send(topic, later("taken"))
    name = staged(client, later("taken", "free", "free"), topic, sink)
    error = refused(lambda: publish(client, sink, 0, name))
    assert error.code == "already_exists"
    assert error.details == {"conflicts": 2, "keys": ["taken", "free"]}
    told = publish(client, sink, 0, name, on_conflict="skip")
    assert (told["rows"], told["skipped"]) == (1, 2)
    assert told["outcomes"] == {"ok": 1, "conflict": 2}


def test_dry_runs(client: Client, make_topic: MakeTopic) -> None:
    topic = make_topic()
    client.send(topic, later("a"))
    target = rows(key=["a", "b"])
    for action, part in (
        ("cancel", target),
        ("move", rows(key=["a", "b"], delay_us=[1, 1])),
        ("update", rows(key=["a", "b"], payload=[b"1", b"2"])),
    ):
        told = client.call(action, {"topic": topic, "dry_run": True}, part)
        assert told["status"] == [["ok", 1], ["not_found", 1]]
    assert client.call("count", {"topic": topic})["counts"]["scheduled"] == 1
    assert client.call("cancel", {"topic": topic}, target)["status"][0] == ["ok", 1]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"batch": -1}, "batch"),
        ({"batch": 1.5}, "batch"),
        ({"batch": True}, "batch"),
        ({"partition": 1 << 64}, "partition"),
        ({"attempt": None}, "attempt"),
        ({"operation": "explode"}, "operation"),
        ({"operation": 7}, "operation"),
        ({"sink": ""}, "sink"),
        ({"sink": "s" * 300}, "sink"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_descriptors_that_are_wrong(
    client: Client, make_topic: MakeTopic, sink: str, more: dict[str, Any], field: str
) -> None:
    topic = make_topic()
    batch = later("a")
    given = {"sink": sink, **more}

    def send() -> None:
        stream = stage(client, batch.schema, topic, given.pop("sink"), **given)
        stream.ask(batch, {"offset": 0})

    error = refused(send)
    assert error.code == "invalid_argument"
    assert error.details["field"] == field
    assert client.call("count", {"topic": topic})["counts"]["staged"] == 0


@pytest.mark.parametrize(
    "metadata", [None, {}, {"offset": -1}, {"offset": "0"}, {"offset": 0, "x": 1}]
)
def test_metadata_that_is_wrong(
    client: Client, make_topic: MakeTopic, sink: str, metadata: Any
) -> None:
    topic = make_topic()
    batch = later("a")
    stream = stage(client, batch.schema, topic, sink)
    assert stream.ask(batch, metadata)["error"]["code"] == "invalid_argument"
    stream.end()
    assert client.call("count", {"topic": topic})["counts"]["staged"] == 0


@pytest.mark.parametrize(
    ("operation", "batch", "field"),
    [
        ("move", rows(key=["a"]), "due_us"),
        ("move", rows(key=["a"], due_us=[-1]), "due_us"),
        ("move", rows(key=["a"], delay_us=[1 << 62]), "delay_us"),
        ("move", rows(key=["a"], id=[1], due_us=[1]), "id"),
        ("cancel", rows(version=[1]), "id"),
        ("cancel", rows(id=[None]), "id"),
        ("update", rows(key=["a"]), "payload"),
        ("update", rows(key=["a"], priority=[1]), "priority"),
        ("update", rows(key=["a"], payload=[b"x" * (2 << 20)]), "payload_bytes_max"),
    ],
)
def test_rows_that_can_never_be_carried_out(
    client: Client,
    make_topic: MakeTopic,
    sink: str,
    operation: str,
    batch: pa.RecordBatch,
    field: str,
) -> None:
    """The writer is told, not whoever publishes."""
    topic = make_topic()
    stream = stage(client, batch.schema, topic, sink, operation=operation)
    error = stream.ask(batch, {"offset": 0})["error"]
    assert (error["code"], error["details"]["field"]) == ("invalid_argument", field)
    stream.end()


@pytest.mark.parametrize(
    "header",
    [
        {"batch": 0, "stages": []},
        {"sink": "s", "stages": []},
        {"sink": "s", "batch": 0},
        {"sink": "s", "batch": 0, "stages": [1]},
        {"sink": "s", "batch": 0, "stages": [""]},
        {"sink": "s", "batch": 0, "stages": "s"},
        {"sink": "s", "batch": -1, "stages": []},
        {"sink": "s", "batch": 0, "stages": [], "on_conflict": "explode"},
        {"sink": "s", "batch": 0, "stages": [], "operation": "explode"},
        {"sink": "s", "batch": 0, "stages": ["x"] * 10_001},
        {"sink": "", "batch": 0, "stages": []},
        {"sink": "s\ud800", "batch": 0, "stages": []},
    ],
)
def test_publications_that_are_wrong(client: Client, header: dict[str, Any]) -> None:
    assert refused(lambda: client.call("publish_batch", header)).code == "invalid_argument"
    assert client.call("sinks", {"sink": "s"})["sinks"] == []
