"""Works out the occurrences of schedules, in a thread of its own, and has them fired."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasti.broker.shard import Shard


class Scheduler:
    """One per service."""

    def __init__(self, shard: Shard, threaded: bool = True) -> None:
        self._shard, self._threaded = shard, threaded

    def start(self) -> None:
        """Begins to fire."""

    def stop(self) -> None:
        """Fires nothing more; returns when its thread has ended."""
