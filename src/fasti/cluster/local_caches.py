"""What a broker has of its shards on its own disk: blocks and packs, for each shard that it led or followed.

One per process, so that one who asks for a shard that was led here before is answered as well. Any thread.
"""

from __future__ import annotations

import threading
from pathlib import Path

from fasti.cluster.block_cache import BlockCache
from fasti.cluster.pack_cache import PackCache


class LocalCaches:
    """Below ``directory``; the bytes are of each shard."""

    def __init__(self, directory: Path, cluster: str, blocks_bytes: int, packs_bytes: int) -> None:
        self._directory, self._cluster = directory, cluster
        self._blocks_bytes, self._packs_bytes = blocks_bytes, packs_bytes
        self._lock = threading.Lock()
        self._blocks: dict[int, BlockCache] = {}
        self._packs: dict[int, PackCache] = {}

    def knows(self, shard: int) -> bool:
        """Whether anything of this shard may be here."""
        name = f"{self._cluster}-{shard}"
        return any((self._directory / each).is_dir() for each in (name, f"{name}-packs"))

    def blocks(self, shard: int) -> BlockCache:
        with self._lock:
            if shard not in self._blocks:
                directory = self._directory / f"{self._cluster}-{shard}"
                self._blocks[shard] = BlockCache(directory, self._blocks_bytes)
            return self._blocks[shard]

    def packs(self, shard: int) -> PackCache:
        with self._lock:
            if shard not in self._packs:
                directory = self._directory / f"{self._cluster}-{shard}-packs"
                self._packs[shard] = PackCache(directory, self._packs_bytes)
            return self._packs[shard]

    def close(self) -> None:
        """Nothing is kept any more; what is there stays."""
        with self._lock:
            for cache in self._packs.values():
                cache.close()
