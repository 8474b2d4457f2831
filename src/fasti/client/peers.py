"""The transports to other brokers, which the endpoints of a plan name: one for each address.

The latest few stay connected. Of the others each lives as long as something uses it, and closes with
the client that made it.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from fasti.errors import Closed

if TYPE_CHECKING:
    from fasti.client.flight_transport import FlightTransport

_KEEP_MAX = 16


class Peers:
    """Of one transport. Any thread."""

    def __init__(self, make: Callable[[str], FlightTransport]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._alive: weakref.WeakValueDictionary[str, FlightTransport] = (
            weakref.WeakValueDictionary()
        )
        self._latest: OrderedDict[str, FlightTransport] = OrderedDict()
        self._closed = False

    def at(self, location: str) -> FlightTransport:
        """The transport to an address. Raises `unavailable` if it is none, `closed`."""
        with self._lock:
            if self._closed:
                raise Closed("the client is closed")
            peer = self._alive.get(location)
            if peer is None:
                peer = self._alive[location] = self._make(location)
            self._latest[location] = peer
            self._latest.move_to_end(location)
            if len(self._latest) > _KEEP_MAX:
                self._latest.popitem(last=False)
            return peer

    def close(self) -> None:
        """Closes all of them; no more are made."""
        with self._lock:
            self._closed = True
            peers = list(self._alive.values())
            self._latest.clear()
        for peer in peers:
            peer.close()

    def forked(self) -> None:
        """In a child process: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()
