"""Garbage, lies and excess at a real broker's port.

After each attack the broker must have said something definite, log no surprise of its own, serve
a normal round trip, and be of about the size that it was.
"""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.ipc
import pytest

from fasti.broker.launch import BrokerProcess
from tests.conformance.protocol_client import (
    Client,
    ProduceStream,
    Refused,
    pack,
    returned,
    rows,
    statuses,
    unpack,
)
from tests.integration.serve_rig import SEGMENTS

# They speak the protocol without the SDK, to one shard.
pytestmark = pytest.mark.one_shard

MIB = 1 << 20
WAIT_S = 60.0
HOUR_US = 3_600_000_000
EXTREMES = [-(1 << 63), -(1 << 62), -1, (1 << 62) - 1, 1 << 62, (1 << 63) - 1]
BEYOND = [-(1 << 63) - 1, 1 << 63, 1 << 64, 10**400]
# A broker at work may take this much more than an idle one: buffers, pools, caches.
GROWTH_MAX_BYTES = 500 * MIB
# What a refusal may be. Anything else would be a surprise to the broker itself.
EXPECTED = {"invalid_argument", "not_found", "gone", "overloaded", "unknown_producer"}


def resident_bytes(process: BrokerProcess) -> int:
    """Memory that is the broker's own: pages of files that it has mapped are the system's."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def address_of(process: BrokerProcess) -> str:
    return f"{process.host}:{process.port}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("hostile"), settings=SEGMENTS) as process:
        yield process


@pytest.fixture(scope="module")
def idle_bytes(broker: BrokerProcess) -> int:
    with Client(address_of(broker)) as client:
        client.call("create_topic", {"topic": "normal"})
        client.call("create_topic", {"topic": "target"})
        serves(client)
    return resident_bytes(broker)


@pytest.fixture
def client(broker: BrokerProcess, idle_bytes: int) -> Iterator[Client]:
    """A client for the attack; the broker is looked at when the attack is over."""
    with Client(address_of(broker)) as attacker:
        yield attacker
    assert broker.running, broker.log()
    with Client(address_of(broker)) as client:
        serves(client)
    assert "Traceback" not in broker.log()
    most = idle_bytes + GROWTH_MAX_BYTES
    wait_until(lambda: resident_bytes(broker) < most, f"{resident_bytes(broker)} bytes")


def serves(client: Client) -> None:
    """A message goes in, comes out and is done."""
    ((sent,),) = client.send("normal", rows(payload=[b"hello"]))
    session = client.consume("normal", "somebody")
    (message,) = session.take(1)
    assert (message["id"], message["payload"]) == (sent.id, b"hello")
    assert statuses(session.use("ack", [sent.id])) == ["ok"]
    assert session.finish() == []


def counted(client: Client, topic: str = "target") -> dict[str, int]:
    return client.call("count", {"topic": topic})["counts"]


def refused(call: Callable[[], Any]) -> str:
    """The code with which something is refused."""
    with pytest.raises(Refused) as info:
        call()
    assert info.value.code in EXPECTED, info.value
    return info.value.code


@contextmanager
def refused_at_most(*about: Any) -> Iterator[None]:
    """What is done here may be carried out or refused, but nothing else may come of it."""
    try:
        yield
    except Refused as error:
        if error.code not in EXPECTED:
            raise AssertionError(about) from error


# The port


@pytest.mark.parametrize(
    "greeting",
    [
        random.Random(1).randbytes(65_536),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.Random(2).randbytes(65_536),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" * 1000,
        b"\x00",
        b"",
    ],
    ids=["noise", "http", "tls", "http2-noise", "http2-frames", "one-byte", "nothing"],
)
def test_bytes_that_are_not_ours(client: Client, broker: BrokerProcess, greeting: bytes) -> None:
    for _ in range(20):
        with socket.create_connection((broker.host, broker.port), timeout=10) as wire:
            try:
                wire.sendall(greeting)
                wire.shutdown(socket.SHUT_WR)
                while wire.recv(65_536):
                    pass
            except OSError:
                pass  # Hanging up in the middle is an answer too.


def test_connections_that_say_nothing(client: Client, broker: BrokerProcess) -> None:
    wires = [socket.create_connection((broker.host, broker.port)) for _ in range(300)]
    for number, wire in enumerate(wires):
        wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[: number % 24])
    serves(client)
    for wire in wires:
        wire.close()


@pytest.mark.parametrize("size", [10_000, MIB])
def test_garbage_is_not_sent_back(client: Client, size: int) -> None:
    """A refusal that quoted all of it would not fit the trailer that carries a status."""
    word = "x" * size
    for ticket in ({"version": 1, "call": word}, {"version": 1, "call": "list", word: 1}):
        with pytest.raises(Refused) as info:
            client.read(ticket)
        assert info.value.code == "invalid_argument"
        assert len(info.value.message) < 2000
    assert refused(lambda: client.call(word)) == "invalid_argument"
    assert refused(lambda: client.call("topic", {"topic": word})) in EXPECTED


def test_headers_of_a_megabyte(client: Client) -> None:
    options = fl.FlightCallOptions(timeout=20, headers=[(b"x-large", b"y" * MIB)])
    action = fl.Action("hello", pack({"version": 1}))
    with pytest.raises((fl.FlightError, pa.ArrowException)):
        list(client.flight.do_action(action, options))


def test_calls_of_flight_that_we_do_not_have(client: Client) -> None:
    descriptor = fl.FlightDescriptor.for_command(b"{}")
    for call in (
        lambda: list(client.flight.list_flights(options=client.options())),
        lambda: list(client.flight.list_actions(client.options())),
        lambda: client.flight.get_schema(descriptor, client.options()),
        lambda: client.flight.authenticate_basic_token("a", "b", client.options()),
    ):
        with pytest.raises((fl.FlightError, pa.ArrowException, NotImplementedError)):
            call()


# Envelopes and JSON


def test_envelopes_with_flipped_bytes(client: Client) -> None:
    """Whatever byte is wrong, the answer is an envelope: outcomes, or an error that we know."""
    chance = random.Random(7)
    body = pack(
        {"version": 1, "topic": "target", "owner": "o"},
        [rows(id=[1, 2, 3], version=[1, 2, 3], payload=[b"a", b"bc", b""], headers=[None] * 3)],
    )
    codes = set()
    for _ in range(600):
        mutated = bytearray(body)
        for _ in range(chance.choice([1, 1, 2, 8])):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        if chance.random() < 0.2:
            del mutated[chance.randrange(len(mutated)) :]
        header, _ = unpack(client.raw_call("update", bytes(mutated)))
        codes.add(header["error"]["code"] if "error" in header else "answered")
    assert codes <= EXPECTED | {"answered"}
    assert "invalid_argument" in codes


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"version": ' + b"9" * 10_000 + b"}",
        b'{"version": 1, "topic": "\\ud800", "settings": {}}',
        b'{"version": 1, "topic": "x", "settings": {"retry": {"factor": NaN}}}',
        b'{"version": 1, "topic": "x", "settings": {"retry": {"factor": 1e999}}}',
        b'{"version": 1, "topic": "x", "settings": {"retry": {"jitter": -Infinity}}}',
        b'{"version": 1, "topic": "x", "settings": {}, "parts": ' + b"[" + b"0," * 10**6 + b"0]}",
        '{"version": 1, "topic": "x", "settings": {}}'.encode("utf-16"),
        b'{"version": 1, "topic": "' + b"x" * 10 * MIB + b'", "settings": {}}',
        b"\x00" * 100,
    ],
    ids=lambda text: text[:20].decode("latin-1"),
)
def test_json_that_bites(client: Client, text: bytes) -> None:
    before = client.call("topics")["topics"]
    header, _ = unpack(client.raw_call("create_topic", struct.pack("<I", len(text)) + text))
    assert header["error"]["code"] == "invalid_argument"
    assert len(json.dumps(header)) < 10_000, "a refusal doesn't send the garbage back"
    assert client.call("topics")["topics"] == before
    if not text.startswith(b"\x00"):
        assert refused(lambda: client.read(text)) == "invalid_argument"


@pytest.mark.parametrize("field", ["owner", "producer"])
def test_names_that_are_no_text(client: Client, field: str) -> None:
    before = counted(client)
    command = json.dumps({"version": 1, "call": "produce", "topic": "target", field: "\ud800"})
    batch = rows(payload=[b"x"])
    stream = ProduceStream(*client.open_put(command.encode(), batch.schema))
    assert refused(stream.receipt) == "invalid_argument"
    assert counted(client) == before


def test_reasons_and_stages_that_are_no_text(client: Client) -> None:
    before = counted(client)
    session = client.consume("target", "somebody")
    part = returned([1], [1], due_us=[None])
    session.write(b'{"op": "nack", "request": 1, "reason": "\\udfff"}', part)
    answer = session.expect(lambda chunk: chunk.metadata["request"] == 1).metadata
    assert answer["error"]["code"] == "invalid_argument"
    session.finish()
    batch = rows(payload=[b"x"])
    stream = client.produce(batch.schema, topic="target")
    assert stream.ask(batch, b'{"stage": "\\ud800"}')["error"]["code"] == "invalid_argument"
    stream.end()
    assert counted(client) == before


# Arrow that lies


def patched(batch: pa.RecordBatch, honest: bytes, lie: bytes) -> pa.RecordBatch:
    """The batch with some of its bytes replaced on the way; Arrow doesn't look at them here."""
    message = batch.serialize().to_pybytes()
    assert honest in message
    assert len(honest) == len(lie)
    # What this side reads past the end, when it writes the batch, is its own.
    padded = message.replace(honest, lie) + bytes(16 * MIB)
    return pa.ipc.read_record_batch(pa.py_buffer(padded), batch.schema)


def claiming(batch: pa.RecordBatch, claimed: int) -> pa.RecordBatch:
    """The same bytes, said to be `claimed` rows."""
    return patched(batch, struct.pack("<q", batch.num_rows), struct.pack("<q", claimed))


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 7, 14, 1 << 30],
        [0, 1 << 30, 14, 21],
        [0, -(1 << 30), 14, 21],
        [1 << 30, 7, 14, 21],
        [0, 14, 7, 21],
        [-5, 7, 14, 21],
    ],
)
@pytest.mark.parametrize("column", ["payload", "key"])
def test_offsets_that_lie(client: Client, column: str, offsets: list[int]) -> None:
    before = counted(client)
    columns: dict[str, Any] = {"payload": [b"p"] * 3, column: ["x" * 7] * 3}
    honest = struct.pack("<4i", 0, 7, 14, 21)
    batch = patched(rows(**columns), honest, struct.pack("<4i", *offsets))
    stream = client.produce(batch.schema, topic="target")
    try:
        receipt = stream.ask(batch)
    except (Refused, fl.FlightError, pa.ArrowException, OSError):
        pass  # Arrow itself, on one side or the other, would not take it.
    else:
        assert receipt["error"]["code"] == "invalid_argument"
    assert counted(client) == before


def test_keys_that_are_not_utf8(client: Client) -> None:
    before = counted(client)
    batch = patched(rows(payload=[b"a", b"b"], key=["k" * 9] * 2), b"k" * 9, b"\xff\xfe" * 4 + b"k")
    stream = client.produce(batch.schema, topic="target")
    assert stream.ask(batch)["error"]["code"] == "invalid_argument"
    assert stream.end() == []
    target = patched(rows(key=["k" * 9]), b"k" * 9, b"\xff\xfe" * 4 + b"k")
    for action in ("get", "cancel"):
        assert refused(lambda a=action: client.call(a, {"topic": "target"}, target))
    assert counted(client) == before


@pytest.mark.parametrize("claimed", [778, 1 << 16, 1 << 20])
def test_batches_that_claim_more_rows_than_they_have(client: Client, claimed: int) -> None:
    before = counted(client)
    batch = claiming(rows(payload=[b""] * 777, due_us=[5] * 777), claimed)
    stream = client.produce(batch.schema, topic="target")
    assert stream.ask(batch)["error"]["code"] == "invalid_argument"
    assert stream.end() == []
    assert counted(client) == before


@pytest.mark.parametrize("claimed", [778, 1 << 20, (1 << 31) - 1, -5])
def test_acks_that_claim_more_rows_than_they_have(client: Client, claimed: int) -> None:
    before = counted(client)
    session = client.consume("target", "liar")
    batch = claiming(returned([4711] * 777, [1] * 777, due_us=[5] * 777), claimed)
    assert refused(lambda: session.ask("ack", batch)) == "invalid_argument"
    assert session.finish() == []
    assert counted(client) == before


def test_parts_that_unpack_to_more_than_they_say(client: Client) -> None:
    """A compressed part whose buffers claim a terabyte, and one that is a small bomb."""
    ids = pa.record_batch({"id": pa.array([0] * 8 * MIB, pa.int64())})
    sink = pa.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, ids.schema, options=options) as writer:
        writer.write_batch(ids)
    body = sink.getvalue().to_pybytes()
    assert len(body) < MIB
    honest = struct.pack("<q", 64 * MIB)
    assert honest in body
    for part in (body, body.replace(honest, struct.pack("<q", 1 << 40))):
        text = json.dumps({"version": 1, "topic": "target", "parts": [len(part)]}).encode()
        reply = client.raw_call("cancel", struct.pack("<I", len(text)) + text + part)
        assert unpack(reply)[0]["error"]["code"] == "invalid_argument"


# Excess


def test_more_than_the_limits(client: Client) -> None:
    before = counted(client)
    megabyte = b"x" * MIB
    for batch in (
        rows(payload=[b"x" * (MIB + 1)]),
        rows(payload=[megabyte] * 66),
        rows(payload=[b""] * 100_001),
        rows(payload=[b"x"], key=["k" * 513]),
        rows(payload=[b"x"], key=["ß" * 257]),
        rows(payload=[b"x"], headers=[[("h" * 8192, "v" * 8193)]]),
        rows(payload=[b"x"], headers=[[(str(n), "") for n in range(20_000)]]),
        rows(payload=[b"x"], content_type=["c" * 20_000]),
    ):
        stream = client.produce(batch.schema, topic="target")
        assert stream.ask(batch).get("error", {}).get("code") == "invalid_argument", batch.schema
        assert stream.end() == []
    stream = client.produce(rows(payload=[]).schema, topic="target")
    huge = {"stage": "s" * 4 * MIB}
    assert stream.ask(rows(payload=[b"x"]), huge)["error"]["code"] == "invalid_argument"
    assert stream.end() == []
    many = rows(id=list(range(100_001)))
    for action in ("get", "cancel", "purge", "redrive"):
        assert refused(lambda a=action: client.call(a, {"topic": "target"}, many))
    tokens = returned(list(range(100_001)), [1] * 100_001)
    assert refused(lambda: client.call("ack", {"topic": "target"}, tokens))
    for name in ("owner", "producer"):
        stream = client.produce(rows(payload=[]).schema, topic="target", **{name: "n" * 256})
        metadata = {"sequence": 1} if name == "producer" else {}
        receipt = stream.ask(rows(payload=[b"x"]), metadata)
        assert receipt["error"]["code"] == "invalid_argument"
        assert stream.end() == []
    commands = [{"op": "cancel", "topic": "target"}] * 10_001
    assert refused(lambda: client.call("transaction", {"commands": commands}))
    assert counted(client) == before


def test_a_body_that_is_far_too_large(client: Client) -> None:
    reply = client.raw_call("hello", pack({"version": 1}) + bytes(79 * MIB))
    assert unpack(reply)[0]["error"]["code"] == "invalid_argument"


# Numbers


def test_extreme_times_and_versions(client: Client) -> None:
    ((sent,),) = client.send("target", rows(payload=[b"x"], delay_us=[HOUR_US], key=["extreme"]))
    before = client.get("target", rows(id=[sent.id]))
    counts = counted(client)
    header = {"topic": "target"}
    for number in EXTREMES:
        for column in ("due_us", "delay_us"):
            if number == (1 << 62) - 1 and column == "due_us":
                continue  # The last moment that there is.
            if number < 0 and column == "due_us" and number > -(1 << 62):
                continue  # Before 1970 is the past.
            batch = rows(payload=[b"x"], **{column: [number]})
            stream = client.produce(batch.schema, topic="target")
            receipt = stream.ask(batch)
            assert "error" in receipt, (column, number)
            assert receipt["error"]["code"] == "invalid_argument"
            assert stream.end() == []
            part = rows(id=[sent.id], **{column: [number]})
            assert refused(lambda p=part: client.call("move", header, p)), (column, number)
        part = rows(id=[sent.id], version=[number])
        assert statuses(client.call("cancel", header, part)) == ["conflict"]
    client.call("cancel", header, rows(id=[sent.id], version=[2]))
    assert client.get("target", rows(id=[sent.id])) == before
    assert counted(client) == counts
    client.call("cancel", header, rows(id=[sent.id]))


def test_extreme_ids_and_tokens(client: Client) -> None:
    before = counted(client)
    header = {"topic": "target"}
    ids = [*EXTREMES, 0, 1 << 51, (1 << 51) - 1, 4095 << 51, 4096 << 50]
    found = client.get("target", rows(id=ids))
    assert all(row["status"] in ("not_found", "gone") for row in found)
    for action in ("cancel", "redrive", "purge"):
        assert set(statuses(client.call(action, header, rows(id=ids)))) <= {"not_found", "gone"}
    for action, more in {
        "ack": {},
        "nack": {},
        "reject": {},
        "release": {"delay_us": 0},
        "extend": {"length_us": 5_000_000},
    }.items():
        part = returned(ids, list(reversed(ids)))
        answer = client.call(action, {**header, **more}, part)
        assert set(statuses(answer)) <= {"not_found", "gone", "stale_lease"}
    assert counted(client) == before


def test_extreme_numbers_in_json(client: Client) -> None:
    before = counted(client)
    topics = len(client.call("topics")["topics"])
    header = {"topic": "target"}
    part = returned([1], [1])
    session = client.consume("target", "somebody")
    for number in [*EXTREMES, *BEYOND]:
        settings = (
            "partitions",
            "lease_us",
            "hold_us",
            "max_attempts",
            "lookahead_us",
            "outcome_age_us",
            "outcome_count",
            "producer_age_us",
            "stage_age_us",
        )
        for name in settings:
            made = {"topic": f"extreme-{name}", "settings": {name: number}}
            with refused_at_most(name, number):
                client.call("create_topic", made)
                client.call("delete_topic", {"topic": f"extreme-{name}"})
        for name, action, more in (
            ("delay_us", "release", [part]),
            ("length_us", "extend", [part]),
            ("snapshot", "drop_snapshot", []),
        ):
            with refused_at_most(name, number):
                client.call(action, {**(header if more else {}), name: number}, *more)
        for name in ("delay_us", "due_us"):
            with refused_at_most(name, number):
                client.call("redrive", {**header, name: number}, rows(id=[1]))
        times = {"from_us": 0, "to_us": 60_000_000, "bucket_us": 60_000_000}
        for name in times:
            with refused_at_most(name, number):
                client.call("forecast", {**header, **times, name: number})
        for name in ("due_from_us", "due_to_us", "limit", "partition", "snapshot"):
            with refused_at_most(name, number):
                client.list("target", **{name: number})
        with pytest.raises(Refused):
            session.ask("credit", count=number)
        try:
            session.write({"op": "clock", "request": number})
            session.expect(lambda chunk, n=number: chunk.metadata["request"] == n)
        except Refused:
            # A request that is no number can't be answered: that ends the session.
            session.cancel()
            session = client.consume("target", "somebody")
        stream = client.produce(rows(payload=[]).schema, topic="target", producer="extreme")
        assert "error" in stream.ask(rows(payload=[b"x"]), {"sequence": number})
        stream.end()
    session.finish()
    assert counted(client) == before
    assert len(client.call("topics")["topics"]) == topics


# Streams that break, and clients that don't read


def open_sessions(client: Client) -> int:
    text = client.call("metrics")["text"]
    found = re.search(r"^fasti_sessions(?:_open)?(?:\{[^}]*\})? (\d+)", text, re.MULTILINE)
    assert found, [line for line in text.splitlines() if "session" in line]
    return int(found[1])


def wait_until(fits: Callable[[], bool], what: str) -> None:
    """Looks again until it is so; for what the broker tells nobody by itself."""
    until = time.monotonic() + WAIT_S
    while not fits():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def test_streams_that_are_cancelled_in_the_middle(client: Client, broker: BrokerProcess) -> None:
    before = open_sessions(client)
    batch = rows(payload=[b"x" * 1000] * 1000, delay_us=[HOUR_US] * 1000)
    for number in range(30):
        with Client(address_of(broker)) as other:
            session = other.consume("target", f"cancelled-{number}")
            session.credit(1000)
            session.cancel()
            options = fl.FlightCallOptions(timeout=0.05)
            descriptor = fl.FlightDescriptor.for_command(
                json.dumps({"version": 1, "call": "produce", "topic": "target"}).encode()
            )
            with suppress(fl.FlightError, pa.ArrowException):
                writer, _ = other.flight.do_put(descriptor, batch.schema, options)
                for _ in range(10_000):
                    writer.write_batch(batch)
    wait_until(lambda: open_sessions(client) <= before, "cancelled sessions end")
    assert counted(client)["scheduled"] % 1000 == 0, "whole batches or none"
    client.call("delete_topic", {"topic": "target"})
    client.call("create_topic", {"topic": "target"})


def test_a_consumer_that_asks_and_never_reads(client: Client) -> None:
    """Its requests are taken only so far ahead: then it stands still, and nothing piles up."""
    command = {"version": 1, "call": "consume", "topic": "target", "consumer": "deaf"}
    writer, reader = client.open_exchange(json.dumps(command).encode())
    writer.begin(returned([], [], due_us=[]).schema)

    def ask_for_ever() -> None:
        with suppress(fl.FlightError, pa.ArrowException):
            while True:
                writer.write_metadata(b'{"op": "levitate", "request": 1}')

    asking = threading.Thread(target=ask_for_ever)
    asking.start()
    seen = [0]

    def stands_still() -> bool:
        seen.append(refusals(client))
        return len(set(seen[-10:])) == 1 and seen[-1] > 1000

    wait_until(stands_still, f"it goes on and on: {seen[-5:]}")
    assert asking.is_alive(), "it still wants to write"
    reader.cancel()
    asking.join()


def refusals(client: Client) -> int:
    text = client.call("metrics")["text"]
    found = re.findall(r'^fasti_refusals_total\{.*op="consume".*\} ([0-9.e+]+)', text, re.MULTILINE)
    return int(sum(map(float, found)))


def test_a_consumer_that_never_reads(client: Client, broker: BrokerProcess) -> None:
    """Its messages wait in the broker's files, not in its memory."""
    before = resident_bytes(broker)
    client.call("create_topic", {"topic": "unread", "settings": {"lease_us": 43_200_000_000}})
    for _ in range(10):
        client.send("unread", rows(payload=[random.randbytes(MIB) for _ in range(30)]))
    writers = []
    for number in range(10):
        command = {"version": 1, "call": "consume", "topic": "unread", "consumer": f"c{number}"}
        writer, reader = client.open_exchange(json.dumps(command).encode())
        writer.begin(returned([], [], due_us=[]).schema)
        writer.write_metadata(json.dumps({"op": "credit", "count": 30}).encode())
        writers.append((writer, reader))
    wait_until(lambda: counted(client, "unread")["leased"] == 300, "all are leased")
    # Each stream has one part of its messages on its way, of at most 16 MiB, as Arrow and as IPC.
    grown = resident_bytes(broker) - before
    print(f"10 consumers that don't read 300 MiB: {grown / MIB:.0f} MiB")
    assert grown < 10 * 2 * 16 * MIB + 150 * MIB
    for _, reader in writers:
        reader.cancel()
    client.call("delete_topic", {"topic": "unread"})


def test_a_flood_of_producers(tmp_path: Path) -> None:
    """Beyond the budget produce answers overloaded; nothing grows, and the rest still works."""
    settings = {"memory": "24MiB", "inbox_rows_max": 100_000}
    with BrokerProcess(tmp_path / "flood", settings=settings) as broker:
        with Client(address_of(broker)) as client:
            client.call("create_topic", {"topic": "normal"})
            client.call("create_topic", {"topic": "flood"})
            serves(client)
            before = resident_bytes(broker)
            answers: list[dict[str, Any]] = []
            threads = [
                threading.Thread(target=flood, args=(address_of(broker), answers)) for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            errors = [answer["error"] for answer in answers if "error" in answer]
            taken = sum(sum(n for _, n in a["status"]) for a in answers if "status" in a)
            assert {error["code"] for error in errors} == {"overloaded"}
            assert all(error["retryable"] for error in errors)
            assert all(error["retry_after_us"] > 0 for error in errors)
            # Exactly what was answered ok is there.
            assert counted(client, "flood")["scheduled"] == taken
            assert resident_bytes(broker) < before + 400 * MIB
            # Cancels are still taken, and make room.
            (ticket,) = client.plan({"version": 1, "call": "list", "topic": "flood"})
            ids = client.read(ticket).column("id")[:50_000].to_pylist()
            found = client.call("cancel", {"topic": "flood"}, rows(id=ids))
            assert found["status"] == [["ok", 50_000]]
            serves(client)
            assert "Traceback" not in broker.log()


def flood(address: str, answers: list[dict[str, Any]]) -> None:
    """Sends as much as it can, until it was told often enough that it is too much."""
    batch = rows(payload=[b"x" * 20] * 10_000, delay_us=[HOUR_US] * 10_000)
    with Client(address) as client:
        stream = client.produce(batch.schema, topic="flood")
        refusals = 0
        for number in range(400):
            stream.write(batch)
            if number >= 32:
                answers.append(stream.receipt())
                refusals += "error" in answers[-1]
            if refusals >= 10:
                break
        answers += stream.end()
