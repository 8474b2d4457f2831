"""The connections that gRPC has accepted, as the kernel tells of them.

gRPC doesn't show its sockets and says nothing of a call before its body is there. The kernel does: a
process sees its own descriptors, and the kernel counts the bytes that each TCP connection has brought
(`tcpi_bytes_received`), below TLS and before anything is decoded. Linux alone.

gRPC may close a descriptor at any moment, and the number may stand for something else a moment later.
So nothing here keeps a descriptor: reading the wrong one is harmless, because its inode tells, and
before a connection is shut down it is duplicated and compared.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

_DESCRIPTORS = "/proc/self/fd"
_RECEIVED = struct.Struct("=Q")
# Where the bytes received stand in struct tcp_info, since Linux 4.1.
_RECEIVED_AT = 128
_INFO_BYTES = _RECEIVED_AT + _RECEIVED.size
# Stands for a peer: the socket that listens.
_LISTENS = ""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A connection. `peer` is written as `127.0.0.1:54321` or `[::1]:54321`."""

    descriptor: int
    inode: int
    peer: str
    received_bytes: int


class AcceptedSockets:
    """Connections to one port of this process. For one thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        # By descriptor: its inode, and the peer if it belongs to our port.
        self._known: dict[int, tuple[int, str | None]] = {}

    @staticmethod
    def are_visible() -> bool:
        """Whether this system tells of them."""
        if sys.platform != "linux" or not os.path.isdir(_DESCRIPTORS):
            return False
        with socket.socket() as unconnected:
            return len(_info(unconnected)) == _INFO_BYTES

    def look(self, only: Iterable[int] | None = None) -> list[Accepted]:
        """All that are open now; or those of these descriptors and of ones not seen before."""
        present = [int(name) for name in os.listdir(_DESCRIPTORS)]
        if only is None:
            for closed in self._known.keys() - set(present):
                del self._known[closed]
            numbers: Iterable[int] = present
        else:
            again = set(only)
            numbers = [number for number in present if number in again or number not in self._known]
        sockets = (self._read(number) for number in numbers)
        return [accepted for accepted in sockets if accepted is not None]

    def _read(self, descriptor: int) -> Accepted | None:
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISSOCK(status.st_mode):
                self._known[descriptor] = status.st_ino, None
                return None
            inode, peer = self._known.get(descriptor, (0, None))
            if inode == status.st_ino and not peer:
                return None
            borrowed = socket.socket(fileno=descriptor)
        except OSError:
            return None
        try:
            if inode != status.st_ino:
                peer = self._peer(borrowed)
                self._known[descriptor] = status.st_ino, peer
            if not peer:
                return None
            (received,) = _RECEIVED.unpack_from(_info(borrowed), _RECEIVED_AT)
            return Accepted(descriptor, status.st_ino, peer, received)
        except OSError:
            return None
        finally:
            # It is gRPC's: it must not be closed here.
            borrowed.detach()

    def _peer(self, connection: socket.socket) -> str | None:
        """Who is at the other end, if it is a connection to our port or the socket that listens."""
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        try:
            if connection.getsockname()[1] != self._port:
                return None
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return _LISTENS
            return peer_name(*connection.getpeername()[:2])
        except OSError:
            # Its other end is gone.
            return None

    def ours(self) -> dict[int, tuple[int, bool]]:
        """By descriptor, as of the last look: the inode, and whether it listens."""
        items = self._known.items()
        return {fd: (inode, peer == _LISTENS) for fd, (inode, peer) in items if peer is not None}

    def hang_up(self, peer: str) -> bool:
        """Ends the connection of a peer: gRPC ends every call on it. False if it is not seen."""
        if not self.are_visible():
            return False
        return any(self.shut(accepted) for accepted in self.look() if accepted.peer == peer)

    def shut(self, connection: Accepted) -> bool:
        """Ends a connection, if it is still the one that was looked at."""
        try:
            held = socket.socket(fileno=os.dup(connection.descriptor))
        except OSError:
            return False
        with held:
            try:
                if os.fstat(held.fileno()).st_ino != connection.inode:
                    return False
                held.shutdown(socket.SHUT_RDWR)
            except OSError:
                return False
        return True


class Activity:
    """Wakes a thread when a port is called or a connection brings something. `wake` is for any thread.

    A connection tells once, and is armed again by the next `wait`, so that traffic costs as little as the
    caller's pauses allow. Who was accepted between two waits is not told: look before a wait.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._waker, select.EPOLLIN)
        # By descriptor: the inode that was armed.
        self._armed: dict[int, int] = {}

    def wait(self, sockets: dict[int, tuple[int, bool]], timeout_s: float) -> bool:
        """Whether one of these has something new, or it was woken; False after this time."""
        for descriptor, (inode, listens) in sockets.items():
            if self._armed.get(descriptor) != inode:
                self._arm(descriptor, select.EPOLLET if listens else select.EPOLLONESHOT)
                self._armed[descriptor] = inode
        events = self._epoll.poll(timeout_s)
        for descriptor, _ in events:
            if not sockets.get(descriptor, (0, False))[1]:
                self._armed.pop(descriptor, None)
        return bool(events)

    def _arm(self, descriptor: int, how: int) -> None:
        # A connection that was closed meanwhile has nothing to tell.
        with suppress(OSError):
            try:
                self._epoll.register(descriptor, select.EPOLLIN | how)
            except FileExistsError:
                self._epoll.modify(descriptor, select.EPOLLIN | how)

    def wake(self) -> None:
        """Ends the wait, and every later one at once."""
        os.eventfd_write(self._waker, 1)

    def close(self) -> None:
        """For when no thread waits any more."""
        self._epoll.close()
        os.close(self._waker)


def peer_name(host: str, port: int) -> str:
    """An address as gRPC writes it, without the brackets' escapes."""
    host = host.partition("%")[0]
    if host.startswith("::ffff:") and "." in host:
        host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _info(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
