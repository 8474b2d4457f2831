"""Everything that a client can send, made from the broker's own registries.

Which actions, reads, exchanges and streams there are, which fields each has and of which type, is read
from the code that checks them (`learn`): a call that is added is attacked without anybody thinking of
it, and one whose fields can't be learned fails the tests. Values are drawn for names and types: good
ones, so that calls get as far as the engine, and those at and beyond every bound.
"""

from __future__ import annotations

import inspect
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from fasti.broker.caller import EMBEDDED
from fasti.broker.calls import actions, catalogue_calls, requests
from fasti.broker.calls.actions import ACTIONS
from fasti.broker.calls.requests import Quick
from fasti.broker.calls.subscription import Subscription
from fasti.broker.service import Service
from fasti.errors import error_codes
from fasti.model import DUE_MAX_US, Limits
from tests.conformance.protocol_client import HEADERS, Client, Refused, rows, status_as_error

Header = dict[str, Any]
Parts = list[pa.RecordBatch]
# Of a field: the type that it must have, or its default.
Fields = dict[str, Any]

KINDS = ("timeline", "priority", "log", "kv", "cron")
MISSING = "missing"
TOPICS = (*KINDS, MISSING)
HOUR_US = 3_600_000_000
# What no stranger may bring the broker to say: each would be a surprise to itself.
SURPRISES = {"internal", "error", "unknown", "storage_failed", "corruption"}
CODES = set(error_codes()) - SURPRISES - {"timed_out"}


def may_answer(call: str, code: str) -> bool:
    """A checkpoint alone may take longer than its caller waits."""
    return code == "ok" or code in CODES or (code, call) == ("timed_out", "checkpoint")


# Small, so that both sides of each are cheap to reach.
LIMITS = Limits(
    payload_bytes_max=1 << 10,
    headers_bytes_max=512,
    key_bytes_max=64,
    subject_bytes_max=64,
    batch_bytes_max=64 << 10,
    batch_rows_max=128,
    reason_bytes_max=64,
    name_bytes_max=64,
    topics_max=64,
    consumers_waiting_max=64,
    snapshots_max=4,
    stages_max=8,
    sinks_max=8,
    bindings_max=8,
    groups_max=8,
    schedules_max=32,
    schedule_bytes_max=2 << 10,
    watchers_max=64,
)


# What can be called


@dataclass(slots=True)
class Call:
    """One thing that can be asked: how, under which name, with which fields, and with parts?"""

    # "action", "call" (an action on a stream of calls), "read", "plan", "exchange" or "put".
    way: str
    name: str
    fields: Fields
    takes_parts: bool = False


class _Learned(Exception):
    def __init__(self, fields: Fields) -> None:
        super().__init__()
        self.fields = fields


@contextmanager
def _learning() -> Iterator[None]:
    def learn_fields(header: Header, **known: Any) -> Header:
        raise _Learned(known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "checked", learn_fields)
        yield


def _fields_of(*tries: Callable[[], Any]) -> Fields | None:
    with _learning():
        for attempt in tries:
            try:
                attempt()
            except _Learned as learned:
                return learned.fields
            except Exception:
                continue
    return None


# Those that only processes of one broker may call.
PEERS_ONLY = catalogue_calls.ACTIONS.keys()


def learn(service: Service) -> list[Call]:
    """All calls of a broker. Raises for one whose fields can't be told."""
    table = pa.Table.from_batches([rows(id=[1], token=[1])])
    calls: list[Call] = []
    unknown: list[str] = []

    def add(way: str, name: str, *tries: Callable[[], Any], takes_parts: bool = False) -> None:
        fields = _fields_of(*tries)
        if fields is None:
            unknown.append(f"{way} {name}")
        else:
            calls.append(Call(way, name, fields, takes_parts))

    for name, action in ACTIONS.items():
        if name in PEERS_ONLY:
            # Refused before anything of it is looked at: tests/shards/test_peers.py.
            continue
        tries = [
            lambda a=action, p=parts: a(service, EMBEDDED, {}, p)
            for parts in ([], [table], [table] * 2)
        ]
        add("action", name, *tries, takes_parts=_takes_parts(service, name, table))
        if isinstance(action, Quick):
            calls.append(replace(calls[-1], way="call"))
    for name in service.exchanges:
        opened = {"version": 1, "call": name}
        add("exchange", name, lambda o=opened: service.exchange(EMBEDDED, o))
    for name in service.reads:
        ticket = {"version": 1, "call": name}
        add(
            "read",
            name,
            lambda t=ticket: service.read(EMBEDDED, t),
            lambda t=ticket: service.plan(EMBEDDED, t),
        )
        add(
            "plan",
            name,
            lambda t=ticket: service.plan(EMBEDDED, t),
            lambda t=ticket: service.read(EMBEDDED, t),
        )
    for name in ("produce", "stage"):
        descriptor = {"version": 1, "call": name}
        add("put", name, lambda d=descriptor: service.intake(EMBEDDED, d))
    assert not unknown, f"nobody can tell which fields these have: {unknown}"
    return calls


def _takes_parts(service: Service, name: str, table: pa.Table) -> bool:
    try:
        ACTIONS[name](service, EMBEDDED, {}, [table])
    except Exception as error:
        return getattr(error, "field", None) != "parts"
    return True


def transaction_ops() -> list[str]:
    """What may be part of a transaction."""
    return ["produce", "update", "move", "cancel", *sorted(requests.RETURNS), *actions._PARTS]


# Values


SCHEDULE = {"cron": "0 9 * * *", "target": "timeline", "payload": ""}
GOOD: Header = {
    "group": "g",
    "name": "s",
    "stage": "stage",
    "stages": ["stage"],
    "sink": "sink",
    "batch": 1,
    "operation": "produce",
    "pattern": "a.*",
    "consumer": "c",
    "settings": {},
    "schedules": [{"name": "s", "schedule": SCHEDULE}],
    "schedule": SCHEDULE,
    "paused": True,
    "count": 3,
    "from_us": 0,
    "to_us": HOUR_US,
    "bucket_us": 60_000_000,
    "length_us": 5_000_000,
    "start": "earliest",
    "reason": "x",
    "state": "ready",
    "due_us": 1,
    "delay_us": 1,
    "by_us": 1,
    "key_prefix": "k",
    "prefix": "k",
    "limit": 10,
}
# Of calls that need one of several fields.
CHOSEN: dict[str, Header] = {
    "truncate": {"partition": 0, "before": 0},
    "reset_group": {"start": "earliest"},
    "create_group": {"group": "new"},
    "preview": {"schedule": SCHEDULE},
    "move_where": {"by_us": 1},
}
INTEGERS = sorted(
    {0, 1, -1, 2, 4095, 4096, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 51) - 1, 1 << 51}
    | {1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 63, DUE_MAX_US, DUE_MAX_US + 1, 60_000_000}
    | {limit + more for limit in asdict(LIMITS).values() for more in (0, 1)}
)
TEXTS = [
    *("", "x", "\x00", "\ud800", "..", "a.b.>", "é" * 32, "x" * 64, "x" * 65, "é" * 33),
    *("x" * 255, "x" * 256, "x" * 100_000, "_sinks", "_replies", "_inbox.x", *TOPICS),
    *("earliest", "latest", "reject", "keep", "replace", "produce", "cancel", "leased", "dead"),
]
OTHERS: list[Any] = [
    *(None, True, False, 1.5, -0.0, [], [None], [1, 2], [[]], {}, {"a": 1}, {"0": -1, "x": "y"}),
    *([{"name": "n"}], [["timeline", 1]], {"kind": "log"}, {"partitions": 4096}, {"relay": True}),
    *({"lease_us": 1}, {"max_attempts": -1}, {"retry": {"factor": -1}}, {"lookahead_us": 1 << 62}),
]


def good_header(call: Call, topic: str, rng: random.Random | None = None) -> Header:
    """What the call needs, and with `rng` some of what it may have, on a topic."""
    header: Header = {}
    for name, wanted in call.fields.items():
        if isinstance(wanted, type) or name == "topic" or (rng and rng.random() < 0.3):
            header[name] = _good(name, wanted, topic, rng)
    if "group" in call.fields and topic == "log":
        header["group"] = "g"
    if call.way in ("action", "call"):
        header |= CHOSEN.get(call.name, {})
    return header


def _good(name: str, wanted: Any, topic: str, rng: random.Random | None) -> Any:
    if name == "topic":
        return topic
    if name in ("target", "to"):
        return rng.choice(TOPICS) if rng is not None else "priority"
    if name in GOOD:
        return GOOD[name]
    kind = wanted if isinstance(wanted, type) else type(wanted)
    return {str: "x", int: 0, bool: True, dict: {}, list: []}.get(kind, 0)


def bad_values(wanted: Any) -> list[Any]:
    """At the bounds of what a field may be, and beyond them."""
    kind = wanted if isinstance(wanted, type) else type(wanted)
    first = {int: INTEGERS, str: TEXTS}.get(kind, [])
    return [*first, *OTHERS, *(INTEGERS[::5] if kind is not int else []), *TEXTS[::6]]


def named(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


IDS = [1, 0, -1, 2, (1 << 51) - 1, 1 << 51, 4095 << 51, 1 << 62, (1 << 63) - 1, -(1 << 63)]
MANY = LIMITS.batch_rows_max
PARTS: dict[str, Parts] = {
    "none": [],
    "ids": [rows(id=[1, 2])],
    "odd ids": [rows(id=IDS)],
    "no ids": [rows(id=[])],
    "null ids": [rows(id=[None])],
    "keys": [rows(key=["k", "l"])],
    "odd keys": [rows(key=["k" * 64, "\x00", "é"])],
    "long key": [rows(key=["k" * 65])],
    "versions": [rows(id=[1, 1], version=[0, (1 << 63) - 1])],
    "moves": [rows(id=[1], due_us=[DUE_MAX_US])],
    "moves too far": [rows(key=["k"], delay_us=[(1 << 63) - 1])],
    "no moves": [rows(id=[], delay_us=[])],
    "contents": [rows(id=[1], payload=[b"new"])],
    "no contents": [rows(id=[], payload=[])],
    "priorities": [rows(id=[1], priority=[65_535])],
    "odd priorities": [rows(id=[1, 2], priority=[65_536, -1])],
    "returned": [rows(id=[1, 2], token=[1, 1], started_us=[None, 1])],
    "odd returned": [rows(id=IDS, token=IDS[::-1], started_us=IDS)],
    "released": [rows(id=[1], token=[1], due_us=[DUE_MAX_US + 1])],
    "nothing returned": [rows(id=[], token=[], started_us=[])],
    "messages": [rows(payload=[b"x"], key=["k"], subject=["a.b"])],
    "no messages": [rows(payload=[])],
    "most messages": [rows(payload=[b"x"] * MANY)],
    "too many messages": [rows(payload=[b"x"] * (MANY + 1))],
    "largest message": [rows(payload=[b"x" * LIMITS.payload_bytes_max])],
    "too large message": [rows(payload=[b"x" * (LIMITS.payload_bytes_max + 1)])],
    "too many ids": [rows(id=[1] * (MANY + 1))],
    "entries": [named(key=["k"], value=[b"v"])],
    "odd entries": [named(key=["k", "k"], value=[b"", b"v"], version=[0, 1])],
    "mortal entries": [named(key=["k"], value=[b"v"], ttl_us=[(1 << 63) - 1])],
    "no entries": [named(key=pa.array([], pa.string()), value=pa.array([], pa.binary()))],
    "entry keys": [named(key=["k"], clustering=["c"])],
    "answers": [rows(to=["timeline"], payload=[b""]), rows(id=[1], token=[1], started_us=[None])],
    "answers alone": [rows(to=["log", "kv", "cron"], payload=[b""] * 3)],
    "strange": [named(x=[1])],
    "two": [rows(id=[1]), rows(id=[1])],
}
MESSAGES: list[pa.RecordBatch] = [
    rows(payload=[b"x"]),
    rows(payload=[b"x", b"y"], key=["k", "k"]),
    rows(payload=[b"x"], due_us=[DUE_MAX_US]),
    rows(payload=[b"x"], due_us=[DUE_MAX_US + 1]),
    rows(payload=[b"x"], delay_us=[-1]),
    rows(payload=[b"x"], delay_us=[(1 << 63) - 1]),
    rows(payload=[b"x"], due_us=[1], delay_us=[1]),
    rows(payload=[b"x"], priority=[65_535]),
    rows(payload=[b"x"], priority=[65_536]),
    rows(payload=[b"x"], subject=["s" * 64]),
    rows(payload=[b"x"], subject=["a..b"]),
    rows(payload=[b"x"], key=["k" * 65]),
    rows(payload=[b"x"], key=[""]),
    rows(payload=[b"x"], headers=pa.array([[("a", "b" * 600)]], HEADERS)),
    rows(payload=[]),
    rows(payload=[b"x"] * MANY),
    rows(payload=[b"x"] * (MANY + 1)),
    rows(payload=[b"x" * (LIMITS.payload_bytes_max + 1)]),
]
METADATA: list[Header] = [
    {},
    {"sequence": 1},
    {"sequence": -1},
    {"sequence": 1 << 62},
    {"partition": 0},
    {"partition": 1 << 40},
    {"partition": -1},
    {"atomic": True},
    {"on_conflict": "keep"},
    {"on_conflict": "replace"},
    {"on_conflict": "x"},
    {"stage": "stage"},
    {"stage": "s" * 65},
    {"offset": 0},
    {"offset": (1 << 63) - 1},
    {"colour": "red"},
]


def a_transaction(rng: random.Random, topic: str) -> tuple[Header, Parts]:
    """Some commands, of which each may be nonsense."""
    commands, parts = [], []
    for _ in range(rng.randint(1, 3)):
        op = rng.choice(transaction_ops())
        commands.append({"op": op, "topic": rng.choice([topic, rng.choice(TOPICS)])})
        if op == "extend":
            commands[-1]["length_us"] = rng.choice([5_000_000, *INTEGERS])
        if op in requests.RETURNS and rng.random() < 0.5:
            commands[-1]["group"] = rng.choice(["g", "nobody", ""])
        parts.append(rng.choice([part for part in PARTS.values() if len(part) == 1])[0])
    return {"commands": commands}, parts


# Sending


def send(client: Client, call: Call, header: Header, parts: Parts, metadata: Header) -> str:
    """Sends it. Returns "ok" or the code of the refusal; raises for anything else."""
    try:
        _WAYS[call.way](client, call.name, header, parts, metadata)
        return "ok"
    except Refused as refused:
        return refused.code


def _send_action(client: Client, name: str, header: Header, parts: Parts, _: Header) -> None:
    client.call(name, header, *parts)


def _send_call(client: Client, name: str, header: Header, parts: Parts, _: Header) -> None:
    """Twice, on one stream: as an Arrow part, and as columns in the header where that can be."""
    stream = client.calls()
    try:
        with suppress(Refused):
            columns = [part.to_pydict() for part in parts]
            # Bytes are no JSON: the rows that have them go as they are.
            stream.call(name, header, *(parts if b"" in _flat(columns) else columns))
        stream.call(name, header, *parts)
    finally:
        stream.cancel()


def _flat(columns: list[Header]) -> list[Any]:
    """The values, of which bytes are told as b""."""
    values = [value for part in columns for column in part.values() for value in column]
    return [b"" if isinstance(value, (bytes, tuple, list)) else value for value in values]


def _send_read(client: Client, name: str, header: Header, _: Parts, __: Header) -> None:
    client.read({"version": 1, "call": name, **header})


def _send_plan(client: Client, name: str, header: Header, _: Parts, __: Header) -> None:
    client.plan({"version": 1, "call": name, **header})


def _send_put(client: Client, name: str, header: Header, parts: Parts, metadata: Header) -> None:
    batch = parts[0] if parts else MESSAGES[0]
    command = json.dumps({"version": 1, "call": name, **header}).encode()
    writer, reader = client.open_put(command, batch.schema)
    with status_as_error():
        try:
            writer.write_with_metadata(batch, json.dumps(metadata).encode())
            writer.done_writing()
            while (buffer := reader.read()) is not None:
                receipt = json.loads(buffer.to_pybytes())
                if "error" in receipt:
                    raise Refused(receipt["error"])
        finally:
            writer.close()


def _send_exchange(client: Client, name: str, header: Header, parts: Parts, said: Header) -> None:
    """Opens it, writes something, and reads until the broker has answered that, or ended."""
    command = json.dumps({"version": 1, "call": name, **header}).encode()
    with status_as_error():
        writer, reader = client.open_exchange(command)
        try:
            schema = parts[0].schema if parts else rows(id=[1]).schema
            writer.begin(schema)
            if name == "consume":
                _say(writer, said, parts)
                # Answered by the engine, behind what was said before it.
                writer.write_metadata(json.dumps({"op": "heartbeat", "request": 99}).encode())
            else:
                writer.done_writing()
            _listen(reader, to_the_end=name == "consume")
        finally:
            reader.cancel()
            with suppress(Exception):
                writer.close()


def _say(writer: Any, said: Header, parts: Parts) -> None:
    text = json.dumps(said).encode()
    if parts:
        writer.write_with_metadata(parts[0], text)
    else:
        writer.write_metadata(text)


def _listen(reader: Any, to_the_end: bool) -> None:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        told = json.loads(chunk.app_metadata.to_pybytes()) if chunk.app_metadata else {}
        if "error" in told:
            raise Refused(told["error"])
        # Followers are told that nothing happens only after seconds: the first word is enough.
        if not to_the_end or told.get("request") == 99:
            return


_WAYS: dict[str, Callable[[Client, str, Header, Parts, Header], None]] = {
    "action": _send_action,
    "call": _send_call,
    "read": _send_read,
    "plan": _send_plan,
    "put": _send_put,
    "exchange": _send_exchange,
}


@cache
def session_ops() -> list[str]:
    """What a consumer may say, as the session's own code tells it."""
    ops = re.findall(r'op == "(\w+)"', inspect.getsource(Subscription))
    assert {"credit", "heartbeat", "clock"} <= set(ops)
    return sorted({*ops, *requests.RETURNS})


def session_words(rng: random.Random) -> tuple[Header, Parts]:
    """Something that a consumer may write."""
    op = rng.choice([*["credit"] * 4, *session_ops(), "x", None])
    said: Header = {"op": op, "request": rng.choice([1, None, *INTEGERS])}
    if op == "credit":
        said["count"] = rng.choice([1, 2, *INTEGERS])
    elif op == "extend":
        said["length_us"] = rng.choice([5_000_000, *INTEGERS])
    if rng.random() < 0.3:
        said["credit"] = rng.choice([1, *INTEGERS])
    given = rng.choice([part for part in PARTS.values() if len(part) == 1])
    return said, given if op in requests.RETURNS or rng.random() < 0.2 else []


def anything(rng: random.Random, calls: list[Call]) -> tuple[Call, Header, Parts, Header]:
    """A call with good fields but for one, perhaps; for `send`."""
    way = rng.choice(
        ["action"] * 3 + ["call"] * 2 + ["exchange"] * 3 + ["put", "put", "read", "plan"]
    )
    call = rng.choice([each for each in calls if each.way == way])
    topic = rng.choice(TOPICS)
    header = good_header(call, topic, rng)
    parts: Parts = []
    metadata: Header = {}
    if call.way == "put":
        parts, metadata = [rng.choice(MESSAGES)], rng.choice(METADATA)
    elif call.way == "exchange":
        metadata, parts = session_words(rng)
    elif call.name == "transaction":
        header, parts = a_transaction(rng, topic)
    elif call.takes_parts or rng.random() < 0.05:
        parts = rng.choice(list(PARTS.values()))
    if call.fields and rng.random() < 0.5:
        name = rng.choice(list(call.fields))
        header[name] = rng.choice(bad_values(call.fields[name]))
    return call, header, parts, metadata


def make_topics(client: Client) -> None:
    """A topic of every kind with something in it, and whatever good calls need."""
    for kind in KINDS:
        with suppress(Refused):
            client.call("create_topic", {"topic": kind, "settings": {"kind": kind}})
    for kind in ("timeline", "priority", "log"):
        with suppress(Refused):
            client.send(kind, rows(payload=[b"1", b"2"], key=["k", "l"]))
    for action, header, parts in (
        ("create_group", {"topic": "log", "group": "g"}, []),
        ("kv_put", {"topic": "kv"}, PARTS["entries"]),
        ("put_schedules", {"topic": "cron", "schedules": GOOD["schedules"]}, []),
        ("delete_group", {"topic": "log", "group": "new"}, []),
    ):
        with suppress(Refused):
            client.call(action, header, *parts)


def drop_topics(client: Client) -> None:
    """Nothing of an attack is left for the next one."""
    for topic in client.call("topics")["topics"]:
        with suppress(Refused):
            client.call("delete_topic", {"topic": topic["topic"]})
