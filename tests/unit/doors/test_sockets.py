"""What the kernel tells of a port's connections, and ending the right one."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import pytest

from fasti.doors.sockets import AcceptedSockets, Activity, peer_name

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=["127.0.0.1", "::1", "::"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    try:
        made = socket.create_server(
            (request.param, 0),
            family=socket.AF_INET6 if ":" in request.param else socket.AF_INET,
            dualstack_ipv6=request.param == "::",
        )
    except OSError:
        pytest.skip("no IPv6 here")
    with made:
        yield made


def connect(listener: socket.socket) -> Pair:
    port = listener.getsockname()[1]
    host = "127.0.0.1" if listener.getsockname()[0] != "::1" else "::1"
    client = socket.create_connection((host, port))
    return client, listener.accept()[0]


def test_bytes_are_told_before_anybody_reads_them(listener: socket.socket) -> None:
    assert AcceptedSockets.are_visible()
    client, server = connect(listener)
    sockets = AcceptedSockets(listener.getsockname()[1])
    with client, server:
        client.sendall(bytes(1_234))
        server.recv(1, socket.MSG_PEEK)
        [found] = sockets.look()
        assert found.received_bytes == 1_234
        assert found.peer == peer_name(*client.getsockname()[:2])
        # Neither looking nor the end of the look closed it.
        assert server.recv(2_000) == bytes(1_234)
        assert sockets.look(only=[]) == []
        assert [each.inode for each in sockets.look(only=[found.descriptor])] == [found.inode]


def test_new_connections_are_found_without_looking_at_old_ones(listener: socket.socket) -> None:
    sockets = AcceptedSockets(listener.getsockname()[1])
    first, second = connect(listener), connect(listener)
    assert len(sockets.look()) == 2
    third = connect(listener)
    assert len(sockets.look(only=[])) == 1
    for end in (*first, *second, *third):
        end.close()
    assert sockets.look() == []


def test_only_the_one_that_was_looked_at_is_ended(listener: socket.socket) -> None:
    sockets = AcceptedSockets(listener.getsockname()[1])
    client, server = connect(listener)
    [found] = sockets.look()
    other_client, other = connect(listener)
    with client, server, other_client, other:
        # The descriptor stands for another connection now.
        os.dup2(other.fileno(), found.descriptor)
        assert not sockets.shut(found)
        [again] = [each for each in sockets.look() if each.descriptor == found.descriptor]
        assert again.inode != found.inode
        assert sockets.shut(again)
        assert other_client.recv(1) == b""


def test_addresses_are_written_as_grpc_does() -> None:
    assert peer_name("10.0.0.7", 5) == "10.0.0.7:5"
    assert peer_name("::ffff:10.0.0.7", 5) == "10.0.0.7:5"
    assert peer_name("fe80::1%eth0", 5) == "[fe80::1]:5"


def test_a_thread_rests_until_a_connection_brings_something(listener: socket.socket) -> None:
    sockets, activity = AcceptedSockets(listener.getsockname()[1]), Activity()
    client, server = connect(listener)
    sockets.look()
    with client, server:
        # The call itself may have come before the listening socket was watched.
        activity.wait(sockets.ours(), 0)
        assert not activity.wait(sockets.ours(), 0)
        client.sendall(b"1")
        assert activity.wait(sockets.ours(), 10)
        assert activity.wait(sockets.ours(), 10), "armed again, and not read yet"
        server.recv(10)
        activity.wait(sockets.ours(), 0)
        assert not activity.wait(sockets.ours(), 0)
        client.sendall(b"2")
        assert activity.wait(sockets.ours(), 10)
    activity.close()


def test_a_thread_rests_until_the_port_is_called(listener: socket.socket) -> None:
    sockets, activity = AcceptedSockets(listener.getsockname()[1]), Activity()
    sockets.look()
    assert not activity.wait(sockets.ours(), 0)
    host = "127.0.0.1" if listener.getsockname()[0] != "::1" else "::1"
    with socket.create_connection((host, listener.getsockname()[1])):
        assert activity.wait(sockets.ours(), 10)
        assert not activity.wait(sockets.ours(), 0), "told once"
    activity.wake()
    assert activity.wait(sockets.ours(), 10)
    activity.close()
