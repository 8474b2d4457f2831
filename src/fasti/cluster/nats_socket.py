"""A connection to NATS for one thing at a time, in the caller's thread: to publish a message and wait for its
answer, or to read messages of a stream.

A shard has one pack in flight, so an append needs no event loop: the caller writes to a socket and reads from
it. For a small pack that takes a quarter of the CPU and a third of the time that nats-py needs with
its loop's thread, and a server that is gone is known at once, by the end of the stream. Large packs are
received where they stay.

The rules:

- A server can be preferred, by its name: for appends the one that leads the shard's stream, since what another one
  takes it passes on.
- After anything unusual (no answer in time, an error, an end) the connection is closed. The next call makes a
  new one, to another server first.
- A late answer to an earlier call is passed over: each has a subject of its own for its answers.
- The server's pings are answered when the next call comes; a connection that it gave up meanwhile is noticed
  before anything is written.

What a publish or a read came to is told as by `NatsConnection`. One thread at a time. `StreamAppends` and
`StreamReads` are what others use: they leave to nats-py what only that can do.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from fasti.cluster.nats import (
    LAST_SEQUENCE,
    LAST_SUBJECT_SEQUENCE,
    NatsConnection,
    NatsOptions,
    batch_request,
    stored_sequence,
)
from fasti.errors import FastiError, TimedOut, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PORT = 4222
_READ_BYTES = 1 << 16
# A server that takes longer to answer a new connection is passed over, for this time.
_CONNECT_S = 0.2
# Who ends a connection waits so long for whoever uses it.
_END_S = 1.0
# Neither lines nor messages of NATS are longer.
_LINE_BYTES_MAX, _CONTENT_BYTES_MAX = 1 << 20, 64 << 20
# Which server leads the stream is good to know, and not worth waiting for.
_LOOK_S = 0.1


class StreamAppends:
    """Publishes to one stream, one message at a time; others wait. Any thread."""

    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self._connection, self._stream = connection, stream
        # The signature that a file of credentials asks for is nats-py's alone.
        signs = connection.options.credentials is not None
        self._socket = None if signs else NatsSocket(connection.options, self._leader)
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
            self._socket.check_open()
            return stored_sequence(self._socket.publish(subject, headers, parts, timeout_s))

    def _leader(self) -> str:
        state = self._connection.stream_state(self._stream, _LOOK_S)
        return "" if state is None else state.leader

    def close(self) -> None:
        """Nothing is published any more."""
        if self._socket is not None:
            self._socket.end(self._lock)


class StreamMessage(NamedTuple):
    """A message of a stream, by its place."""

    sequence: int
    data: Buffer


class StreamReads:
    """Reads messages of one stream from whichever replica is near; others wait meanwhile. Any thread."""

    def __init__(self, connection: NatsConnection, stream: str) -> None:
        self._connection, self._stream = connection, stream
        signs = connection.options.credentials is not None
        self._socket = (
            None if signs else NatsSocket(connection.options, lambda: connection.server_name)
        )
        self._lock = threading.Lock()

    def read(self, first: int, max_bytes: int, timeout_s: float) -> list[StreamMessage]:
        """As `NatsConnection.read`."""
        if self._socket is None:
            found = self._connection.read(self._stream, first, max_bytes, timeout_s)
            return [StreamMessage(each.sequence, each.data) for each in found]
        subject, request = batch_request(self._stream, first, max_bytes)
        messages: list[StreamMessage] = []
        with self._lock:
            self._socket.check_open()
            try:
                for head, data in self._socket.ask(subject, request, timeout_s):
                    message = _stored(head, data)
                    if message is None:
                        break
                    messages.append(message)
            except TimedOut:
                # Who is slow gets on with what there is.
                if not messages:
                    raise
        return messages

    def close(self) -> None:
        """Nothing is read any more: who waits for an answer is told so."""
        if self._socket is not None:
            self._socket.end(self._lock)


def _stored(head: bytes, data: memoryview) -> StreamMessage | None:
    """A message of a stream; None if this says that there are no more."""
    first, *lines = head.decode().split("\r\n")
    for line in lines:
        name, _, value = line.partition(":")
        if name == "Nats-Sequence":
            return StreamMessage(int(value), data)
    status = first.removeprefix("NATS/1.0").strip()
    if status[:3] in ("404", "204"):
        return None
    raise Unavailable(f"NATS: {status}")


class NatsSocket:
    """`preferred` tells the name of the server that the connection should be made to; it may raise."""

    def __init__(self, options: NatsOptions, preferred: Callable[[], str]) -> None:
        self._options, self._preferred = options, preferred
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._number = 0
        self._socket: socket.socket | None = None
        self._ended = False
        # What came, and how much of it was taken.
        self._received, self._taken = b"", 0
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
        with self._failing():
            until = time.monotonic() + timeout_s
            reply = self._send_request(subject, headers, parts, until)
            head, content = self._await_answer(reply, until)
            if head and not content:
                raise Unavailable("nothing in NATS answers for this stream")
            return bytes(content)

    def ask(
        self, subject: str, request: bytes, timeout_s: float
    ) -> Iterator[tuple[bytes, memoryview]]:
        """The answers to a request, each as headers and content. Whoever takes them knows the last one, and takes
        all up to that.
        """
        with self._failing():
            until = time.monotonic() + timeout_s
            reply = self._send_request(subject, (), (request,), until)
            while True:
                head, content = self._await_answer(reply, until)
                if head.startswith(b"NATS/1.0 503"):
                    raise Unavailable("nothing in NATS answers for this stream")
                yield head, content

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A call: what goes wrong in it ends the connection, and is told."""
        try:
            yield
            self._failed = ""
        except GeneratorExit:
            # The last answer was taken.
            self._failed = ""
            raise
        except (OSError, FastiError, ValueError) as error:
            self._failed = self._server
            self.close()
            if isinstance(error, TimeoutError):
                raise TimedOut("NATS did not answer in time") from error
            if isinstance(error, FastiError):
                raise
            raise Unavailable(f"the connection to NATS failed: {error!r}") from error

    def _send_request(
        self,
        subject: str,
        headers: Sequence[tuple[str, str]],
        parts: Sequence[Buffer],
        until: float,
    ) -> str:
        """Where its answers come."""
        self._make_ready(until)
        self._number += 1
        reply = f"{self._inbox}.{self._number}"
        self._write(subject, reply, headers, parts, until)
        return reply

    def check_open(self) -> None:
        """Raises `Unavailable` once it was ended."""
        if self._ended:
            raise Unavailable("the connection to NATS is closed")

    def end(self, used: threading.Lock) -> None:
        """For good, by any thread; `used` is held by whoever uses it. Only they close it: its number may be
        another file's a moment later.
        """
        self._ended = True
        connection = self._socket
        if connection is not None:
            # Wakes who waits for an answer.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if used.acquire(timeout=_END_S):
            self.close()
            used.release()

    def close(self) -> None:
        """The next call connects again."""
        connection, self._socket = self._socket, None
        self._received, self._taken = b"", 0
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
                self._received = (self._received[self._taken :] + data)[-_READ_BYTES:]
                self._taken = 0
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        received, self._received, self._taken = self._received[self._taken :], b"", 0
        if b"PING\r\n" in received:
            connection.settimeout(_CONNECT_S)
            connection.sendall(b"PONG\r\n")

    def _connect(self, until: float) -> None:
        """To the preferred server, if it is known and did not fail; else to any, the failed one last."""
        wanted = ""
        with suppress(FastiError):
            wanted = self._preferred()
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
            "name": "fasti",
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

    def _await_answer(self, reply: str, until: float) -> tuple[bytes, memoryview]:
        """The next answer that came there: its headers, and its content."""
        expected = reply.encode()
        while True:
            line = self._line(until)
            verb, *words = line.split()
            if verb in (b"MSG", b"HMSG"):
                head = int(words[-2]) if verb == b"HMSG" else 0
                content = self._take(int(words[-1]), until)
                if words[0] == expected:
                    return bytes(content[:head]), content[head:]
            elif verb == b"PING":
                self._send([b"PONG\r\n"], until)
            elif verb == b"-ERR":
                raise ConnectionError(line.decode(errors="replace"))

    def _line(self, until: float) -> bytes:
        while (end := self._received.find(b"\r\n", self._taken)) < 0:
            if len(self._received) - self._taken > _LINE_BYTES_MAX:
                raise ValueError("a line without an end")
            self._received = self._received[self._taken :] + self._receive(until)
            self._taken = 0
        line, self._taken = self._received[self._taken : end], end + 2
        return line

    def _take(self, size: int, until: float) -> memoryview:
        """What is large is received where it stays."""
        if size > _CONTENT_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
        begin, end = self._taken, self._taken + size + 2
        if end <= len(self._received):
            self._taken = end
            return memoryview(self._received)[begin : end - 2]
        content = bytearray(size + 2)
        view = memoryview(content)
        came = len(self._received) - begin
        view[:came] = memoryview(self._received)[begin:]
        self._received, self._taken = b"", 0
        assert self._socket is not None
        while came < len(content):
            self._socket.settimeout(_left(until))
            count = self._socket.recv_into(view[came:])
            if not count:
                raise ConnectionResetError("the server has closed the connection")
            came += count
        return view[:size]

    def _receive(self, until: float) -> bytes:
        assert self._socket is not None
        self._socket.settimeout(_left(until))
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        return data


def _left(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
