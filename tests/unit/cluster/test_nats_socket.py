"""The socket for appends, against servers of a few lines: answers, pings, ends, silence, and which server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fasti.cluster.nats import NatsOptions, Refused, stored_sequence
from fasti.cluster.nats_socket import NatsSocket
from fasti.errors import TimedOut, Unavailable

WAIT_S = 20.0
HEADERS = (("Nats-Expected-Last-Sequence", "6"),)
# How a server treats a publish: it is given the connection, where to answer, and what came.
Treat = Callable[[socket.socket, bytes, bytes], None]


def stored(connection: socket.socket, reply: bytes, _: bytes, sequence: int = 7) -> None:
    answer = json.dumps({"stream": "s", "seq": sequence}).encode()
    connection.sendall(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(answer), answer))


class Server:
    """Greets as NATS does, and treats each publish by the next of `treats`; the last one stays."""

    def __init__(self, name: str = "n1") -> None:
        self.name = name
        self.treats: list[Treat] = [stored]
        self.messages: list[bytes] = []
        self.connections: list[socket.socket] = []
        self.pongs = threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        info = json.dumps({"server_name": self.name, "headers": True})
        with suppress(OSError), connection, connection.makefile("rb") as lines:
            connection.sendall(f"INFO {info}\r\n".encode())
            for line in lines:
                verb, *words = line.split()
                if verb == b"PING":
                    connection.sendall(b"PONG\r\n")
                elif verb == b"PONG":
                    self.pongs.release()
                elif verb == b"HPUB":
                    message = lines.read(int(words[-1]) + 2)[:-2]
                    self.messages.append(message)
                    treat = self.treats.pop(0) if len(self.treats) > 1 else self.treats[0]
                    treat(connection, words[1], message)

    def hang_up(self) -> None:
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made = [Server("n1"), Server("n2"), Server("n3")]
    yield made
    for server in made:
        server.close()


@pytest.fixture
def server(servers: list[Server]) -> Server:
    return servers[0]


def socket_to(*servers: Server, leader: Callable[[], str] = str) -> NatsSocket:
    return NatsSocket(NatsOptions([server.url for server in servers]), leader)


def publish(appends: NatsSocket, *parts: bytes, timeout_s: float = WAIT_S) -> int:
    return stored_sequence(appends.publish("c.j.0", HEADERS, parts, timeout_s))


def test_parts_arrive_as_one_message_with_their_headers(server: Server) -> None:
    appends, large = socket_to(server), bytes(range(256)) * 20_000
    assert publish(appends, b"head", large) == 7
    assert publish(appends, b"", b"small") == 7
    appends.close()
    head = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 6\r\n\r\n"
    assert server.messages == [head + b"head" + large, head + b"small"]
    assert len(server.connections) == 1


def test_a_refusal_is_told_and_the_connection_stays(server: Server) -> None:
    def refuse(connection: socket.socket, reply: bytes, _: bytes) -> None:
        error = {"code": 400, "err_code": 10071, "description": "wrong last sequence: 9"}
        answer = json.dumps({"error": error}).encode()
        connection.sendall(b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(answer), answer))

    server.treats = [refuse, stored]
    appends = socket_to(server)
    with pytest.raises(Refused):
        publish(appends, b"one")
    assert publish(appends, b"two") == 7
    assert len(server.connections) == 1


def test_answers_in_pieces_and_pings_between(server: Server) -> None:
    def dribble(connection: socket.socket, reply: bytes, _: bytes) -> None:
        answer = b'{"stream":"s","seq":8}'
        whole = b"PING\r\nMSG other 1 2\r\n{}\r\nMSG %b 1 %d\r\n%b\r\n" % (
            reply,
            len(answer),
            answer,
        )
        for byte in whole:
            connection.sendall(bytes([byte]))

    server.treats = [dribble]
    assert publish(socket_to(server), b"one") == 8
    assert server.pongs.acquire(timeout=WAIT_S)


def test_a_ping_while_nothing_is_published_is_answered_with_the_next(server: Server) -> None:
    appends = socket_to(server)
    publish(appends, b"one")
    server.connections[0].sendall(b"PING\r\n")
    while not server.pongs.acquire(timeout=0.01):
        assert publish(appends, b"more") == 7
    assert len(server.connections) == 1


def test_a_connection_that_ended_meanwhile_is_made_again_before_anything_is_written(
    server: Server,
) -> None:
    appends = socket_to(server)
    publish(appends, b"one")
    server.hang_up()
    assert publish(appends, b"two") == 7
    assert len(server.messages) == 2


@pytest.mark.parametrize("end", ["close", "error", "nobody"])
def test_what_was_written_and_not_answered_is_not_known(server: Server, end: str) -> None:
    def treat(connection: socket.socket, reply: bytes, _: bytes) -> None:
        if end == "close":
            connection.shutdown(socket.SHUT_RDWR)
        elif end == "error":
            connection.sendall(b"-ERR 'Stale Connection'\r\n")
        else:
            head = b"NATS/1.0 503\r\n\r\n"
            connection.sendall(b"HMSG %b 1 %d %d\r\n%b\r\n" % (reply, len(head), len(head), head))

    server.treats = [treat, stored]
    appends = socket_to(server)
    with pytest.raises(Unavailable):
        publish(appends, b"one")
    assert publish(appends, b"two") == 7


def test_silence_ends_in_time_and_another_server_is_asked_next(servers: list[Server]) -> None:
    first, second, _ = servers
    first.treats = [lambda *_: None]
    appends = socket_to(first, second, leader=lambda: "n1")
    with pytest.raises(TimedOut):
        publish(appends, b"one", timeout_s=0.3)
    assert publish(appends, b"two") == 7
    assert len(second.messages) == 1


def test_the_server_that_leads_the_stream_is_preferred(servers: list[Server]) -> None:
    leader = "n3"
    appends = socket_to(*servers, leader=lambda: leader)
    publish(appends, b"one")
    assert [len(server.messages) for server in servers] == [0, 0, 1]
    # Known by now: nobody else is asked.
    before = [len(server.connections) for server in servers[:2]]
    appends.close()
    publish(appends, b"two")
    assert [len(server.connections) for server in servers[:2]] == before


def test_without_its_leader_any_server_will_do(servers: list[Server]) -> None:
    first, second, third = servers
    first.close()
    appends = socket_to(first, second, third, leader=lambda: "n1")
    assert publish(appends, b"one") == 7

    def unknown() -> str:
        raise TimedOut("no answer")

    assert publish(socket_to(first, second, third, leader=unknown), b"one") == 7


def test_no_server_at_all(servers: list[Server]) -> None:
    for each in servers:
        each.close()
    with pytest.raises(Unavailable):
        publish(socket_to(*servers), b"one")
