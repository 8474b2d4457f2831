"""Bytes before a token, bombs, and crowds of silent connections: a broker stays small, and serves."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.ipc
import pytest

import fasti
from fasti.broker.calls.actions import ACTIONS
from fasti.broker.launch import BrokerProcess
from fasti.doors.credentials import create
from fasti.protocol.envelope import dump, pack, unpack
from tests.faults.conftest import Tried
from tests.faults.http2 import answer, closed, greeting, hello, padding
from tests.integration.serve_rig import SMALL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of connections")

MIB = 1 << 20
# How long something may take that takes no time, on a machine that is busy.
PATIENCE_S = 30.0
TIGHT = {
    **SMALL,
    "limits.batch_max": "64KiB",
    "limits.payload_max": "64KiB",
    "guard.first_bytes_max": "128KiB",
    "guard.request_max": "512KiB",
}


@dataclass
class Guarded:
    """A broker that asks for tokens, and one that it takes."""

    broker: BrokerProcess
    token: str

    def connect(self) -> socket.socket:
        """A connection by hand."""
        made = socket.create_connection((self.broker.host, self.broker.port), PATIENCE_S)
        return made

    def metric(self, name: str) -> float:
        with fasti.connect(self.broker.address, token=self.token) as client:
            return metric(client, name)


def metric(client: fasti.Client, name: str) -> float:
    text = client.metrics()
    [line] = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.split()[-1])


def guarded(folder: Path, **settings: Any) -> Guarded:
    token = create(folder / "tokens.toml", "honest")
    given = {**TIGHT, "credentials": folder / "tokens.toml", **settings}
    return Guarded(BrokerProcess(folder / "data", settings=given), token)


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Small bounds, and patience with those who are silent."""
    made = guarded(tmp_path_factory.mktemp("tight"), **{"guard.first_call_within": "1h"})
    with made.broker:
        yield made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The default bounds, no tokens."""
    with BrokerProcess(tmp_path_factory.mktemp("plain") / "data", settings=SMALL) as broker:
        yield broker


def memory(broker: BrokerProcess, what: str) -> int:
    text = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) << 10


def peak_from_now(broker: BrokerProcess) -> int:
    """Has the kernel measure the highest size anew; the size now."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    return memory(broker, "VmHWM")


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.05)


def bring_until_closed(connection: socket.socket) -> None:
    """More and more, of a request that never ends."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not select.select([connection], [], [], 0.05)[0] or connection.recv(65_536):
            assert time.monotonic() < deadline, "it was let be"
            connection.sendall(padding(4))
    except ConnectionError:
        pass


# Bytes before the token


@pytest.mark.fault(
    "strangers", "bytes without a token, in an unfinished request", "the connection is ended"
)
def test_a_connection_without_a_token_may_not_bring_much(tight: Guarded, tried: Tried) -> None:
    ended = 'fasti_connections_ended_total{why="bytes_before_call"}'
    before = tight.metric(ended)
    for first in (greeting(), greeting() + hello(), greeting() + hello("wrong")):
        with tight.connect() as stranger:
            stranger.sendall(first + padding(9))
            assert closed(stranger)
    tried.times = 3
    assert tight.metric(ended) == before + 3
    assert "a connection was ended: it brought too many bytes" in tight.broker.log()


@pytest.mark.fault(
    "strangers", "a request larger than any may be, with a token", "the connection is ended"
)
def test_a_connection_that_is_known_may_bring_a_few_requests(tight: Guarded, tried: Tried) -> None:
    with tight.connect() as known:
        known.sendall(greeting() + hello(tight.token))
        assert b"protocol" in answer(known)
        bring_until_closed(known)
    assert tight.metric('fasti_connections_ended_total{why="request_too_large"}') >= 1


def test_a_producer_that_sends_for_long_is_no_stranger(tight: Guarded) -> None:
    """Many times what a request may have, in all."""
    with fasti.connect(tight.broker.address, token=tight.token) as client:
        client.create_topic("long")
        producer = client.producer("long")
        for _ in range(60):
            producer.send_batch([b"x" * 60_000])
        assert sum(client.topic("long").counts.values()) == 60
    assert "more than requests may have" not in tight.broker.log()


@pytest.mark.fault("strangers", "a crowd of silent connections", "the oldest are ended")
def test_silent_connections_are_bounded_in_number_and_time(tmp_path: Path, tried: Tried) -> None:
    crowd = guarded(tmp_path, **{"guard.waiting_max": 20, "guard.first_call_within": "2s"})
    with crowd.broker, ExitStack() as open_ones:
        strangers = [open_ones.enter_context(crowd.connect()) for _ in range(60)]
        for stranger in strangers[::2]:
            stranger.sendall(greeting())
        # Somebody honest is served meanwhile.
        assert crowd.metric("fasti_up ") == 1
        # All of them are ended at last: forty for being too many, the others by time.
        assert all(closed(stranger) for stranger in strangers)
        assert crowd.metric('fasti_connections_ended_total{why="too_many_waiting"}') >= 30
        assert crowd.metric('fasti_connections_ended_total{why="no_call_in_time"}') >= 1
        wait_until(lambda: crowd.metric("fasti_connections_waiting ") == 0, "nobody waits")
    tried.times = 60


def test_an_honest_client_that_is_idle_stays(tmp_path: Path) -> None:
    calm = guarded(tmp_path, **{"guard.first_call_within": "100ms"})
    with calm.broker, calm.connect() as known, calm.connect() as stranger:
        known.sendall(greeting() + hello(calm.token))
        assert b"protocol" in answer(known)
        stranger.sendall(greeting())
        assert closed(stranger)
        known.sendall(padding(1))
        known.settimeout(0.5)
        with pytest.raises(TimeoutError):
            closed(known)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.fault(
    "strangers", "three bodies of 500 MB without a token", "they cost 300 MB for a moment"
)
def test_large_bodies_without_a_token(tmp_path: Path, tried: Tried) -> None:
    attacked = guarded(tmp_path, **{"guard.first_bytes_max": "1MiB"})
    body = bytes(500_000_000)
    with attacked.broker as broker:
        calm = memory(broker, "RssAnon")
        size = peak_from_now(broker)

        def attack() -> None:
            with fl.FlightClient(f"grpc://{broker.host}:{broker.port}") as client:
                with pytest.raises(fl.FlightUnavailableError):
                    list(client.do_action(fl.Action("hello", body)))

        together(attack, 3)
        assert memory(broker, "VmHWM") - size < 300_000_000
        wait_until(lambda: memory(broker, "RssAnon") < calm + 64 * MIB, "memory is given back")
    tried.times = 3


def together(run: Callable[[], None], count: int) -> None:
    faults: list[BaseException] = []

    def guarded_run() -> None:
        try:
            run()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=guarded_run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults


# Bombs


def bomb(megabytes: int) -> pa.RecordBatch:
    """One payload of zeros: a few kB when it is compressed."""
    size = megabytes * MIB
    ends = pa.py_buffer(struct.pack("<ii", 0, size))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(bytes(size))])
    return pa.RecordBatch.from_arrays([column], names=["payload"])


def compressed_body(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    part = sink.getvalue().to_pybytes()
    header = json.dumps({"version": 1, "parts": [len(part)]}).encode()
    return struct.pack("<I", len(header)) + header + part


def code_of(client: fl.FlightClient, action: str, body: bytes) -> str:
    [result] = client.do_action(fl.Action(action, body))
    code: str = unpack(result.body)[0]["error"]["code"]
    return code


@pytest.mark.fault(
    "bombs", "kilobytes that unpack to 512 MB, on every action", "refused before they are unpacked"
)
def test_a_bomb_costs_nothing_on_any_action(plain: BrokerProcess, tried: Tried) -> None:
    body = compressed_body(bomb(512))
    assert len(body) < 32_000
    size = peak_from_now(plain)
    with fl.FlightClient(f"grpc://{plain.host}:{plain.port}") as client:
        for action in ACTIONS:
            assert code_of(client, action, body) == "invalid_argument", action
    assert memory(plain, "VmHWM") - size < 64 * MIB
    tried.times = len(ACTIONS)


def produce_bomb(broker: BrokerProcess, batch: pa.RecordBatch) -> dict[str, Any]:
    """The receipt for a compressed batch, on a stream of its own."""
    options = fl.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))
    command = dump({"version": 1, "call": "produce", "topic": "bombed"})
    with fl.FlightClient(f"grpc://{broker.host}:{broker.port}") as client:
        list(client.do_action(fl.Action("create_topic", pack({"version": 1, "topic": "bombed"}))))
        descriptor = fl.FlightDescriptor.for_command(command)
        writer, reader = client.do_put(descriptor, batch.schema, options)
        try:
            writer.write_with_metadata(batch, dump({}))
            receipt: dict[str, Any] = json.loads(reader.read().to_pybytes())
            writer.done_writing()
            return receipt
        finally:
            writer.close()


@pytest.mark.fault("bombs", "kilobytes that unpack to 200 MB, in a stream", "refused, and let go")
def test_what_a_bomb_in_a_stream_took_is_given_back(plain: BrokerProcess, tried: Tried) -> None:
    calm = memory(plain, "RssAnon")
    for _ in range(3):
        assert produce_bomb(plain, bomb(200))["error"]["code"] == "invalid_argument"
    wait_until(lambda: memory(plain, "RssAnon") < calm + 100 * MIB, "memory is given back")
    tried.times = 3


@pytest.mark.fault(
    "bombs", "kilobytes that unpack to 512 MB, in a stream", "`overloaded`, not unpacked"
)
def test_a_bomb_in_a_stream_is_not_unpacked(tmp_path: Path, tried: Tried) -> None:
    large = {**SMALL, "segment_size": "8MiB"}
    with BrokerProcess(tmp_path / "data", settings=large) as broker:
        size = peak_from_now(broker)
        with pytest.raises(fl.FlightServerError, match="overloaded: there is no memory"):
            produce_bomb(broker, bomb(512))
        assert memory(broker, "VmHWM") - size < 64 * MIB
        with fasti.connect(broker.address) as client:
            client.create_topic("honest")
            client.producer("honest").send_batch([bytes(1 * MIB)] * 30)
            assert sum(client.topic("honest").counts.values()) == 30


ALLOCATIONS = """
import json, os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
from fasti.doors.allocators import load_arrow_bounded
bounded = load_arrow_bounded(int(sys.argv[2]))
import pyarrow as pa
def fits(megabytes):
    try:
        return bool(pa.allocate_buffer(megabytes << 20))
    except pa.ArrowMemoryError:
        return False
left = [name for name in os.environ if name.startswith("MIMALLOC_RESERVE")]
print(json.dumps([bounded, [fits(size) for size in (64, 400, 900)], left]))
"""


@pytest.mark.parametrize(
    ("space", "batch", "environment", "expected"),
    [
        (-1, 64 * MIB, {}, [True, [True, False, False], []]),
        # A larger batch may be taken, if the settings say so.
        (-1, 128 * MIB, {}, [True, [True, True, False], []]),
        # Without room for the reservation, or by the operator's own word, Arrow is left as it is.
        (8 << 30, 64 * MIB, {}, [False, [True, True, True], []]),
        (-1, 64 * MIB, {"MIMALLOC_VERBOSE": "0"}, [False, [True, True, True], []]),
    ],
)
def test_arrow_is_bound_where_it_can_be(
    space: int, batch: int, environment: dict[str, str], expected: list[Any]
) -> None:
    command = [sys.executable, "-c", ALLOCATIONS, str(space), str(batch)]
    ended = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert json.loads(ended.stdout) == expected


@pytest.mark.fault("strangers", "large bodies that are refused", "memory is given back")
def test_memory_of_large_requests_is_given_back(plain: BrokerProcess, tried: Tried) -> None:
    calm = memory(plain, "RssAnon")
    body = bytes(100_000_000)

    def ask() -> None:
        with fl.FlightClient(f"grpc://{plain.host}:{plain.port}") as client:
            assert code_of(client, "hello", body) == "invalid_argument"

    together(ask, 3)
    wait_until(lambda: memory(plain, "RssAnon") < calm + 64 * MIB, "memory is given back")
    tried.times = 3


# What is honest


def test_the_largest_batch_passes_on_a_fresh_connection(tmp_path: Path) -> None:
    """With a token, and a bound on strangers that is far below it."""
    roomy = {"limits.payload_max": "1MiB", "limits.batch_max": "32MiB"}
    roomy |= {"guard.request_max": "64MiB", "segment_size": "8MiB"}
    made = guarded(tmp_path, **roomy)
    with made.broker, fasti.connect(made.broker.address, token=made.token) as client:
        client.create_topic("large")
        client.producer("large").send_batch([bytes(1 * MIB)] * 30)
        assert sum(client.topic("large").counts.values()) == 30
        # The same connections after a restart: their next calls are their first ones.
        made.broker.restart()
        ids = pa.RecordBatch.from_pydict({"id": pa.array(range(90_000), pa.int64())})
        assert ids.nbytes > 256 << 10
        _, [found] = client.transport.call("get", {"topic": "large"}, [ids])
        assert found.num_rows == 90_000
        assert "a connection was ended" not in made.broker.log()
