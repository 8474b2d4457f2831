"""A transport whose broker is the test itself, and a clock that the test moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.client.transport import Arrived, Content, OnlyShard
from fasti.core.layout import Layout
from fasti.errors import FastiError, Unavailable
from fasti.model import TopicSettings
from fasti.protocol.problems import error_to_json
from fasti.protocol.schemas import LEASED
from fasti.runtime import Runtime, SystemRuntime

PATIENCE_S = 20.0


def eventually(condition: Callable[[], Any]) -> Any:
    """Waits until something is so; a test fails if it never is."""
    until = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.001)
    return found


class FakeClock:
    """Stands still until the test moves it on."""

    unsure_us = 0

    def __init__(self, now_us: int = 1_000_000) -> None:
        self.at_us = now_us
        self._listeners: list[Callable[[], None]] = []

    def now_us(self) -> int:
        return self.at_us

    def seconds_until(self, at_us: int) -> float:
        return 0.0 if at_us <= self.at_us else float("inf")

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(moved)
        return lambda: self._listeners.remove(moved)

    def move_to(self, at_us: int) -> None:
        self.at_us = at_us
        for moved in list(self._listeners):
            moved()


def payloads_of(content: Content) -> list[bytes]:
    """Of a batch, or of a message that was written alone."""
    if content is None:
        return []
    if isinstance(content, bytes):
        return [content]
    found: list[bytes] = content.column("payload").to_pylist()
    return found


class FakeStream:
    """What was written lies in `sent`; the test answers by the callbacks."""

    def __init__(self, transport: FakeTransport, descriptor: dict[str, Any]) -> None:
        self.transport = transport
        self.descriptor = descriptor
        self.sent: list[tuple[dict[str, Any], pa.RecordBatch | None]] = []
        self.broken = False
        self.finished = False
        self.on_send: Arrived | None = None
        self.receipt: Callable[[dict[str, Any]], None] = lambda header: None
        self.arrived: Arrived = lambda header, content: None
        self.ended: Callable[[FastiError | None], None] = lambda error: None
        self._number = 0
        self._over = False

    def send(self, metadata: dict[str, Any], content: Content = None) -> None:
        if self.broken:
            raise Unavailable("the connection was lost")
        self.sent.append((metadata, content))
        if self.on_send is not None:
            self.on_send(metadata, content)

    def finish(self) -> None:
        self.finished = True
        self.end(None)

    def cancel(self) -> None:
        self.end(None)

    def end(self, error: FastiError | None) -> None:
        if not self._over:
            self._over = True
            self.ended(error)

    # For producers

    def rows(self) -> list[bytes]:
        return [payload for _, content in list(self.sent) for payload in payloads_of(content)]

    def answer(self, count: int, first_id: int = 1, **more: Any) -> None:
        """A receipt for a batch in which all is well."""
        runs = {"status": [["ok", count]], "ids": [[first_id, count]], "versions": [[1, count]]}
        self.tell({**runs, **more})

    def refuse(self, error: FastiError) -> None:
        self.tell({"error": error_to_json(error)})

    def tell(self, header: dict[str, Any]) -> None:
        self.receipt({**header, "batch": self._number})
        self._number += 1

    def lose(self) -> None:
        """The connection breaks."""
        self.broken = True
        self.end(Unavailable("gone"))

    # For consumers

    def of(self, op: str) -> list[tuple[dict[str, Any], pa.RecordBatch | None]]:
        return [(header, batch) for header, batch in list(self.sent) if header["op"] == op]

    def lease(
        self, token: int, ids: Sequence[int], due_us: Sequence[int], attempts: int = 1
    ) -> None:
        count = len(ids)
        columns = {
            "id": np.array(ids),
            "due_us": np.array(due_us),
            "version": np.ones(count, dtype=np.int64),
            "attempts": np.full(count, attempts, dtype=np.int32),
            "priority": np.zeros(count, dtype=np.int32),
            "last_reason": pa.nulls(count, pa.string()),
            "expires_us": pa.nulls(count, pa.int64()),
            "subject": pa.nulls(count, pa.string()),
            "created_us": np.zeros(count, dtype=np.int64),
            "key": pa.nulls(count, pa.string()),
            "headers": pa.nulls(count, LEASED.field("headers").type),
            "content_type": pa.nulls(count, pa.string()),
            "payload": pa.array([b"%d" % each for each in ids], type=pa.binary()),
        }
        arrays = [pa.array(columns[field.name], type=field.type) for field in LEASED]
        batch = pa.RecordBatch.from_arrays(arrays, schema=LEASED)
        now_us = self.transport.clock.at_us
        header = {"kind": "leased", "token": token, "now_us": now_us, "leased_us": now_us}
        self.arrived(header, batch)

    def outcomes(self, request: int, status: list[list[Any]]) -> None:
        count = sum(each for _, each in status)
        now_us = self.transport.clock.at_us
        header = {"kind": "outcomes", "request": request, "now_us": now_us}
        self.arrived({**header, "status": status, "versions": [[1, count]]}, None)

    def accept_all(self) -> None:
        """From now on heartbeats and returns are answered at once."""

        def answer(header: dict[str, Any], batch: pa.RecordBatch | None) -> None:
            if header["op"] == "heartbeat":
                beat = {"kind": "heartbeat", "request": header["request"], "held": 0}
                self.arrived({**beat, "now_us": self.transport.clock.at_us}, None)
            elif batch is not None:
                self.outcomes(header["request"], [["ok", batch.num_rows]])

        self.on_send = answer


class FakeTransport(OnlyShard):
    """Opens fake streams and writes down calls. `on_open` may prepare a stream, or raise."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.runtime: Runtime = SystemRuntime()
        self.timeout_s = 30.0
        self.on_network = False
        self.streams: list[FakeStream] = []
        self.calls: list[tuple[str, dict[str, Any], list[pa.RecordBatch]]] = []
        self.timeouts: list[float | None] = []
        self.on_open: Callable[[FakeStream], None] | None = None
        self.settings = TopicSettings(lease_us=30_000_000)
        self.closed = False
        self._lock = threading.Lock()

    def call(
        self,
        action: str,
        header: dict[str, Any] | None = None,
        parts: Sequence[pa.RecordBatch] = (),
        timeout: float | None = None,
    ) -> tuple[dict[str, Any], list[pa.Table]]:
        self.calls.append((action, header or {}, list(parts)))
        self.timeouts.append(timeout)
        if action in ("topic", "create_topic"):
            return {"settings": self.settings.to_dict(), "counts": {}}, []
        rows = parts[0].num_rows if parts else 0
        return {"status": [["ok", rows]], "ids": [[1, rows]], "versions": [[1, rows]]}, []

    def produce(self, descriptor: Any, schema: Any, receipt: Any, ended: Any) -> FakeStream:
        stream = FakeStream(self, descriptor)
        stream.receipt, stream.ended = receipt, ended
        return self._opened(stream)

    def consume(self, descriptor: Any, arrived: Any, ended: Any) -> FakeStream:
        stream = FakeStream(self, descriptor)
        stream.arrived, stream.ended = arrived, ended
        return self._opened(stream)

    def _opened(self, stream: FakeStream) -> FakeStream:
        if self.on_open is not None:
            self.on_open(stream)
        with self._lock:
            self.streams.append(stream)
        return stream

    def read(self, ticket: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def plan(self, descriptor: dict[str, Any]) -> list[dict[str, Any]]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

    # For tests

    def stream(self, number: int = 0) -> FakeStream:
        """A stream, as soon as it was opened."""
        return eventually(lambda: len(self.streams) > number and self.streams[number])


class FakeShards(FakeTransport):
    """Several fake shards, each with its own clock and streams; all topics have `layout`."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.shard_count = layout.shards
        self.shards = [FakeTransport() for _ in range(layout.shards)]
        self.layout_now = layout
        self.layouts_asked = 0
        self._known: Layout | None = None

    def shard(self, number: int) -> FakeTransport:
        return self.shards[number]

    def layout(self, topic: str) -> Layout:
        if self._known is None:
            self.layouts_asked += 1
            self._known = self.layout_now
        return self._known

    def forget_layout(self, topic: str) -> None:
        self._known = None
