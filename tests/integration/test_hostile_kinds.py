"""Nonsense for the actions, tickets and exchanges of all topic kinds, at a real broker's port.

Each call is made well once; then every field of it is replaced by things that it can't be, topics
by topics of another kind, rows by rows of other columns, other types, none and too many. The broker
must refuse by a code that tells the caller what is wrong, log no surprise of its own, and hold what
it held.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import Client, Refused, rows
from tests.integration.serve_rig import SEGMENTS

# They speak the protocol without the SDK, to one shard.
pytestmark = pytest.mark.one_shard

Header = dict[str, Any]
Parts = list[pa.RecordBatch]

HOUR_US = 3_600_000_000
# What a refusal may be. Anything else would be a surprise to the broker itself.
EXPECTED = {"invalid_argument", "not_found", "already_exists", "gone", "overloaded"}
EXPECTED |= {"illegal_transition", "topic_mismatch"}
JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 64,
    "",
    "x",
    "x" * 100_000,
    "\x00",
    "a.b.>",
    "..",
    [],
    [None],
    [1, 2],
    {},
    {"a": 1},
    {"0": -1, "x": "y"},
    [{"name": "n"}],
]
KINDS = ("timeline", "priority", "log", "kv", "cron")

# Of each call a header and parts that are well understood.
SCHEDULE = {"cron": "0 9 * * *", "target": "timeline", "payload": ""}
RETURNED = rows(id=[1], token=[1], started_us=[None])


def named(**columns: Any) -> pa.RecordBatch:
    """Rows of texts and numbers, as their values are."""
    return pa.RecordBatch.from_pydict(columns)


GOOD: dict[str, tuple[Header, Parts]] = {
    "redrive_dead": (
        {
            "topic": "timeline",
            "group": "",
            "reason": "x",
            "owner": "o",
            "due_from_us": 0,
            "due_to_us": 1,
            "to": "priority",
            "delay_us": 0,
            "after_id": 0,
            "limit": 10,
        },
        [rows(id=[1])],
    ),
    "purge_dead": ({"topic": "timeline", "reason": "x", "limit": 1}, [rows(id=[1])]),
    "count_dead": ({"topic": "log", "group": "g", "reason": "x"}, []),
    "reply": (
        {"topic": "timeline", "group": ""},
        [rows(to=["priority"], deadline_us=[1], payload=[b""]), RETURNED],
    ),
    "log": ({"topic": "log"}, []),
    "offsets": ({"topic": "log", "time_us": 0, "partition": 0}, []),
    "truncate": ({"topic": "log", "partition": 0, "before": 0}, []),
    "groups": ({"topic": "log", "group": "g"}, []),
    "create_group": ({"topic": "log", "group": "h", "ordered": False, "start": "earliest"}, []),
    "reset_group": ({"topic": "log", "group": "g", "partition": 0, "offset": 0}, []),
    "delete_group": ({"topic": "log", "group": "nobody"}, []),
    "dead": ({"topic": "log", "group": "g", "after_id": 0, "limit": 1, "reason": "x"}, []),
    "kv_put": ({"topic": "kv"}, [named(key=["k"], value=[b"v"])]),
    "kv_get": ({"topic": "kv", "value": True}, [named(key=["k"])]),
    "kv_delete": ({"topic": "kv"}, [named(key=["k"])]),
    "kv_describe": ({"topic": "kv"}, []),
    "put_schedules": (
        {"topic": "cron", "schedules": [{"name": "s", "schedule": SCHEDULE}], "expected": -1},
        [],
    ),
    "schedules": ({"topic": "cron", "name": "", "after_number": -1, "limit": 10}, []),
    "preview": ({"schedule": {"cron": "0 9 * * *", "target": "timeline"}, "count": 3}, []),
    "pause_schedule": ({"topic": "cron", "name": "s", "paused": True}, []),
    "run_schedule": ({"topic": "cron", "name": "s"}, []),
    "delete_schedule": ({"topic": "cron", "name": "nobody"}, []),
    "bind": ({"topic": "timeline", "pattern": "a.*", "target": "log"}, []),
    "unbind": ({"topic": "timeline", "pattern": "a.*", "target": "log"}, []),
    "bindings": ({"topic": "timeline"}, []),
    "update": ({"topic": "priority"}, [rows(id=[1], priority=[7])]),
    "ack": ({"topic": "log", "group": "g"}, [RETURNED]),
    "count": ({"topic": "cron"}, []),
    "references": ({"topic": "timeline"}, []),
    "cancel_where": (
        {
            "topic": "timeline",
            "owner": "o",
            "of_owner": "o",
            "state": "ready",
            "due_from_us": 0,
            "due_to_us": 1,
            "key_prefix": "k",
            "after_id": 0,
            "limit": 1,
            "dry_run": False,
        },
        [],
    ),
    "move_where": ({"topic": "priority", "by_us": 1, "key_prefix": "k"}, []),
}
TICKETS: dict[str, Header] = {
    "log": {"topic": "log", "partition": 0, "offset": 0, "end_offset": 1, "limit": 1},
    "kv": {"topic": "kv", "prefix": "", "limit": 1, "value": True},
    "list": {"topic": "timeline", "reason": "x", "limit": 1, "key_prefix": "k", "after_id": 0},
    "changes": {"after": 0, "ids": [1], "key": "k", "known": [["timeline", 1]]},
}
EXCHANGES: dict[str, Header] = {
    "changes": {"after": 0, "ids": [1], "key": "k", "known": [["timeline", 1]]},
    "follow": {"topic": "log", "partition": 0, "offset": 0},
    "watch": {"topic": "kv", "prefix": "", "position": 0},
    "consume": {"topic": "log", "consumer": "c", "group": "g"},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("hostile"), settings=SEGMENTS) as process:
        yield process


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with Client(f"{broker.host}:{broker.port}") as found:
        for kind in KINDS:
            found.call("create_topic", {"topic": kind, "settings": {"kind": kind}})
        found.call("create_topic", {"topic": "bystander", "settings": {}})
        found.send("bystander", rows(payload=[b"x"] * 3, delay_us=[HOUR_US] * 3))
        yield found


@pytest.fixture(autouse=True)
def unmoved(client: Client, broker: BrokerProcess) -> Iterator[None]:
    """What an attack must leave as it was."""
    for action in ("create_group", "kv_put", "put_schedules"):
        header, parts = GOOD[action]
        with suppress(Refused):
            client.call(action, header | ({"group": "g"} if "group" in header else {}), *parts)
    before = len(broker.log())
    yield
    assert client.call("health")["state"] == "serving"
    assert client.call("count", {"topic": "bystander"})["counts"]["scheduled"] == 3
    told = broker.log()[before:]
    assert "Traceback" not in told, told[-3000:]


def attack(client: Client, action: str, header: Header, parts: Parts, why: Any) -> None:
    """A call that may be refused, but only by a code that is meant for its caller."""
    try:
        client.call(action, header, *parts)
    except Refused as refused:
        if refused.code not in EXPECTED or not refused.message:
            raise AssertionError((action, why)) from refused


@pytest.mark.parametrize("action", sorted(GOOD))
def test_fields_that_can_not_be(client: Client, action: str) -> None:
    header, parts = GOOD[action]
    for name in header:
        for junk in JUNK:
            attack(client, action, {**header, name: junk}, parts, (name, junk))
        without = {other: value for other, value in header.items() if other != name}
        attack(client, action, without, parts, f"without {name}")
    with pytest.raises(Refused) as unknown:
        client.call(action, {**header, "colour": "red"}, *parts)
    assert unknown.value.code == "invalid_argument"


@pytest.mark.parametrize("action", sorted(GOOD))
def test_topics_of_another_kind(client: Client, action: str) -> None:
    header, parts = GOOD[action]
    for name in ("topic", "to", "target"):
        for kind in (*KINDS, "nowhere", "_replies", "_inbox.x"):
            if name in header:
                attack(client, action, {**header, name: kind}, parts, (name, kind))


ODD_PARTS: list[Parts] = [
    [],
    [named(x=[1])],
    [named(key=[None], value=[None])],
    [named(key=[1], value=["text"])],
    [named(key=["k"] * 2, value=[b"v"] * 2), named(key=["k"])],
    [named(key=["k" * 5_000], value=[b"v"])],
    [named(key=["\x00"], clustering=["\x00"], value=[b"v"])],
    [named(key=["k"], value=[b"v"], version=[-5])],
    [named(key=["k"], value=[b"v"], ttl_us=[-5])],
    [named(key=["k"], value=[b"v"], ttl_us=[(1 << 63) - 1])],
    [named(key=["k"], value=[b"v"], ttl_us=[5], expires_us=[5])],
    [named(key=pa.array([], pa.string()), value=pa.array([], pa.binary()))],
    [named(key=pa.array([], pa.string()))],
    [rows(id=[None])],
    [rows(id=[])],
    [rows(id=[-1, 0, (1 << 63) - 1, 4095 << 51])],
    [rows(id=[1] * 5_001)],
    [rows(id=[1], priority=[-1])],
    [rows(id=[1], priority=[65_536])],
    [rows(id=[1], priority=[None])],
    [rows(id=list(range(100_001)))],
    [rows(to=["nowhere"], payload=[b""])],
    [rows(to=["kv", "cron", "log"], payload=[b""] * 3)],
    [rows(to=["priority"], payload=[b""]), rows(id=[1], token=[None])],
    [rows(id=[1], token=[-1], started_us=[1 << 62])],
    [pa.RecordBatch.from_arrays([pa.array([b"\xff\xfe"]).view(pa.binary())], ["key"])],
]


@pytest.mark.parametrize("action", sorted(GOOD))
def test_rows_that_can_not_be(client: Client, action: str) -> None:
    header, _ = GOOD[action]
    for number, parts in enumerate(ODD_PARTS):
        attack(client, action, header, parts, number)


IDS = [-(1 << 63), -1, 0, 1, 2, (1 << 51) - 1, 1 << 51, 4095 << 51, 1 << 62, (1 << 63) - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_tokens_that_can_not_be(client: Client, kind: str) -> None:
    named_ids, tokens = rows(id=IDS), rows(id=IDS, token=IDS[::-1], started_us=IDS)
    for group in ({}, {"group": "g"}, {"group": "nobody"}):
        for action, more, part in (
            ("get", {}, named_ids),
            ("cancel", {}, named_ids),
            ("move", {}, rows(id=IDS, delay_us=[0] * len(IDS))),
            ("update", {}, rows(id=IDS, priority=[1] * len(IDS))),
            ("redrive", {}, named_ids),
            ("purge", {}, named_ids),
            ("ack", {}, tokens),
            ("nack", {"reason": "x"}, tokens),
            ("reject", {"reason": "x"}, tokens),
            ("release", {"delay_us": 0}, tokens),
            ("extend", {"length_us": 5_000_000}, tokens),
        ):
            attack(client, action, {"topic": kind, **more, **group}, [part], (kind, group))
    for number in IDS:
        for action, header in (
            ("offsets", {"time_us": number}),
            ("truncate", {"partition": 0, "before": number}),
            ("reset_group", {"group": "g", "partition": 0, "offset": number}),
            ("create_group", {"group": f"n{number}", "offsets": {"0": number}}),
            ("dead", {"group": "g", "after_id": number}),
            ("forecast", {"from_us": number, "to_us": number, "bucket_us": number}),
            ("redrive_dead", {"after_id": number, "due_from_us": number, "delay_us": number}),
            ("redrive_dead", {"to": "log", "due_us": number}),
            ("cancel_where", {"after_id": number, "due_from_us": number, "key_prefix": "x"}),
            ("move_where", {"due_us": number, "key_prefix": "x"}),
            ("move_where", {"by_us": number, "due_to_us": number, "after_id": number}),
        ):
            attack(client, action, {"topic": kind, **header}, [], (kind, number))


SCHEDULE_FIELDS = (
    *("cron", "every_us", "timezone", "start_us", "end_us", "jitter_us", "target", "payload"),
    *("headers", "content_type", "subject", "priority", "gap", "fold", "misfire", "misfire_max"),
    *("misfire_grace_us", "overlap"),
)
CRONS = (
    "* * * * * * *",
    "61 * * * *",
    "@often",
    "0 0 31 2 *",
    "* " * 10_000,
    "\u0661 * * * *",
    "-1",
)


@pytest.mark.parametrize("name", SCHEDULE_FIELDS)
def test_schedules_that_can_not_be(client: Client, name: str) -> None:
    for junk in [*JUNK, *CRONS, "Europe/Nowhere", "../../etc/passwd", "skip"]:
        schedule = {**SCHEDULE, name: junk}
        listed = [{"name": f"odd-{name}", "schedule": schedule}]
        attack(client, "put_schedules", {"topic": "cron", "schedules": listed}, [], (name, junk))
        attack(client, "preview", {"schedule": schedule, "count": 3}, [], (name, junk))
    with suppress(Refused):
        client.call("delete_schedule", {"topic": "cron", "name": f"odd-{name}"})


COMMANDS: dict[str, tuple[Header, pa.RecordBatch]] = {
    "produce": ({"owner": "", "on_conflict": "reject"}, rows(payload=[b"x"], subject=["a.b"])),
    "update": ({"owner": ""}, rows(id=[1], priority=[1])),
    "move": ({"owner": ""}, rows(id=[1], delay_us=[0])),
    "cancel": ({"owner": ""}, rows(key=["k"])),
    "ack": ({"group": "g"}, RETURNED),
    "nack": ({"group": "g", "reason": "x"}, RETURNED),
    "kv_put": ({}, named(key=["k"], value=[b"v"], version=[1])),
    "kv_delete": ({}, named(key=["k"])),
    "purge": ({}, rows(id=[1])),
    "bind": ({"pattern": "a", "target": "log"}, rows(id=[1])),
}


@pytest.mark.parametrize("op", sorted(COMMANDS))
def test_transactions_that_can_not_be(client: Client, op: str) -> None:
    fields, part = COMMANDS[op]
    # The first command is good, and must not happen if the second can't be.
    first = {"op": "produce", "topic": "bystander"}, rows(payload=[b"y"], delay_us=[HOUR_US])
    for kind in (*KINDS, "nowhere"):
        for name in (*fields, "topic", "colour"):
            for junk in JUNK[::3]:
                command = {"op": op, "topic": kind, **fields, name: junk}
                header = {"commands": [command, first[0]]}
                parts = [part, first[1]]
                before = client.call("count", {"topic": "bystander"})["counts"]["scheduled"]
                attack(client, "transaction", header, parts, (kind, name, junk))
                after = client.call("count", {"topic": "bystander"})["counts"]["scheduled"]
                for row in client.list("bystander", state="scheduled")[before:after]:
                    client.call("cancel", {"topic": "bystander"}, rows(id=[row["id"]]))


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_can_not_be(client: Client, kind: str) -> None:
    for columns in (
        {"priority": [-1]},
        {"priority": [65_536]},
        {"priority": [(1 << 31) - 1]},
        {"subject": [""]},
        {"subject": ["a..b"]},
        {"subject": ["a.*"]},
        {"subject": ["\x00"]},
        {"subject": ["s" * 256]},
        {"due_us": [-5]},
        {"due_us": [HOUR_US << 20]},
        {"delay_us": [HOUR_US]},
        {"key": [""]},
        {"key": ["k" * 600]},
    ):
        batch = rows(payload=[b"x"], **columns)
        for metadata in ({}, {"partition": 0}, {"partition": -1}, {"partition": 1 << 40}):
            try:
                stream = client.produce(batch.schema, topic=kind)
                receipt = stream.ask(batch, metadata)
                code = receipt.get("error", {}).get("code")
                stream.end()
            except Refused as refused:
                code = refused.code
            assert code is None or code in EXPECTED, (kind, columns, metadata, code)


@pytest.mark.parametrize("call", sorted(TICKETS))
def test_tickets_that_can_not_be(broker: BrokerProcess, call: str) -> None:
    flight = fl.FlightClient(f"grpc://{broker.host}:{broker.port}")
    for name in TICKETS[call]:
        for junk in JUNK:
            ticket = {"version": 1, "call": call, **TICKETS[call], name: junk}
            told = _told(lambda t=ticket: flight.do_get(fl.Ticket(json.dumps(t))).read_all())
            assert told is None or told in EXPECTED, (call, name, junk, told)
            wanted = fl.FlightDescriptor.for_command(json.dumps(ticket))
            told = _told(lambda w=wanted: flight.get_flight_info(w))
            assert told is None or told in EXPECTED, (call, name, junk, told)
    flight.close()


@pytest.mark.parametrize("call", sorted(EXCHANGES))
def test_exchanges_that_can_not_be(broker: BrokerProcess, call: str) -> None:
    flight = fl.FlightClient(f"grpc://{broker.host}:{broker.port}")
    for name in EXCHANGES[call]:
        for junk in JUNK:
            opened = {"version": 1, "call": call, **EXCHANGES[call], name: junk}
            told = _told(lambda o=opened: _opened(flight, o))
            assert told is None or told in EXPECTED, (call, name, junk, told)
    flight.close()


def _opened(flight: fl.FlightClient, header: Header) -> None:
    """Opens an exchange, waits for what the broker says first, and ends it."""
    command = fl.FlightDescriptor.for_command(json.dumps(header))
    writer, reader = flight.do_exchange(command, fl.FlightCallOptions(timeout=60))
    try:
        writer.begin(pa.schema([pa.field("id", pa.int64())]))
        writer.done_writing()
        for chunk in reader:
            text = bytes(chunk.app_metadata).decode() if chunk.app_metadata else "{}"
            error = json.loads(text).get("error")
            if error is not None:
                raise Refused(error)
            if call_goes_on(header):
                break
    finally:
        reader.cancel()
        with suppress(Exception):
            writer.close()


def call_goes_on(header: Header) -> bool:
    """Whether the exchange has no end of its own."""
    return header["call"] in ("follow", "watch")


def _told(call: Any) -> str | None:
    """The code of a refusal; None if there was none."""
    try:
        call()
    except Refused as refused:
        return refused.code
    except (fl.FlightError, pa.ArrowException, OSError) as error:
        extra = getattr(error, "extra_info", b"")
        if extra:
            code: str = json.loads(extra)["code"]
            return code
        text = str(error)
        if "cancel" in text.lower():
            return None
        return next((code for code in EXPECTED if f"{code}: " in text), text)
    return None
