"""The processes of a broker: one connection and one clock estimate to each, by its address.

A shard that doesn't answer where it was is asked for at the other processes: any of them tells the map. Calls that
wait for long have it asked for as well (`hanging.py`).
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fasti.client import forking
from fasti.client.shards.hanging import HangingCalls
from fasti.client.shards.shard_map import HostPort, Place, ShardMap, host_text
from fasti.errors import Closed, FastiError, Moved, TimedOut, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

    from fasti.client.flight_transport import FlightTransport

logger = logging.getLogger("fasti.client")

# A process that is asked for the map answers within this, or the next one is asked.
_HELLO_S = 2.0
# The map is asked for so often at most.
_ASK_EVERY_S = 0.1
# And for those who may read from standbys, so often.
_LOOK_EVERY_S = 5.0
# Of what they have to wait, so much at most goes into that.
_LOOK_S = 0.5


class Processes:
    """Of one client. Any thread."""

    def __init__(self, entry: FlightTransport, hello: dict[str, Any]) -> None:
        self._entry = entry
        # Where the map came from.
        self.asked = entry.address.hosts[entry.place]
        self.map = ShardMap(hello, self.asked)
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._asked_at = self._looked_at = -_LOOK_EVERY_S
        self._closed = threading.Event()
        # Those that the map names; others live as long as a stream uses them.
        self._current: dict[HostPort, FlightTransport] = {}
        self._alive: weakref.WeakValueDictionary[HostPort, FlightTransport] = (
            weakref.WeakValueDictionary()
        )
        if len(entry.address.hosts) == 1:
            self._alive[self.asked] = entry
        forking.register(self)
        self.hanging = HangingCalls(entry.runtime, self.map.place, self.ask, self.wait)

    def _fork_locks(self) -> list[forking.Lock]:
        """Taken before the process forks."""
        return [self._asking, self._lock, *self.map.fork_locks()]

    def _forked(self) -> None:
        """In a child process: nobody waits here."""
        closed, self._closed = self._closed.is_set(), threading.Event()
        if closed:
            self._closed.set()

    def __str__(self) -> str:
        return str(self._entry)

    def of(self, shard: int) -> FlightTransport:
        """The way to the process that has a shard. Raises `closed`."""
        return self.at(self.map.place(shard).host)

    def one_shard_each(self) -> list[int]:
        """A shard of each process of the map."""
        first: dict[HostPort, int] = {}
        for shard in range(self.map.count):
            first.setdefault(self.map.place(shard).host, shard)
        return list(first.values())

    @property
    def are_several(self) -> bool:
        """Whether there is another one to ask than the one that has a shard."""
        return len(self._entry.address.hosts) > 1 or len(self.map.known_hosts()) > 1

    def at(self, host: HostPort) -> FlightTransport:
        """The way to the process at an address. Raises `closed`."""
        transport = self._current.get(host)
        if transport is not None and not self._closed.is_set():
            return transport
        with self._lock:
            if self._closed.is_set():
                raise Closed("the client is closed")
            transport = self._alive.get(host)
            if transport is None:
                transport = self._alive[host] = _sibling(self._entry, host)
            named = set(self.map.hosts())
            self._current = {at: way for at, way in self._current.items() if at in named}
            if host in named:
                self._current[host] = transport
            return transport

    def follow(self, shard: int, asked: Place, error: Moved, until: float) -> bool:
        """The process that was asked doesn't have the shard: takes in what it says, or asks others.

        Whether there is another place to go to: it may have been found meanwhile.
        """
        told = self.map.take_move(dict(error.details), shard)
        if not told and self.map.place(shard) == asked:
            self.ask(shard, until)
        return self.map.place(shard) != asked

    def ask(self, shard: int, until: float) -> None:
        """Asks the other processes for the map: a shard doesn't answer where it was.

        Callers that come while one asks wait for its answer, and don't ask again for a moment. Raises
        nothing but `closed`.
        """
        before = self.map.place(shard)
        if not self._asking.acquire(timeout=max(0.0, until - time.monotonic())):
            return
        try:
            rested = time.monotonic() - self._asked_at >= _ASK_EVERY_S
            if rested and self.map.place(shard) == before:
                self._ask_others(shard, until)
                self._asked_at = time.monotonic()
        finally:
            self._asking.release()

    def _ask_others(self, shard: int, until: float) -> None:
        before = self.map.place(shard)
        hosts = dict.fromkeys([*self.map.known_hosts(), *self._entry.address.hosts])
        # The one where it was is asked by the next try itself.
        hosts.pop(before.host, None)
        for host in hosts:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            try:
                hello = self.at(host).greet(min(left_s, _HELLO_S))
                self.map.take(hello, host, doubted=shard)
            except Closed:
                raise
            except FastiError as error:
                logger.debug("asking %s for the map: %s", host_text(host), error)
                continue
            if self.map.place(shard) != before:
                return

    def look_around(self, likely: Iterable[HostPort], until: float) -> None:
        """Asks for the map now and then: who follows a shard may be others by now. The likely ones come first: some
        of the others may hang. Raises nothing but `closed`.
        """
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S or not self._asking.acquire(False):
            return
        try:
            self._looked_at = time.monotonic()
            until = min(until, self._looked_at + _LOOK_S)
            for host in dict.fromkeys([*likely, *self.map.known_hosts()]):
                left_s = until - time.monotonic()
                if left_s <= 0 or self.greet(host, left_s):
                    return
        finally:
            self._asking.release()

    def call_any(
        self, action: str, header: dict[str, Any], timeout_s: float
    ) -> tuple[dict[str, Any], list[pa.Table]]:
        """The answer of the first process that gives one, to a call about no shard and without parts.

        It works when shards have no leader. Raises what the last one said that was asked.
        """
        # Imported late, with Arrow Flight.
        from fasti.client.flight_transport import versioned

        until = time.monotonic() + timeout_s
        hosts = dict.fromkeys([self.asked, *self.map.known_hosts(), *self._entry.address.hosts])
        failure: FastiError = TimedOut(f"{action}: no broker answered within {timeout_s:g} s")
        for host in hosts:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            try:
                return self.at(host).attempt(action, versioned(header), (), min(left_s, _HELLO_S))
            except (Unavailable, TimedOut) as error:
                failure = error
        raise failure

    def greet(self, host: HostPort, within_s: float = _HELLO_S) -> bool:
        """Hears a process's clock, if it answers soon; its map counts as any."""
        try:
            self.map.take(self.at(host).greet(within_s), host)
        except FastiError as error:
            logger.debug("saying hello to %s: %s", host_text(host), error)
            return False
        return True

    def wait(self, seconds: float) -> None:
        """A pause between two tries. Raises `closed`."""
        if self._closed.wait(seconds):
            raise Closed("the client is closed")

    def close(self) -> None:
        """Ends everything that is open to any process."""
        with self._lock:
            self._closed.set()
            transports = {id(each): each for each in [*self._alive.values(), self._entry]}
            self._current = {}
        for transport in transports.values():
            transport.close()


def _sibling(entry: FlightTransport, host: HostPort) -> FlightTransport:
    """Another transport like it, to one host and port alone."""
    address = replace(entry.address, hosts=(host,))
    return type(entry)(address, **entry.entrance)
