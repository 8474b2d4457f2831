"""RabbitMQ: a message waits in a queue with its own TTL, and its dead-letter exchange is the work queue.

A TTL takes effect only at the head of its queue, so messages come in due order only if they were sent
in it. A waiting message can't be looked at, moved or removed. Confirms are awaited for every message.
"""

from __future__ import annotations

import math
import subprocess
from array import array
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.peers import client as peers
from benchmarks.peers.server import Server as BaseServer
from benchmarks.peers.server import free_port, output

_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class Server(BaseServer):
    """One node, without plugins, and its own name server (epmd), both on the loopback."""

    package = program = "rabbitmq-server"

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self._names_port, self._distribution_port = free_port(), free_port()
        self._names: subprocess.Popen[bytes] | None = None

    @classmethod
    def executable(cls) -> str | None:
        # Not the wrapper in /usr/sbin: that one insists on the system's own node.
        return str(_PROGRAM) if _PROGRAM.exists() else None

    @classmethod
    def version(cls) -> str:
        words = output("dpkg-query", "-W", "-f", "${Version}", cls.package)
        return words or "unknown"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}:{self.settings['queue_type']}"

    def environment(self) -> Mapping[str, str]:
        place = self.directory
        return {
            "HOME": str(place),
            "RABBITMQ_NODENAME": f"peers{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_PID_FILE": str(place / "pid"),
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def prepare(self) -> None:
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "rabbitmq.conf").write_text("log.console.level = warning\n")
        if self._names is None:
            self._names = subprocess.Popen(
                ["epmd", "-port", str(self._names_port), "-address", "127.0.0.1"],
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )

    def command(self) -> list[str]:
        return [str(self.executable())]

    def close(self) -> None:
        super().close()
        if self._names is not None:
            self._names.terminate()
            self._names.wait()


def connect(address: str, queue: str) -> Client:
    """By pika."""
    import pika

    host, port, kind = address.split(":")
    return Client(pika.ConnectionParameters(host, int(port), heartbeat=0), queue, kind)


class Client(peers.Client):
    """A blocking connection, and one with an event loop for batches."""

    def __init__(self, parameters: Any, queue: str, kind: str) -> None:
        import pika

        self._parameters, self._queue, self._waiting = parameters, queue, f"{queue}.waiting"
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        self._channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
        if kind == "quorum":
            letters |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        arguments = {"x-queue-type": kind, **letters}
        self._channel.queue_declare(self._waiting, durable=True, arguments=arguments)
        self._channel.confirm_delivery()
        self._publisher: _Publisher | None = None

    def schedule(self, payload: bytes, due_us: int) -> Any:
        self._channel.basic_publish("", *self._routed(payload, due_us))

    def schedule_batch(self, column: Any, dues_us: array[int]) -> None:
        if self._publisher is None:
            self._publisher = _Publisher(self._parameters)
        rows = zip(column, dues_us, strict=True)
        self._publisher.publish([self._routed(payload, due_us) for payload, due_us in rows])

    def _routed(self, payload: bytes, due_us: int) -> tuple[str, bytes, Any]:
        import pika

        wait_ms = math.ceil((due_us - peers.now_us()) / 1000)
        if wait_ms <= 0:
            return self._queue, payload, pika.BasicProperties(delivery_mode=2)
        later = pika.BasicProperties(delivery_mode=2, expiration=str(wait_ms))
        return self._waiting, payload, later

    def consume(self, handler: peers.Handler, idle_s: float, batch: int = 1) -> None:
        for method, _, body in self._channel.consume(self._queue, inactivity_timeout=idle_s):
            if method is None:
                break
            enough = handler(body)
            self._channel.basic_ack(method.delivery_tag)
            if enough:
                break
        self._channel.cancel()

    def consume_batches(self, handler: peers.BatchHandler, count: int, idle_s: float) -> None:
        self._channel.basic_qos(prefetch_count=min(2 * count, 65_535))
        taken, tag, idle = 0, 0, 0.0
        for method, _, _ in self._channel.consume(self._queue, inactivity_timeout=0.02):
            if method is not None:
                taken, tag, idle = taken + 1, method.delivery_tag, 0.0
                if taken < count:
                    continue
            if taken:
                self._channel.basic_ack(tag, multiple=True)
                if handler(taken):
                    break
                taken = 0
            else:
                idle += 0.02
                if idle >= idle_s:
                    break
        self._channel.cancel()

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
        with suppress(Exception):
            self._connection.close()


class _Publisher:
    """Many publishes at a time, as pika's example of an asynchronous publisher does it."""

    def __init__(self, parameters: Any) -> None:
        import pika

        self._channel: Any = None
        self._published = 0
        self._unconfirmed: set[int] = set()
        self._refused: list[str] = []
        self._connection = pika.SelectConnection(
            parameters, on_open_callback=lambda made: made.channel(on_open_callback=self._opened)
        )
        # Until the channel answers that it will confirm.
        self._connection.ioloop.start()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, lambda _: self._connection.ioloop.stop())

    def _confirmed(self, frame: Any) -> None:
        if frame.method.NAME != "Basic.Ack":
            self._refused.append(str(frame))
        # A confirm for multiple names the last of them.
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self._unconfirmed = {number for number in self._unconfirmed if number > tag}
        else:
            self._unconfirmed.discard(tag)
        if not self._unconfirmed:
            self._connection.ioloop.stop()

    def publish(self, messages: list[tuple[str, bytes, Any]]) -> None:
        """Returns when all are confirmed."""
        first = self._published + 1
        self._published += len(messages)
        self._unconfirmed = set(range(first, self._published + 1))
        for queue, body, properties in messages:
            self._channel.basic_publish("", queue, body, properties)
        self._connection.ioloop.start()
        assert not self._refused, self._refused[0]

    def close(self) -> None:
        self._connection.add_on_close_callback(lambda *_: self._connection.ioloop.stop())
        self._connection.close()
        self._connection.ioloop.start()
