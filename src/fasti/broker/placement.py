"""Which shard has what: asked by the service for every call, before it turns to a shard.

A call about a topic asks for the topic's shard; a call about everything goes over all shards. What
belongs to no topic (sinks, stages by their names) is kept by the catalogue, and so is the answer where
a reply has room for one shard only. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fasti.broker.clock import EngineClock
    from fasti.broker.shard import Shard
    from fasti.config import ShardSettings


class Placement(Protocol):
    """Where the topics of a broker are."""

    @property
    def settings(self) -> ShardSettings:
        """The same for all shards, as is the clock."""

    @property
    def clock(self) -> EngineClock: ...

    @property
    def catalogue(self) -> Shard:
        """The shard of everything that belongs to no topic."""

    def shard_of(self, topic: str, partition: int = 0) -> Shard:
        """The shard of a partition, whether or not there is such a topic."""

    def shards(self) -> Sequence[Shard]:
        """All of them, the catalogue first."""


class OneShard:
    """Everything is on one shard."""

    def __init__(self, shard: Shard) -> None:
        self.catalogue = shard

    @property
    def settings(self) -> ShardSettings:
        return self.catalogue.settings

    @property
    def clock(self) -> EngineClock:
        return self.catalogue.clock

    def shard_of(self, topic: str, partition: int = 0) -> Shard:
        return self.catalogue

    def shards(self) -> Sequence[Shard]:
        return (self.catalogue,)


def shard_for(placement: Placement, command: Any) -> Shard:
    """Where a command is decided: by its topic; a transaction by that of its first part."""
    first = command.parts[0] if command.parts else command
    # Those that make, change and delete a topic have it as their name.
    topic = getattr(first, "topic", "") or getattr(first, "name", "")
    return placement.shard_of(topic) if topic else placement.catalogue
