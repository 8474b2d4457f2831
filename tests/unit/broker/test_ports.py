"""Ports that are kept for processes that come later."""

from __future__ import annotations

import errno
import socket

import pytest

from fasti.broker.ports import reserve
from fasti.settings.values import Address


def test_ports_follow_each_other_and_are_free_for_those_they_are_kept_for() -> None:
    kept = reserve(Address("127.0.0.1", 0), 4)
    try:
        ports = [port.getsockname()[1] for port in kept]
        assert ports == list(range(ports[0], ports[0] + 4))
        for port in ports:
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
                listener.listen()
    finally:
        for port in kept:
            port.close()


def test_a_port_that_somebody_listens_at_is_named_and_nothing_is_kept() -> None:
    (first, taken) = reserve(Address("127.0.0.1", 0), 2)
    number = first.getsockname()[1]
    taken.listen()
    first.close()
    with pytest.raises(OSError, match="in use") as refused:
        reserve(Address("127.0.0.1", number), 2)
    assert refused.value.errno == errno.EADDRINUSE
    assert refused.value.filename == f"127.0.0.1:{number + 1}"
    taken.close()
    for port in reserve(Address("127.0.0.1", number), 2):
        port.close()
