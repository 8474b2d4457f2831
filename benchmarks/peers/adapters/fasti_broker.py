"""Fasti: `fasti serve` with default settings, and its SDK over the loopback."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.peers import client as peers
from benchmarks.peers.server import Server as BaseServer

_WINDOW = 16


class Server(BaseServer):
    """A durable broker: every answer comes after an fdatasync."""

    program = "fasti"

    @classmethod
    def executable(cls) -> str | None:
        return sys.executable

    @classmethod
    def version(cls) -> str:
        return version("fasti")

    @property
    def address(self) -> str:
        return f"fasti://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        data, listen = str(self.directory / "data"), f"127.0.0.1:{self.port}"
        serve = [sys.executable, "-m", "fasti", "serve"]
        return [*serve, "--data", data, "--listen", listen, "--http", "off"]


def connect(address: str, queue: str) -> Client:
    """By the SDK, with its defaults."""
    import fasti

    client = fasti.connect(address)
    client.create_topic(queue, lease=f"{peers.LEASE_S}s")
    return Client(client, queue)


class Client(peers.Client):
    """One client of the SDK. Its producer gathers, so one connection is enough for many sends."""

    lanes = 1

    def __init__(self, client: Any, topic: str) -> None:
        self._client, self._topic = client, topic
        self._producer = client.producer(topic)
        self._messages = client.messages(topic)

    def schedule(self, payload: bytes, due_us: int) -> Any:
        due = {"due": due_us} if due_us else {}
        return self._producer.send(payload, **due).result().id

    def post(self, payload: bytes) -> None:
        self._producer.send(payload)

    def flush(self) -> None:
        self._producer.flush()

    def column(self, payloads: list[bytes]) -> Any:
        import pyarrow as pa

        return pa.array(payloads, type=pa.binary())

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        assert self._send(column, dues_us).result().all_ok

    def schedule_stream(self, batches: Iterable[tuple[Any, array[int]]]) -> None:
        waiting: deque[Any] = deque()
        for column, dues_us in batches:
            waiting.append(self._send(column, dues_us))
            if len(waiting) > _WINDOW:
                assert waiting.popleft().result().all_ok
        while waiting:
            assert waiting.popleft().result().all_ok

    def schedule_many(self, payloads: list[bytes], dues_us: array[int]) -> Sequence[Any]:
        ids: list[int] = self._send(self.column(payloads), dues_us).result().ids.tolist()
        return ids

    def _send(self, column: Any, dues_us: array[int]) -> Any:
        import numpy as np

        due = np.frombuffer(dues_us, dtype=np.int64)
        return self._producer.send_batch(column, due=due, wait=False)

    def cancel(self, handle: Any) -> None:
        assert self._messages.cancel(id=handle).status == "ok"

    def cancel_many(self, handles: Sequence[Any]) -> None:
        assert self._messages.cancel(id=handles).all_ok

    def move(self, handle: Any, due_us: int) -> None:
        assert self._messages.move(id=handle, due=due_us).status == "ok"

    def move_many(self, handles: Sequence[Any], due_us: int) -> None:
        assert self._messages.move(id=handles, due=due_us).all_ok

    def consume(self, handler: peers.Handler, idle_s: float, batch: int = 1) -> None:
        with self._client.consumer(self._topic, timeout=idle_s) as consumer:
            for message in consumer:
                enough = handler(message.payload)
                message.ack()
                if enough:
                    break
            consumer.flush()

    def consume_batches(self, handler: peers.BatchHandler, count: int, idle_s: float) -> None:
        with self._client.consumer(self._topic, prefetch=8 * count, timeout=idle_s) as consumer:
            for batch in consumer.batches(count, wait="20ms"):
                batch.ack()
                if handler(len(batch)):
                    break
            consumer.flush()

    def close(self) -> None:
        self._client.close()
