"""A client written from docs/protocol.md alone: pyarrow.flight, numpy, json and struct.

It shares no code with the broker or the SDK on purpose: where the broker and the page disagree,
the tests that use this say so. Each class belongs to one thread; a stream reads in a thread of its
own, so that a test can wait for an answer for as long as it likes and no longer.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.ipc
from xxhash import xxh64_intdigest

VERSION = 1
WAIT_S = 60.0
HEADERS = pa.map_(pa.string(), pa.string())
RETURNED = pa.schema([(name, pa.int64()) for name in ("id", "token", "started_us", "due_us")])
COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "key": pa.string(),
    "version": pa.int64(),
    "token": pa.int64(),
    "started_us": pa.int64(),
    "due_us": pa.int64(),
    "delay_us": pa.int64(),
    "expires_us": pa.int64(),
    "expires_after_us": pa.int64(),
    "payload": pa.binary(),
    "headers": HEADERS,
    "content_type": pa.string(),
    "priority": pa.int32(),
    "subject": pa.string(),
    # Of answers to requests.
    "to": pa.string(),
    "deadline_us": pa.int64(),
}

Header = dict[str, Any]


class Refused(Exception):
    """An error of the protocol, wherever it stood: in a reply, a receipt, a session or a status."""

    def __init__(self, error: Header) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.retryable: bool = error["retryable"]
        self.retry_after_us: int | None = error["retry_after_us"]
        self.details: Header = error["details"]


@dataclass
class Outcome:
    """What became of one row."""

    status: str
    id: int
    version: int
    at_us: int | None = None
    by: str | None = None


@dataclass
class Chunk:
    """What the broker wrote in a session: metadata, and rows where it has some."""

    metadata: Header
    rows: list[Header] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.metadata["kind"]


def rows(**columns: Any) -> pa.RecordBatch:
    """A batch of the columns that the page names, with the types that it gives them."""
    arrays = [pa.array(values, COLUMNS[name]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def pack(header: Header, parts: Sequence[pa.RecordBatch | Header] = ()) -> bytes:
    """An envelope. A part that is an object of columns goes into the header."""
    bodies: list[bytes] = []
    places: list[int | Header] = []
    for part in parts:
        if isinstance(part, dict):
            places.append(part)
            continue
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
        bodies.append(sink.getvalue().to_pybytes())
        places.append(len(bodies[-1]))
    if places:
        header = {**header, "parts": places}
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + b"".join(bodies)


def unpack(body: bytes) -> tuple[Header, list[pa.Table]]:
    """The header and the parts of an envelope."""
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    at, tables = 4 + length, []
    for size in header.get("parts", []):
        tables.append(pa.ipc.open_stream(body[at : at + size]).read_all())
        at += size
    assert at == len(body), "the parts fill the body"
    return header, tables


def expand(outcomes: Header) -> list[Outcome]:
    """The rows that a reply's runs stand for; in a session they have no ids (0 here)."""
    status = [word for word, count in outcomes["status"] for _ in range(count)]
    ids = [first + n for first, count in outcomes.get("ids", []) for n in range(count)]
    versions = [value for value, count in outcomes["versions"] for _ in range(count)]
    at_us, by = outcomes.get("at_us") or {}, outcomes.get("by") or {}
    return [
        Outcome(word, id_, version, at_us.get(str(row)), by.get(str(row)))
        for row, (word, id_, version) in enumerate(
            zip(status, ids or [0] * len(status), versions, strict=True)
        )
    ]


def statuses(outcomes: Header | list[Outcome]) -> list[str]:
    """Only the words."""
    found = expand(outcomes) if isinstance(outcomes, dict) else outcomes
    return [outcome.status for outcome in found]


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key, as the page has it."""
    return xxh64_intdigest(key.encode()) % partitions


def partition_of_id(id_: int) -> int:
    """The partition in an id: the upper 12 of its 63 bits."""
    return id_ >> 51


class Client:
    """A connection to a broker."""

    def __init__(self, address: str, token: str | None = None) -> None:
        location = address if "://" in address else f"grpc://{address}"
        limit = 80 << 20
        self.flight = fl.FlightClient(
            location,
            generic_options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", limit),
            ],
        )
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.flight.close()

    def options(self, timeout_s: float = WAIT_S) -> fl.FlightCallOptions:
        return fl.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    def raw_call(self, action: str, body: bytes) -> bytes:
        """An action, with any bytes for a body."""
        results = list(self.flight.do_action(fl.Action(action, body), self.options()))
        assert len(results) == 1, "an action has one result"
        return results[0].body.to_pybytes()

    def reply(
        self,
        action: str,
        header: Header | None = None,
        *parts: pa.RecordBatch | Header,
        version: Any = 1,
    ) -> tuple[Header, list[pa.Table]]:
        """An action's reply. Raises its error."""
        body = pack({"version": version, **(header or {})}, parts)
        found, tables = unpack(self.raw_call(action, body))
        if "error" in found:
            assert not tables, "an error comes alone"
            raise Refused(found["error"])
        return found, tables

    def call(
        self, action: str, header: Header | None = None, *parts: pa.RecordBatch | Header
    ) -> Header:
        """The header of an action's reply."""
        return self.reply(action, header, *parts)[0]

    def outcomes(self, action: str, header: Header, *parts: pa.RecordBatch) -> list[Outcome]:
        """What became of the rows of an action."""
        return expand(self.call(action, header, *parts))

    def get(self, topic: str, target: pa.RecordBatch, **header: Any) -> list[Header]:
        """The messages that a target names."""
        _, (table,) = self.reply("get", {"topic": topic, **header}, target)
        return table.to_pylist()

    def read(self, ticket: Header | bytes) -> pa.Table:
        """What a ticket stands for."""
        body = ticket if isinstance(ticket, bytes) else json.dumps(ticket).encode()
        with status_as_error():
            return self.flight.do_get(fl.Ticket(body), self.options()).read_all()

    def list(self, topic: str, **filters: Any) -> list[Header]:
        """The messages of a topic."""
        ticket = {"version": VERSION, "call": "list", "topic": topic, **filters}
        return self.read(ticket).to_pylist()

    def plan(self, descriptor: Header | bytes) -> list[bytes]:
        """The tickets of a read, an endpoint each."""
        body = descriptor if isinstance(descriptor, bytes) else json.dumps(descriptor).encode()
        with status_as_error():
            info = self.flight.get_flight_info(
                fl.FlightDescriptor.for_command(body), self.options()
            )
        return [endpoint.ticket.ticket for endpoint in info.endpoints]

    def produce(self, schema: pa.Schema, **descriptor: Any) -> ProduceStream:
        """Opens a stream of batches of this schema."""
        command = json.dumps({"version": VERSION, "call": "produce", **descriptor}).encode()
        return ProduceStream(*self.open_put(command, schema))

    def open_put(self, command: bytes, schema: pa.Schema) -> tuple[Any, Any]:
        descriptor = fl.FlightDescriptor.for_command(command)
        return self.flight.do_put(descriptor, schema, self.options())

    def send(
        self, topic: str, *batches: pa.RecordBatch, metadata: Header | None = None, **more: Any
    ) -> list[list[Outcome]]:
        """Produces batches of one schema and gives the outcomes of each. Raises an error."""
        stream = self.produce(batches[0].schema, topic=topic, **more)
        for batch in batches:
            stream.write(batch, metadata)
        return [expand(receipt) for receipt in stream.finish()]

    def consume(
        self, topic: str, consumer: Any, schema: pa.Schema = RETURNED, **more: Any
    ) -> Session:
        """Opens a session."""
        command = {"version": VERSION, "call": "consume", "topic": topic, "consumer": consumer}
        command |= more
        return Session(*self.open_exchange(json.dumps(command).encode()), schema)

    def calls(self, schema: pa.Schema | None = None, **more: Any) -> CallStream:
        """Opens a stream of calls."""
        command = json.dumps({"version": VERSION, "call": "calls", **more}).encode()
        return CallStream(*self.open_exchange(command), schema or pa.schema([]))

    def open_exchange(self, command: bytes) -> tuple[Any, Any]:
        descriptor = fl.FlightDescriptor.for_command(command)
        return self.flight.do_exchange(descriptor, self.options(600.0))


class status_as_error:  # noqa: N801 (reads as a verb in a with statement)
    """Turns a gRPC status that carries an error of the protocol into `Refused`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        refused = refusal(error)
        if refused is not None:
            raise refused from error


def refusal(error: BaseException | None) -> Refused | None:
    """The error of the protocol that a status carries, if it does."""
    info = getattr(error, "extra_info", None)
    if not info:
        return None
    found = Refused(json.loads(bytes(info)))
    assert str(error).startswith(found.code + ":"), str(error)
    return found


class ProduceStream:
    """Batches out, receipts in. Raises the error with which a stream was ended."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self._writer, self._reader = writer, reader
        self.written = 0

    def write(self, batch: pa.RecordBatch, metadata: Header | bytes | None = None) -> None:
        """Sends a batch; doesn't wait for its receipt."""
        self.written += 1
        with status_as_error():
            if metadata is None:
                self._writer.write_batch(batch)
                return
            raw = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
            self._writer.write_with_metadata(batch, raw)

    def receipt(self) -> Header:
        """The next receipt, errors and all."""
        with status_as_error():
            buffer = self._reader.read()
            if buffer is None:
                # pyarrow tells here why a stream ended.
                self._writer.close()
        assert buffer is not None, "the stream ended without a receipt"
        return json.loads(buffer.to_pybytes())

    def ask(self, batch: pa.RecordBatch, metadata: Header | bytes | None = None) -> Header:
        """Sends a batch and waits for its receipt."""
        self.write(batch, metadata)
        return self.receipt()

    def receipts(self, count: int) -> list[Header]:
        return [self.receipt() for _ in range(count)]

    def finish(self) -> list[Header]:
        """Ends the stream: the receipts nobody read. Raises the first error among them."""
        left = self.end()
        for receipt in left:
            if "error" in receipt:
                raise Refused(receipt["error"])
        return left

    def end(self) -> list[Header]:
        """Ends the stream: the receipts nobody read, errors and all."""
        left = []
        with status_as_error():
            self._writer.done_writing()
            while (buffer := self._reader.read()) is not None:
                left.append(json.loads(buffer.to_pybytes()))
            self._writer.close()
        return left


class CallStream:
    """A stream of calls: requests out, answers in."""

    def __init__(self, writer: Any, reader: Any, schema: pa.Schema) -> None:
        self._writer, self._reader = writer, reader
        with status_as_error():
            writer.begin(schema)
            self.actions: list[str] = json.loads(self._read())["actions"]

    def _read(self) -> bytes:
        chunk = self._reader.read_chunk()
        assert chunk.data is None, "all that travels is metadata"
        return chunk.app_metadata.to_pybytes()

    def write(self, action: Any, header: Header, *parts: pa.RecordBatch | Header) -> None:
        """Sends a request; a part may be columns, which go into the header."""
        self.write_raw(pack({"version": VERSION, "action": action, **header}, parts))

    def write_raw(self, body: bytes) -> None:
        self._writer.write_metadata(body)

    def answer(self) -> tuple[Header, list[pa.Table]]:
        """The next answer. Raises its error."""
        with status_as_error():
            found, tables = unpack(self._read())
        if "error" in found:
            assert not tables, "an error comes alone"
            raise Refused(found["error"])
        return found, tables

    def call(self, action: Any, header: Header, *parts: pa.RecordBatch | Header) -> Header:
        """A request, and the header of its answer."""
        self.write(action, header, *parts)
        return self.answer()[0]

    def finish(self) -> None:
        """No more requests: what is left can still be read, then the stream is over."""
        self._writer.done_writing()

    def is_over(self) -> bool:
        """Whether the broker has ended it, and without an error; waits for it."""
        try:
            self._reader.read_chunk()
        except StopIteration:
            self._writer.close()
            return True
        return False

    def cancel(self) -> None:
        self._reader.cancel()
        # Says again that it was cancelled.
        with suppress(fl.FlightError, pa.ArrowException):
            self._writer.close()


class Session:
    """A consumer's session. What the broker writes is read by a thread of its own."""

    def __init__(self, writer: Any, reader: Any, schema: pa.Schema = RETURNED) -> None:
        self._writer, self._reader = writer, reader
        self._arrived: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
        self._requests = 0
        # What came while somebody waited for something else.
        self._kept: list[Chunk] = []
        # Every token by its message's id, as they arrive.
        self.tokens: dict[int, int] = {}
        self.schema: pa.Schema | None = None
        with status_as_error():
            writer.begin(schema)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:
                chunk = self._reader.read_chunk()
                metadata = json.loads(chunk.app_metadata.to_pybytes())
                data = chunk.data
                if data is not None:
                    self.schema = data.schema
                self._arrived.put(Chunk(metadata, [] if data is None else data.to_pylist()))
        except StopIteration:
            self._arrived.put(None)
        except BaseException as error:
            self._arrived.put(error)

    # Writing

    def write(self, metadata: Header | bytes, batch: pa.RecordBatch | None = None) -> None:
        raw = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
        with status_as_error():
            if batch is None:
                self._writer.write_metadata(raw)
            else:
                self._writer.write_with_metadata(batch, raw)

    def credit(self, count: Any) -> None:
        self.write({"op": "credit", "count": count})

    def ask(self, op: str, batch: pa.RecordBatch | None = None, **fields: Any) -> Header:
        """A request and its answer. Raises the error that it was answered with."""
        self._requests += 1
        self.write({"op": op, "request": self._requests, **fields}, batch)
        number = self._requests
        answer = self.expect(lambda chunk: chunk.metadata.get("request") == number).metadata
        if answer["kind"] == "error":
            raise Refused(answer["error"])
        return answer

    def use(self, op: str, ids: Sequence[int], due_us: Any = None, **fields: Any) -> list[Outcome]:
        """Ack, nack, reject, release or extend of messages that came here."""
        tokens = [self.tokens[id_] for id_ in ids]
        part = returned(ids, tokens, due_us=due_us or [None] * len(ids))
        answer = self.ask(op, part, **fields)
        assert answer["kind"] == "outcomes"
        return expand(answer)

    def finish(self) -> list[Chunk]:
        """Ends the stream from this side: what still came."""
        self._writer.done_writing()
        left = [*self._kept, *iter(self._next, None)]
        self.join()
        return left

    def cancel(self) -> None:
        """Ends the call at once."""
        self._reader.cancel()
        self.join()

    def join(self) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the stream didn't end"

    # Reading

    def _next(self) -> Chunk | None:
        try:
            found = self._arrived.get(timeout=WAIT_S)
        except queue.Empty:
            raise AssertionError("nothing came from the broker") from None
        if isinstance(found, BaseException):
            raise refusal(found) or found
        if found is not None:
            self._check(found)
        return found

    def _check(self, chunk: Chunk) -> None:
        assert isinstance(chunk.metadata["now_us"], int), "everything carries the broker's clock"
        if chunk.kind == "leased":
            self.tokens.update((row["id"], chunk.metadata["token"]) for row in chunk.rows)

    def expect(self, fits: Callable[[Chunk], bool]) -> Chunk:
        """The first chunk that fits; what comes before it is kept."""
        for place, chunk in enumerate(self._kept):
            if fits(chunk):
                return self._kept.pop(place)
        while (found := self._next()) is not None:
            if fits(found):
                return found
            if found.kind == "error" and found.metadata.get("request") is None:
                raise Refused(found.metadata["error"])
            self._kept.append(found)
        raise AssertionError("the stream ended before that came")

    def leased(self, count: int) -> list[Header]:
        """The next `count` messages, each with the `token` under which it came."""
        got: list[Header] = []
        while len(got) < count:
            chunk = self.expect(lambda chunk: chunk.kind == "leased")
            got += [{**row, "token": chunk.metadata["token"]} for row in chunk.rows]
        assert len(got) == count, f"{len(got)} came and {count} were to"
        return got

    def take(self, count: int) -> list[Header]:
        """Gives credit and waits for as many messages."""
        self.credit(count)
        return self.leased(count)

    def pending(self) -> list[Chunk]:
        """What came and nobody asked for: everything up to the answer of a `clock`."""
        self.ask("clock")
        left, self._kept = self._kept, []
        return left

    def ended(self) -> Refused:
        """The error, without a request, with which the broker ended the session."""
        chunk = self.expect(
            lambda chunk: chunk.kind == "error" and chunk.metadata.get("request") is None
        )
        self._writer.done_writing()
        assert list(iter(self._next, None)) == [], "nothing comes after the end"
        self.join()
        return Refused(chunk.metadata["error"])

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._next, None)


def returned(
    ids: Sequence[int],
    tokens: Sequence[int],
    started_us: Sequence[int | None] | None = None,
    **due_us: Sequence[int | None],
) -> pa.RecordBatch:
    """Rows that give messages back: with `due_us` only where it is given."""
    return rows(id=ids, token=tokens, started_us=started_us or [None] * len(ids), **due_us)
