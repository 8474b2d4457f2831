"""Which process has which shard, as far as this client knows.

The map comes with `hello`, and single entries of it with `moved`. Each entry has an epoch: of two that
differ the higher counts. Of two with the same epoch the newer one counts, but only if it comes from
somebody who must know: a process that says that it doesn't have the shard, or one that was asked
because the shard doesn't answer where it was.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fasti.errors import FastiError, InvalidArgument, Unavailable

HostPort = tuple[str, int]
_HOSTS_MAX = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a shard is."""

    host: HostPort
    epoch: int


class ShardMap:
    """Of one cluster. Any thread."""

    def __init__(self, hello: dict[str, Any], asked: HostPort) -> None:
        self._lock = threading.Lock()
        self.count = int(hello["shards"])
        self.cluster = str(hello.get("cluster", ""))
        # Until one is known, a shard is looked for where the map came from: that process tells.
        self._places = [Place(asked, -1)] * self.count
        # Who follows a shard, as was told last.
        self._standbys: dict[int, list[HostPort]] = {}
        # Where processes were, the last ones: one that has no shard now may have some later.
        self._hosts: OrderedDict[HostPort, None] = OrderedDict()
        self.take(hello, asked)

    def fork_locks(self) -> list[threading.Lock]:
        """Those that are held over a fork."""
        return [self._lock]

    def place(self, shard: int) -> Place:
        """Where a shard is now."""
        return self._places[shard]

    def readers(self, shard: int) -> list[HostPort]:
        """Who may answer a stale read: those who follow it, then who leads it, then all others."""
        return list(
            dict.fromkeys(
                [*self._standbys.get(shard, ()), self.place(shard).host, *self.known_hosts()]
            )
        )

    def hosts(self) -> list[HostPort]:
        """Those of all processes, each once, in the order of their first shards."""
        return list(dict.fromkeys(place.host for place in self._places))

    def known_hosts(self) -> list[HostPort]:
        """These, and others that had shards before."""
        with self._lock:
            return list(dict.fromkeys([*self.hosts(), *reversed(self._hosts)]))

    def _set(self, shard: int, host: HostPort, epoch: int) -> None:
        """With the lock."""
        self._places[shard] = Place(host, epoch)
        self._hosts[host] = None
        self._hosts.move_to_end(host)
        if len(self._hosts) > _HOSTS_MAX:
            self._hosts.popitem(last=False)

    def take(self, hello: dict[str, Any], asked: HostPort, doubted: int | None = None) -> None:
        """Takes in the map of a `hello`; `doubted` is a shard that doesn't answer where it was.

        Raises `unavailable` if it is the map of another cluster: its messages are others.
        """
        count, cluster = int(hello.get("shards", 1)), str(hello.get("cluster", ""))
        if count != self.count or cluster != self.cluster:
            raise Unavailable(
                f"the broker at {host_text(asked)} belongs to another cluster ({cluster or 'no name'}, "
                f"{count} shards) than the one that was connected to ({self.cluster or 'no name'}, "
                f"{self.count} shards)"
            )
        with self._lock:
            for entry in _entries(hello):
                shard, epoch = int(entry["shard"]), int(entry.get("epoch", 1))
                address = entry.get("address")
                host = asked if address is None else parse_host(address)
                known = self._places[shard]
                if epoch >= known.epoch:
                    self._standbys[shard] = [parse_host(at) for at in entry.get("standbys", ())]
                if epoch > known.epoch or (epoch == known.epoch and shard == doubted):
                    self._set(shard, host, epoch)

    def take_move(self, details: dict[str, Any], shard: int) -> bool:
        """Takes in what a process says that doesn't have the shard; whether that tells where it is.

        Not if it says less than is known: it may be the one that is to lead it next.
        """
        address, epoch = details.get("address"), int(details.get("epoch", 1))
        if address is None:
            return False
        with self._lock:
            if epoch < self._places[shard].epoch:
                return False
            self._set(shard, parse_host(address), epoch)
        return True


def _entries(hello: dict[str, Any]) -> Sequence[dict[str, Any]]:
    count = int(hello["shards"])
    return [entry for entry in hello.get("map", ()) if 0 <= int(entry["shard"]) < count]


def parse_host(address: str) -> HostPort:
    """`host:port` as brokers write it. Raises `unavailable` if it is none."""
    from fasti.client.address import parse_address

    try:
        (host,) = parse_address(address).hosts
    except (InvalidArgument, ValueError) as error:
        raise Unavailable(f"the broker names an address that is none: {address!r}") from error
    return host


def host_text(host: HostPort) -> str:
    """As people write it."""
    name, port = host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def is_elsewhere(error: FastiError) -> bool:
    """Whether the process that answered this doesn't have the shard."""
    return error.code == "moved"
