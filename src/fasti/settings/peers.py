"""Which process of a broker has which shards, as people write it: `0-1=127.0.0.1:7170,2-3=127.0.0.1:7171`.

A broker may be several processes on one machine, each with some of the shards. Under `fasti serve
--processes` the supervisor makes the map and gives it to each of them; processes that are started by hand
are given it by `peers`. It is the same map for all of them, and fixed while they run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from fasti.settings.values import Address, read_address

# As many as `core.layout` has: settings are read before anything of it is loaded.
SHARDS_MAX = 256
_PIECE = re.compile(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*")


class ProcessPlace(NamedTuple):
    """One process: its shards, in ascending order, and where clients reach it."""

    shards: tuple[int, ...]
    address: Address

    @property
    def first(self) -> int:
        """Its lowest shard, by which the processes of a broker are told apart."""
        return self.shards[0]


@dataclass(frozen=True)
class PeerMap:
    """All processes of a broker, the one of shard 0 first. Each shard from 0 on is in exactly one."""

    processes: tuple[ProcessPlace, ...]

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self._by_shard)

    @cached_property
    def _by_shard(self) -> dict[int, ProcessPlace]:
        return {shard: place for place in self.processes for shard in place.shards}

    def place_of(self, shard: int) -> ProcessPlace:
        """The process that has a shard."""
        return self._by_shard[shard]

    def place_at(self, *addresses: Address | None) -> ProcessPlace | None:
        """The process that clients reach at one of these addresses, if there is one."""
        return next((place for place in self.processes if place.address in addresses), None)

    def __str__(self) -> str:
        return ",".join(
            f"{show_shards(place.shards, '+')}={place.address}" for place in self.processes
        )


def deal_out(shards: int, addresses: Sequence[Address]) -> PeerMap:
    """Shards in equal runs over processes at these addresses; the first ones have one more if need be."""
    least, more = divmod(shards, len(addresses))
    places, begin = [], 0
    for number, address in enumerate(addresses):
        end = begin + least + (number < more)
        places.append(ProcessPlace(tuple(range(begin, end)), address))
        begin = end
    return PeerMap(tuple(places))


@dataclass(frozen=True, slots=True)
class ShardNumbers:
    """Numbers of shards: `0-3,6`. A tuple in ascending order."""

    metavar: str = "SHARDS"

    def read(self, raw: Any) -> tuple[int, ...]:
        if isinstance(raw, int) and not isinstance(raw, bool):
            raw = str(raw)
        return _read_shards(raw, ",", raw)

    def show(self, value: Any) -> str:
        return show_shards(value, ",")


@dataclass(frozen=True, slots=True)
class Peers:
    """A `PeerMap`: `0-1=HOST:PORT,2-3=HOST:PORT`; shards that are no run are joined by `+`."""

    metavar: str = "SHARDS=HOST:PORT,..."

    def read(self, raw: Any) -> PeerMap:
        if not isinstance(raw, str) or not raw.strip():
            raise ValueError(f"{raw!r} is not a map: write {self.metavar}")
        places = [self._read_place(part, raw) for part in raw.split(",")]
        _check_whole([shard for place in places for shard in place.shards], raw)
        addresses = [place.address for place in places]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ValueError(f"{raw!r}: {address} is in it twice")
            if address.port == 0 or address.near != address:
                raise ValueError(
                    f"{raw!r}: {address} is not an address that a client can connect to"
                )
        return PeerMap(tuple(sorted(places)))

    def _read_place(self, part: str, raw: str) -> ProcessPlace:
        shards, equals, address = part.partition("=")
        if not equals:
            raise ValueError(f"{raw!r} is not a map: {part!r} should be SHARDS=HOST:PORT")
        return ProcessPlace(_read_shards(shards, "+", raw), read_address(address.strip()))

    def show(self, value: Any) -> str:
        return str(value)


def _read_shards(text: Any, mark: str, raw: Any) -> tuple[int, ...]:
    numbers: list[int] = []
    for piece in text.split(mark) if isinstance(text, str) else [""]:
        match = _PIECE.fullmatch(piece)
        if match is None:
            raise ValueError(
                f"{raw!r}: {piece!r} is neither the number of a shard nor a run like 0-3"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise ValueError(f"{raw!r}: the run {piece.strip()} ends before it begins")
        if last >= SHARDS_MAX:
            raise ValueError(f"{raw!r}: shards have numbers below {SHARDS_MAX}")
        numbers += range(first, last + 1)
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{raw!r}: a shard is in it twice")
    return tuple(sorted(numbers))


def _check_whole(numbers: list[int], raw: str) -> None:
    """Each shard from 0 to the highest is there, once."""
    for shard in range(max(numbers) + 1):
        if (count := numbers.count(shard)) != 1:
            raise ValueError(f"{raw!r}: shard {shard} is {'in it twice' if count else 'missing'}")


def show_shards(shards: Iterable[int], mark: str = ",") -> str:
    """Numbers with runs as such: `0-3,6`."""
    runs: list[list[int]] = []
    for shard in sorted(shards):
        if runs and shard == runs[-1][1] + 1:
            runs[-1][1] = shard
        else:
            runs.append([shard, shard])
    return mark.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
