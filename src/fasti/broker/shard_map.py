"""Where the shards are: what `hello` tells clients, and what `moved` names. Any thread.

Of each shard it has an epoch, which rises whenever another process leads it, and the address of that process
as `host:port`. Of two words about a shard the higher epoch counts. Where maps are fixed all epochs are 1.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from fasti.errors import Moved


class Leader(NamedTuple):
    """Who leads a shard, as far as is known; without an address: where you asked, or not known."""

    epoch: int
    address: str | None


class ShardMap:
    """As one process knows it. A shard that it doesn't name has the map's own epoch, and no address."""

    def __init__(self, addresses: Mapping[int, str | None] | None = None, epoch: int = 1) -> None:
        self._epoch = epoch
        self._lock = threading.Lock()
        # Replaced as a whole.
        self._leaders = {n: Leader(epoch, address) for n, address in (addresses or {}).items()}

    def leader(self, number: int) -> Leader:
        """Who leads a shard."""
        return self._leaders.get(number) or Leader(self._epoch, None)

    def address(self, number: int) -> str | None:
        """Where a shard is; None: where you asked, or not known."""
        return self.leader(number).address

    def note(self, number: int, epoch: int, address: str | None) -> bool:
        """Takes in a word about a shard; False if what is known is newer.

        Of the same epoch an address that was not known counts: nobody else leads under that epoch.
        """
        with self._lock:
            known = self._leaders.get(number)
            if known is not None:
                same = epoch == known.epoch and known.address is None
                if epoch < known.epoch or (epoch == known.epoch and not same):
                    return False
            self._leaders = {**self._leaders, number: Leader(epoch, address)}
            return True

    def forget(self, number: int, epoch: int) -> None:
        """Whoever led under this epoch does so no longer, and who does is not known."""
        with self._lock:
            if self.leader(number).epoch <= epoch:
                self._leaders = {**self._leaders, number: Leader(epoch, None)}

    def to_json(self, shards: int, here: Container[int]) -> list[dict[str, Any]]:
        """As `hello` has it; `here` are the shards of this process.

        One that is not here, and of which no address is known, is left out: null means where you asked.
        """
        told = ((number, self.leader(number)) for number in range(shards))
        return [
            {"shard": number, "address": leader.address, "epoch": leader.epoch}
            for number, leader in told
            if leader.address is not None or number in here
        ]


def moved(number: int, leader: Leader) -> Moved:
    """What is answered for a shard that is not here: nothing was done."""
    where = f"at {leader.address}" if leader.address else "elsewhere"
    return Moved(
        f"shard {number} is {where}",
        details={"shard": number, "address": leader.address, "epoch": leader.epoch},
    )
