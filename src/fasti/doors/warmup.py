"""Runs every path once before a broker says that it is ready.

The first call of anything is slow: modules are imported, Arrow's kernels are looked up, gRPC
opens its threads. So a message is produced, changed, listed, leased and acknowledged over a real
connection, on a shard in memory that is thrown away.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl

from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.broker.shard import Shard
from fasti.config import ShardSettings
from fasti.doors.flight import FlightDoor
from fasti.protocol.envelope import dump, pack, parse
from fasti.protocol.schemas import VERSION
from fasti.storage.directory import passing_storage

_TOPIC = "warm-up"
_ROWS = 3
_SETTINGS = ShardSettings(segment_bytes=1 << 16, memory_bytes=16 << 20, leases_max=1024)
_RETURNS = pa.schema([(name, pa.int64()) for name in ("id", "token", "started_us", "due_us")])


def warm_up(scraped: bool = True) -> None:
    """Takes a few dozen milliseconds, and twice that if its metrics will be scraped."""
    shard = Shard(passing_storage(), _SETTINGS)
    try:
        service = Service(OneShard(shard), Metrics())
        service.logs_control = False
        door = FlightDoor(service, "127.0.0.1", 0)
        door.start()
        try:
            with fl.FlightClient(f"grpc://127.0.0.1:{door.port}") as client:
                _act(client, "create_topic", {"topic": _TOPIC, "settings": {}})
                _produce(client)
                _change(client)
                _read(client)
                _consume(client)
                if scraped:
                    _act(client, "metrics", {})
        finally:
            door.stop()
            service.close()
    finally:
        shard.close()


def _act(
    client: fl.FlightClient, action: str, header: dict[str, object], *parts: pa.RecordBatch
) -> None:
    list(client.do_action((action, pack({"version": VERSION, **header}, parts))))


def _descriptor(**command: object) -> fl.FlightDescriptor:
    return fl.FlightDescriptor.for_command(dump({"version": VERSION, **command}))


def _produce(client: fl.FlightClient) -> None:
    batch = pa.record_batch(
        {
            "payload": pa.array([b"x"] * _ROWS),
            "delay_us": pa.array([0, 0, 10**12]),
            "key": pa.array([f"k{row}" for row in range(_ROWS)]),
        }
    )
    descriptor = _descriptor(call="produce", topic=_TOPIC, owner="", producer="warm-up")
    writer, reader = client.do_put(descriptor, batch.schema)
    with writer:
        writer.write_with_metadata(batch, dump({"sequence": 1}))
        reader.read()
        writer.done_writing()
        while reader.read() is not None:
            pass


def _change(client: fl.FlightClient) -> None:
    key = pa.record_batch({"key": pa.array([f"k{_ROWS - 1}"])})
    moved = key.append_column("delay_us", pa.array([10**12]))
    _act(client, "move", {"topic": _TOPIC, "owner": ""}, moved)
    _act(client, "get", {"topic": _TOPIC}, key)
    _act(client, "cancel", {"topic": _TOPIC, "owner": ""}, key)
    for action in ("count", "topic"):
        _act(client, action, {"topic": _TOPIC})
    for action in ("hello", "clock", "health"):
        _act(client, action, {})


def _read(client: fl.FlightClient) -> None:
    ticket = {"version": VERSION, "call": "list", "topic": _TOPIC, "payload": True}
    client.do_get(fl.Ticket(dump(ticket))).read_all()


def _consume(client: fl.FlightClient) -> None:
    descriptor = _descriptor(call="consume", topic=_TOPIC, consumer="warm-up")
    writer, reader = client.do_exchange(descriptor)
    with writer:
        writer.begin(_RETURNS)
        writer.write_metadata(dump({"op": "credit", "count": _ROWS}))
        got = 0
        while got < _ROWS - 1:
            chunk = reader.read_chunk()
            if chunk.data is None:
                continue
            got += chunk.data.num_rows
            _give_back(writer, chunk)
        writer.write_metadata(dump({"op": "heartbeat", "request": 2}))
        writer.done_writing()
        reader.read_all()


def _give_back(writer: fl.FlightStreamWriter, chunk: fl.FlightStreamChunk) -> None:
    header = parse(chunk.app_metadata.to_pybytes())
    count = chunk.data.num_rows
    numbers = [header["token"], header["now_us"], None]
    columns = [chunk.data.column("id"), *(pa.array([n] * count, pa.int64()) for n in numbers)]
    batch = pa.RecordBatch.from_arrays(columns, schema=_RETURNS)
    writer.write_with_metadata(batch, dump({"op": "ack", "request": 1}))
