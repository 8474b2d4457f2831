"""How much journal the shards of one process may have together: to be replayed, and for the change feed.

Both limits are the process's, however many shards it has: so a restart takes as long, and the disk holds as
much, as with one shard. The shard with the longest tail since its last checkpoint is the next to make one. A
shard may keep what the others leave of the change feed's room, and its equal part in any case: it learns that
they need theirs when it makes a checkpoint.

Any thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasti.broker.shard import Shard
    from fasti.config import ShardSettings


class JournalBudget:
    """Of one process."""

    def __init__(self, settings: ShardSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        # Replaced as a whole.
        self._shards: tuple[Shard, ...] = ()

    def add(self, shard: Shard) -> None:
        """It is open, and has a journal from now on."""
        with self._lock:
            self._shards = (*self._shards, shard)

    def remove(self, shard: Shard) -> None:
        """It is closed."""
        with self._lock:
            self._shards = tuple(other for other in self._shards if other is not shard)

    @property
    def grown(self) -> float:
        """What all shards have written since their last checkpoints, as a part of what may be to replay."""
        return sum(map(self._part, self._shards))

    def _part(self, shard: Shard) -> float:
        by_bytes = shard.committer.written_bytes / self._settings.checkpoint_bytes
        return by_bytes + shard.store.tail_frames / self._settings.checkpoint_frames

    def due_for_checkpoint(self) -> Shard | None:
        """The shard that is to make one."""
        return None if self.grown < 1 else max(self._shards, key=self._part)

    def feed_bytes(self, shard: Shard) -> int:
        """How much of its journal a shard may keep for the change feed."""
        limit = self._settings.feed_bytes
        others = sum(other.store.feed_bytes for other in self._shards if other is not shard)
        return max(limit - others, limit // max(1, len(self._shards)))
