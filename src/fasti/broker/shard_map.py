"""Where the shards are: what `hello` tells clients, and what `moved` names. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The address of each shard's process, as `host:port`; a shard that is not here is where you asked.

    A change makes a new one, with a higher epoch: of two words about a shard the higher one counts.
    """

    addresses: Mapping[int, str | None] = field(default_factory=dict)
    epoch: int = 1

    def address(self, number: int) -> str | None:
        """Where a shard is; None: where you asked, or not known."""
        return self.addresses.get(number)

    def to_json(self, shards: int) -> list[dict[str, Any]]:
        """As `hello` has it."""
        return [
            {"shard": number, "address": self.address(number), "epoch": self.epoch}
            for number in range(shards)
        ]
