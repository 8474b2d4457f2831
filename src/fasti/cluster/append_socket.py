"""A connection to NATS for one thing: to publish one message and wait for its answer, in the caller's thread.

A shard has one pack in flight, so an append needs no event loop: the caller writes to a socket and reads from
it. For a small pack that takes a quarter of the CPU and a third of the time that nats-py needs with
its loop's thread, and a server that is gone is known at once, by the end of the stream.

The rules:

- The server that leads the shard's stream is preferred, by its name: what another one takes it passes on.
- After anything unusual (no answer in time, an error, an end) the connection is closed. The next publish makes a
  new one, to another server first.
- A late answer to an earlier publish is passed over: each has a subject of its own for its answer.
- The server's pings are answered when the next publish comes; a connection that it gave up meanwhile is noticed
  before anything is written.

What a publish came to is told as by `NatsConnection.publish`. One thread at a time. `StreamAppends` is what others
use: it leaves to nats-py what only that can do.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fasti.cluster.nats import (
    LAST_SEQUENCE,
    LAST_SUBJECT_SEQUENCE,
    NatsConnection,
    NatsOptions,
    stored_sequence,
)
from fasti.errors import FastiError, TimedOut, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PORT = 4222
_READ_BYTES = 1 << 16
# A server that takes longer to answer a new connection is passed over, for this time.
_CONNECT_S = 0.2
# An answer has some hundred bytes; what is longer is none.
_ANSWER_BYTES_MAX = 1 << 20
# Which server leads the stream is good to know, and not worth waiting for.
_LOOK_S = 0.1


class StreamAppends:
    """Publishes to one stream, one message at a time; others wait. Any thread."""

    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self._connection, self._stream = connection, stream
        # The signature that a file of credentials asks for is nats-py's alone.
        signs = connection.options.credentials is not None
        self._socket = None if signs else AppendSocket(connection.options, self._leader)
        self._lock = threading.Lock()

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        timeout_s: float,
        *,
        last_sequence: int | None = None,
        last_subject_sequence: int | None = None,
    ) -> int:
        """As `NatsConnection.publish`, of a message that is given in parts."""
        last = {"last_sequence": last_sequence, "last_subject_sequence": last_subject_sequence}
        if self._socket is None:
            data = b"".join(parts)
            return self._connection.publish(subject, data, **last, timeout_s=timeout_s)
        named = zip((LAST_SEQUENCE, LAST_SUBJECT_SEQUENCE), last.values(), strict=True)
        headers = [(name, str(value)) for name, value in named if value is not None]
        with self._lock:
            return stored_sequence(self._socket.publish(subject, headers, parts, timeout_s))

    def _leader(self) -> str:
        state = self._connection.stream_state(self._stream, _LOOK_S)
        return "" if state is None else state.leader

    def close(self) -> None:
        """When nothing is published any more."""
        if self._socket is not None:
            self._socket.close()


class AppendSocket:
    """`leader` tells the name of the server that the connection should be made to; it may raise."""

    def __init__(self, options: NatsOptions, leader: Callable[[], str]) -> None:
        self._options, self._leader = options, leader
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._number = 0
        self._socket: socket.socket | None = None
        self._received = b""
        # The name of the server that it is connected to, and of the one that failed last.
        self._server = self._failed = ""
        # The servers' names, by URL, as far as they were met.
        self._servers: dict[str, str] = {}

    def publish(
        self,
        subject: str,
        headers: Sequence[tuple[str, str]],
        parts: Sequence[Buffer],
        timeout_s: float,
    ) -> bytes:
        """The answer. Raises `TimedOut` or `Unavailable`: it may have been stored, or not."""
        until = time.monotonic() + timeout_s
        try:
            self._make_ready(until)
            self._number += 1
            reply = f"{self._inbox}.{self._number}"
            self._write(subject, reply, headers, parts, until)
            answer = self._await_answer(reply, until)
            self._failed = ""
            return answer
        except (OSError, FastiError, ValueError) as error:
            self._failed = self._server
            self.close()
            if isinstance(error, TimeoutError):
                raise TimedOut("NATS did not answer in time") from error
            if isinstance(error, FastiError):
                raise
            raise Unavailable(f"the connection to NATS failed: {error!r}") from error

    def close(self) -> None:
        """The next publish connects again."""
        connection, self._socket, self._received = self._socket, None, b""
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def __del__(self) -> None:
        # A journal that could not be opened is dropped as it is.
        self.close()

    # Connecting

    def _make_ready(self, until: float) -> None:
        if self._socket is not None:
            try:
                self._look(self._socket)
                return
            except OSError:
                self.close()
        self._connect(until)

    def _look(self, connection: socket.socket) -> None:
        """Takes in what came since the last publish, which is no answer: after one that was not answered there
        is a new connection. Raises `OSError` if this one has ended.
        """
        connection.settimeout(0.0)
        try:
            while True:
                data = connection.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError("the server has closed the connection")
                self._received = (self._received + data)[-_READ_BYTES:]
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        received, self._received = self._received, b""
        if b"PING\r\n" in received:
            connection.settimeout(_CONNECT_S)
            connection.sendall(b"PONG\r\n")

    def _connect(self, until: float) -> None:
        """To the stream's leader, if that is known and did not fail; else to any server, the failed one last."""
        wanted = ""
        with suppress(FastiError):
            wanted = self._leader()
        if wanted == self._failed:
            wanted = ""
        spare, problem = "", OSError("no server answers")
        for url in self._in_order(wanted):
            try:
                self._open(url, min(until, time.monotonic() + _CONNECT_S))
            except (OSError, ValueError) as error:
                problem = error if isinstance(error, OSError) else OSError(repr(error))
                self.close()
                continue
            self._servers[url] = self._server
            if not wanted or self._server == wanted:
                return
            spare = url
            self.close()
        if not spare:
            raise problem
        self._open(spare, until)

    def _in_order(self, wanted: str) -> list[str]:
        """The servers' URLs: the wanted one first, if its name is known from earlier, the failed one last."""
        urls = list(self._options.urls)
        first = [url for url in urls if wanted and self._servers.get(url) == wanted]
        last = [url for url in urls if self._failed and self._servers.get(url) == self._failed]
        return first + [url for url in urls if url not in (*first, *last)] + last

    def _open(self, url: str, until: float) -> None:
        place = urlsplit(url if "//" in url else f"nats://{url}")
        host = place.hostname or "127.0.0.1"
        connection = socket.create_connection((host, place.port or _PORT), _left(until))
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        info = json.loads(self._line(until).removeprefix(b"INFO "))
        self._server = str(info.get("server_name", ""))
        options = self._options
        tls = options.tls
        if tls is None and (place.scheme == "tls" or info.get("tls_required")):
            tls = ssl.create_default_context()
        if tls is not None:
            self._socket = tls.wrap_socket(connection, server_hostname=host)
        hello = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "lang": "python",
            "version": "1",
            "name": "fasti-append",
            "user": options.user or place.username,
            "pass": options.password or place.password,
            "auth_token": options.token,
        }
        given = {name: value for name, value in hello.items() if value is not None}
        greeting = f"CONNECT {json.dumps(given)}\r\nSUB {self._inbox}.* 1\r\nPING\r\n"
        self._send([greeting.encode()], until)
        while (line := self._line(until)) != b"PONG":
            if line.startswith(b"-ERR"):
                raise ConnectionError(line.decode(errors="replace"))

    # Writing and reading

    def _write(
        self,
        subject: str,
        reply: str,
        headers: Sequence[tuple[str, str]],
        parts: Sequence[Buffer],
        until: float,
    ) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        total = len(head) + sum(memoryview(part).nbytes for part in parts)
        verb = f"HPUB {subject} {reply} {len(head)} {total}\r\n".encode()
        self._send([verb + head, *parts, b"\r\n"], until)

    def _send(self, parts: Sequence[Buffer], until: float) -> None:
        assert self._socket is not None
        views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        if isinstance(self._socket, ssl.SSLSocket):
            for view in views:
                self._socket.settimeout(_left(until))
                self._socket.sendall(view)
            return
        while views:
            self._socket.settimeout(_left(until))
            sent = self._socket.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if sent:
                views[0] = views[0][sent:]

    def _await_answer(self, reply: str, until: float) -> bytes:
        expected = reply.encode()
        while True:
            line = self._line(until)
            verb, *words = line.split()
            if verb in (b"MSG", b"HMSG"):
                size = int(words[-1])
                head = int(words[-2]) if verb == b"HMSG" else 0
                content = self._take(size, until)
                if words[0] == expected:
                    if head and not content[head:]:
                        raise Unavailable("nothing in NATS answers for this stream")
                    return content[head:]
            elif verb == b"PING":
                self._send([b"PONG\r\n"], until)
            elif verb == b"-ERR":
                raise ConnectionError(line.decode(errors="replace"))

    def _line(self, until: float) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            self._receive(until)
        line, self._received = self._received[:end], self._received[end + 2 :]
        return line

    def _take(self, size: int, until: float) -> bytes:
        if size > _ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
        while len(self._received) < size + 2:
            self._receive(until)
        content, self._received = self._received[:size], self._received[size + 2 :]
        return content

    def _receive(self, until: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(_left(until))
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._received += data
        if len(self._received) > _ANSWER_BYTES_MAX + _READ_BYTES:
            raise ValueError("more than an answer came")


def _left(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
