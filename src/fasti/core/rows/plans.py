"""Which partitions have something to do by themselves, and when: one heap for all."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasti.core.timeline.partition import Partition

_FOREVER = (1 << 62) - 1
_SIZE_MIN = 64


class Plans:
    """Moments by partition; of several for one partition the earliest counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Partition]] = []
        self._numbers = count()
        self._size_max = _SIZE_MIN
        # Nothing is planned before this: every step looks at it.
        self.first_us = _FOREVER

    def add(self, at_us: int, partition: Partition) -> None:
        """The partition wants to be looked at then, or before."""
        if at_us < partition.planned_us:
            partition.planned_us = at_us
            self.first_us = min(self.first_us, at_us)
            heapq.heappush(self._heap, (at_us, next(self._numbers), partition))
            if len(self._heap) > self._size_max:
                self._tidy()

    def pop(self, now_us: int) -> Partition | None:
        """A partition whose moment has come; it plans the next one itself."""
        if self.next_us() > now_us:
            return None
        _, _, partition = heapq.heappop(self._heap)
        partition.planned_us = _FOREVER
        return partition

    def next_us(self) -> int:
        """The next moment."""
        while self._heap and self._heap[0][2].planned_us != self._heap[0][0]:
            heapq.heappop(self._heap)
        self.first_us = self._heap[0][0] if self._heap else _FOREVER
        return self.first_us

    def _tidy(self) -> None:
        """Drops what doesn't count any more: a far moment leaves an entry behind for each nearer one."""
        self._heap = [
            (partition.planned_us, next(self._numbers), partition)
            for partition in {entry[2]: None for entry in self._heap}
            if partition.planned_us != _FOREVER
        ]
        heapq.heapify(self._heap)
        self._size_max = max(_SIZE_MIN, 2 * len(self._heap))
