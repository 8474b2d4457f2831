"""Which shard has which partition of a topic: arithmetic that brokers, clients and Spark do alike.

    shard(topic, p) = (XXH64(home) + p mod width) mod shards

A key's partition is its public hash modulo their number, and in logs the one that it ranks highest (as
`core/columns/hashing.py` has it): a layout of a log knows that it is one.

`home` is a word: topics with equal words, numbers of partitions and widths have equal partitions on equal
shards, so that what belongs together by its key can change together. `width` is over how many shards a
topic is spread, all of them by default. Both are fixed when the topic is made, and so is the number of
shards, when a data directory or a cluster is: a message never changes its shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fasti.model import SEQUENCE_BITS, TopicSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]

# Shards of a data directory or cluster, at most.
SHARDS_MAX = 256
# Beyond so many combinations two layouts are not compared, and taken for different.
_COMPARED_MAX = 1 << 20


@dataclass(frozen=True)
class ShardPlace:
    """Which shard one is, among how many: fixed when the data directory is made."""

    number: int = 0
    count: int = 1


# Topics that every shard makes for itself, when it needs them: they are no part of the catalogue.
OWN_TOPICS = frozenset({"_replies"})

# The only shard there is.
ALONE = ShardPlace()


@dataclass(frozen=True)
class Layout:
    """Where the partitions of one topic are. Any thread."""

    shards: int = 1
    partitions: int = 1
    home: str = ""
    width: int = 0
    # Of a log: keys choose their partition by rank.
    is_log: bool = False

    @classmethod
    def of(cls, settings: TopicSettings, shards: int) -> Layout:
        """That of a topic with these settings, among so many shards."""
        is_log = settings.kind == "log"
        return cls(shards, settings.partitions, settings.home, settings.width, is_log)

    @cached_property
    def by_partition(self) -> Int64s:
        """The shard of each partition."""
        width = min(self.width or self.shards, self.shards)
        first = int(_hashes(pa.array([self.home]))[0]) % self.shards
        return (first + np.arange(self.partitions) % width) % self.shards

    @cached_property
    def all_shards(self) -> list[int]:
        """Those that have a partition of the topic, in ascending order."""
        return [int(shard) for shard in np.unique(self.by_partition)]

    def shard_of(self, partition: int) -> int:
        """The shard of a partition. Of one that there is not: of the one that its number stands for, as
        any shard refuses it alike.
        """
        return int(self.by_partition[partition % self.partitions])

    def own(self, shard: int) -> Int64s:
        """The partitions that a shard has, in ascending order."""
        return np.flatnonzero(self.by_partition == shard)

    def shards_of_keys(self, keys: pa.Array) -> Int64s:
        """The shard of each key of a string or binary column; of a null, that of the hash 0."""
        return self.by_partition[self._partitions_of(_hashes(keys))]

    def _partitions_of(self, hashes: NDArray[np.uint64]) -> Int64s:
        if self.is_log:
            from fasti.core.columns.hashing import ranked_partitions

            return ranked_partitions(hashes, self.partitions)
        return (hashes % np.uint64(self.partitions)).astype(np.int64)

    def shard_of_key(self, key: str) -> int:
        """The shard of one key. For every `send`: nothing of Arrow for a single one, but in logs."""
        if self.is_log and self.partitions > 1:
            return int(self.shards_of_keys(pa.array([key]))[0])
        # Imported late, as below.
        from xxhash import xxh64_intdigest

        return self._shard_list[xxh64_intdigest(key.encode()) % self.partitions]

    @cached_property
    def _shard_list(self) -> list[int]:
        shards: list[int] = self.by_partition.tolist()
        return shards

    def shards_of_ids(self, ids: Int64s) -> Int64s:
        """The shard of each message, by its id."""
        partitions = (np.asarray(ids, dtype=np.int64) >> SEQUENCE_BITS) % self.partitions
        return self.by_partition[partitions]

    def keeps_to(self, target: Layout) -> bool:
        """Whether a copy in `target` of any message, with a key or without, has a place on the shard of
        the message itself.
        """
        if self.shards == 1 or (self.all_shards == target.all_shards and len(self.all_shards) == 1):
            return True
        if self.is_log != target.is_log:
            return False
        if self.is_log:
            equal = self.partitions == target.partitions
            return equal and bool((self.by_partition == target.by_partition).all())
        turns = lcm(self.partitions, target.partitions)
        if turns > _COMPARED_MAX:
            return False
        hashes = np.arange(turns)
        ours = self.by_partition[hashes % self.partitions]
        theirs = target.by_partition[hashes % target.partitions]
        return bool((ours == theirs).all())


def _hashes(keys: pa.Array) -> NDArray[np.uint64]:
    # Imported late: clients of one shard load this module, and have nothing to hash.
    from fasti.core.columns.xxh64 import public_hashes

    return public_hashes(keys)
