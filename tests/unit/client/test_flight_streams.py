"""Open Flight calls whose other side hangs, and ends that come at the worst moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from fasti.client.address import parse_address
from fasti.client.flight_streams import ProduceStream
from fasti.client.flight_transport import FlightTransport
from fasti.errors import Closed, FastiError, Unavailable
from tests.unit.client.fakes import eventually

BATCH = pa.RecordBatch.from_arrays([pa.array([b"x"])], ["payload"])


class Writer:
    """As much of a call's writer as a stream needs; `taking` is whether the broker reads."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.taking, self.inside = threading.Event(), threading.Event()
        self.taking.set()

    def write_with_metadata(self, batch: Any, body: Any) -> None:
        self.inside.set()
        assert self.taking.wait(20)
        self.said.append("batch")

    def begin(self, schema: Any) -> None:
        self.said.append("begin")

    def done_writing(self) -> None:
        self.said.append("done")

    def close(self) -> None:
        self.said.append("close")


class Reader:
    """The other direction: nothing comes until the end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.cancelled = False

    def read(self) -> None:
        assert self.over.wait(20)

    def cancel(self) -> None:
        self.cancelled = True
        self.over.set()

    def read_chunk(self) -> None:
        assert self.over.wait(20)
        raise StopIteration


def test_an_end_does_not_wait_for_a_write_that_waits_for_the_broker() -> None:
    """Else closing a producer would take as long as its broker hangs."""
    writer, reader = Writer(), Reader()
    ended: list[FastiError | None] = []
    stream = ProduceStream(writer, reader, lambda header: None, ended.append)
    stream.start("test")
    writer.taking.clear()
    sending = threading.Thread(target=lambda: stream.send({}, BATCH), daemon=True)
    sending.start()
    assert writer.inside.wait(20)
    ending = threading.Thread(target=stream.finish, daemon=True)
    ending.start()
    ending.join(10)
    assert not ending.is_alive()
    with_write = list(writer.said)
    writer.taking.set()
    sending.join(20)
    # Two at once in one call would abort the process.
    assert (with_write, writer.said) == ([], ["batch", "done"])
    stream.finish()
    with pytest.raises(Unavailable):
        stream.send({}, BATCH)
    reader.over.set()
    stream.join(20)
    assert writer.said == ["batch", "done", "close"]
    assert ended == [None]


class Broker:
    """A Flight client; while it opens a call somebody closes the transport."""

    def __init__(self, transport: FlightTransport) -> None:
        self.writer, self.reader = Writer(), Reader()
        self._transport = transport
        self.closing = threading.Thread(target=transport.close, daemon=True)

    def open(self, *_: object) -> tuple[Writer, Reader]:
        self.closing.start()
        eventually(self._transport._closed.is_set)
        return self.writer, self.reader

    do_put = do_exchange = open


@pytest.mark.parametrize("kind", ["produce", "consume"])
def test_a_stream_that_is_opened_while_the_client_is_closed(kind: str) -> None:
    """Nobody would end it any more, nor its thread."""
    transport = FlightTransport(parse_address("fasti://127.0.0.1:1"))
    broker = Broker(transport)
    transport._client = lambda purpose: (broker, 0)  # type: ignore[method-assign,assignment,return-value]
    transport.sample_clock = lambda *_: None  # type: ignore[method-assign]
    opening: dict[str, Callable[[], object]] = {
        "produce": lambda: transport.produce({}, BATCH.schema, lambda _: None, lambda _: None),
        "consume": lambda: transport.consume({}, lambda _, __: None, lambda _: None),
    }
    with pytest.raises(Closed):
        opening[kind]()
    broker.closing.join(20)
    assert not broker.closing.is_alive()
    assert not len(transport._streams)
    assert broker.reader.cancelled if kind == "consume" else broker.writer.said == ["done"]
