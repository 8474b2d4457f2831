"""Messages that travel alone, without a batch, between clients and a real broker, and bad ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from fasti.protocol.envelope import dump, join_row, parse, split_row
from fasti.protocol.schemas import LEASED, RETURNED, VERSION
from tests.integration.serve_rig import SEGMENTS

SCHEMA = pa.schema([("payload", pa.binary())])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SEGMENTS) as running:
        with fasti.connect(running.address) as client:
            client.create_topic("t")
        yield running


def bare(broker: BrokerProcess) -> flight.FlightClient:
    return flight.FlightClient(f"grpc://{broker.host}:{broker.port}")


def command(**fields: Any) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(dump({"version": VERSION, **fields}))


def end(writer: Any, reader: Any) -> None:
    """Raises what ended the stream."""
    reader.read()
    writer.close()


def read_all(reader: Any) -> None:
    while True:
        reader.read_chunk()


def test_what_is_sent_alone_is_all_there_after_a_kill(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        producer = client.producer("t")
        producer.send(b"", delay="1h").result()
        outcome = producer.send(
            b"a\0b", key="größe", content_type="text/plain", subject="a.b", delay="1h"
        ).result()
        refused = producer.send(b"x", key="größe").result()
        assert refused.status == "conflict"
        broker.kill()
        broker.start()
        found = client.messages("t").get(key="größe")
        assert (found["id"], found["payload"]) == (outcome.id, b"a\0b")
        assert (found["content_type"], found["subject"]) == ("text/plain", "a.b")
        assert client.messages("t").list().num_rows == 2
        # Delivered from the journal, and after a checkpoint from a block.
        client.messages("t").move(key="größe", delay="0s")
        with client.consumer("t") as consumer:
            message = next(consumer)
            assert (message.payload, message.key, message.subject) == (b"a\0b", "größe", "a.b")
            message.release()
        client.checkpoint()
        with client.consumer("t") as consumer:
            message = next(consumer)
            assert (message.payload, message.attempts) == (b"a\0b", 1)
            message.ack(wait=True)


def test_a_message_that_comes_alone_says_everything(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client, client.consumer("t") as consumer:
        messages = iter(consumer)
        producer = client.producer("t")
        for number in range(3):
            sent = producer.send(
                b"%d" % number, key=f"k{number}", content_type="c", expires="1h"
            ).result()
            message = next(messages)
            assert (message.id, message.payload) == (sent.id, b"%d" % number)
            assert (message.key, message.content_type, message.subject) == (f"k{number}", "c", None)
            assert (message.headers, message.priority, message.last_reason) == ({}, 0, None)
            assert message.expires is not None
            assert message.attempts == 1
            assert message.created <= message.due
            message.nack("again", delay="0s", wait=True)
            again = next(messages)
            assert (again.id, again.attempts, again.last_reason) == (sent.id, 2, "again")
            again.ack(wait=True)


@pytest.mark.one_shard
def test_rows_and_batches_are_handed_over_as_the_session_asks(broker: BrokerProcess) -> None:
    with fasti.connect(broker.address) as client:
        producer = client.producer("t")
        producer.send(b"hello", key="k").result()
        for rows in (True, False):
            given = {"topic": "t", "consumer": f"w{rows}", "rows": rows}
            writer, reader = bare(broker).do_exchange(command(call="consume", **given))
            with writer:
                writer.begin(RETURNED)
                writer.write_metadata(pa.py_buffer(dump({"op": "credit", "count": 1})))
                chunk = reader.read_chunk()
                text, payload = split_row(chunk.app_metadata.to_pybytes())
                header = parse(text)
                assert header["kind"] == "leased"
                if rows:
                    assert chunk.data is None
                    assert set(header["row"]) <= set(LEASED.names)
                    assert (header["row"]["key"], payload) == ("k", b"hello")
                    row = [{"id": header["row"]["id"], "token": header["token"]}]
                else:
                    assert payload is None
                    assert chunk.data.column("payload").to_pylist() == [b"hello"]
                    row = [{"id": chunk.data.column("id")[0].as_py(), "token": header["token"]}]
                back = pa.RecordBatch.from_pylist(row, schema=RETURNED)
                release = {"op": "release", "request": 1}
                writer.write_with_metadata(back, pa.py_buffer(dump(release)))
                assert parse(reader.read_chunk().app_metadata.to_pybytes())["kind"] == "outcomes"
                writer.done_writing()


@pytest.mark.one_shard
@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        (join_row({"row": {"due_us": "soon"}}, b"x"), "due_us"),
        (join_row({"row": {"nobody": 1}}, b"x"), "nobody"),
        (join_row({"row": []}, b"x"), "row"),
        (join_row({}, b"x"), "row"),
        (join_row({"row": {}, "stage": 3}, b"x"), "stage"),
        (join_row({"row": {}}, b"x" * ((1 << 20) + 1)), "payload_bytes_max"),
    ],
)
def test_a_bad_row_is_refused_by_its_receipt(
    broker: BrokerProcess, metadata: bytes, field: str
) -> None:
    writer, reader = bare(broker).do_put(command(call="produce", topic="t"), SCHEMA)
    writer.write_metadata(pa.py_buffer(metadata))
    receipt = json.loads(reader.read().to_pybytes())
    error = receipt["error"]
    assert (error["code"], error["details"]["field"]) == ("invalid_argument", field)
    writer.write_metadata(pa.py_buffer(join_row({"row": {}}, b"good")))
    assert json.loads(reader.read().to_pybytes())["status"] == [["ok", 1]]
    writer.close()


@pytest.mark.one_shard
@pytest.mark.parametrize("metadata", [b"\0", b"{\0x", b"[]\0x", b'{"row": {}}'])
def test_what_is_no_row_ends_the_stream(broker: BrokerProcess, metadata: bytes) -> None:
    writer, reader = bare(broker).do_put(command(call="produce", topic="t"), SCHEMA)
    writer.write_metadata(pa.py_buffer(metadata))
    with pytest.raises(flight.FlightError, match="invalid_argument"):
        end(writer, reader)


@pytest.mark.one_shard
def test_a_payload_beside_a_batch_and_one_that_is_returned_are_refused(
    broker: BrokerProcess,
) -> None:
    writer, reader = bare(broker).do_put(command(call="produce", topic="t"), SCHEMA)
    batch = pa.RecordBatch.from_pylist([{"payload": b"x"}], schema=SCHEMA)
    writer.write_with_metadata(batch, pa.py_buffer(join_row({"row": {}}, b"x")))
    with pytest.raises(flight.FlightError, match="in one message"):
        end(writer, reader)
    given = {"topic": "t", "consumer": "w"}
    writer, back = bare(broker).do_exchange(command(call="consume", **given))
    writer.begin(RETURNED)
    writer.write_metadata(pa.py_buffer(join_row({"op": "credit", "count": 1}, b"x")))
    with pytest.raises(flight.FlightError, match="has no payload"):
        read_all(back)
