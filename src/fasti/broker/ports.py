"""Ports that are kept for a process: also while it is away, no other one is given them.

Kept is what is bound and not listened at. The process itself may listen there, because both allow the
address to be used again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

from fasti.errors import AlreadyExists
from fasti.settings.values import Address

_TRIES = 200


def reserve(address: Address, count: int = 1) -> list[socket.socket]:
    """Keeps the port of an address and those that follow it, as many as `count`; port 0 stands for any
    ports that follow each other.

    Raises `OSError` as the system does (its `filename` is the address), `already_exists` if no such run
    of ports is found.
    """
    if address.port:
        return _reserve_run(address, count)
    for _ in range(_TRIES):
        with closing(_bound(address)) as probe:
            first = int(probe.getsockname()[1])
        if first + count > 65_536:
            continue
        try:
            return _reserve_run(Address(address.host, first), count)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise AlreadyExists(f"{address.host} has no {count} free ports that follow each other")


def _reserve_run(address: Address, count: int) -> list[socket.socket]:
    kept: list[socket.socket] = []
    try:
        for more in range(count):
            kept.append(_bound(Address(address.host, address.port + more)))
    except BaseException:
        for reservation in kept:
            reservation.close()
        raise
    return kept


def _bound(address: Address) -> socket.socket:
    with _naming(address):
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        reservation = socket.socket(found[0][0], socket.SOCK_STREAM)
        try:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind(found[0][4])
        except BaseException:
            reservation.close()
            raise
        return reservation


@contextmanager
def _naming(address: Address) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = str(address)
        raise
