"""When each of many things is to be looked at next.

One heap holds a moment for each of them. A thing that is planned anew, or dropped, leaves its old
entry in the heap, where it no longer counts; entries that don't count go when they come first, or
when they are most of the heap. So things cost nothing until their moment. Things whose moment is the
same come in the order in which they were planned. One thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

FOREVER = (1 << 62) - 1
_SIZE_MIN = 64

Thing = TypeVar("Thing", bound=Hashable)


class Agenda(Generic[Thing]):
    """A moment for each thing that has one."""

    __slots__ = ("_heap", "_moments", "_planned", "first_us")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Thing]] = []
        # The entry of each thing that counts: its moment, and which one it is.
        self._moments: dict[Thing, tuple[int, int]] = {}
        self._planned = 0
        # Nothing is planned before this: for those who look in every step.
        self.first_us = FOREVER

    def __len__(self) -> int:
        return len(self._moments)

    def __contains__(self, thing: Thing) -> bool:
        return thing in self._moments

    def plan(self, thing: Thing, at_us: int) -> None:
        """The thing's moment is this one; FOREVER: it has none."""
        moment = self._moments.get(thing)
        if moment is not None and moment[0] == at_us:
            return
        if at_us >= FOREVER:
            self.drop(thing)
            return
        self._planned += 1
        self._moments[thing] = (at_us, self._planned)
        if at_us < self.first_us:
            self.first_us = at_us
        heapq.heappush(self._heap, (at_us, self._planned, thing))
        if len(self._heap) > max(_SIZE_MIN, 2 * len(self._moments)):
            self._heap = [(*moment, thing) for thing, moment in self._moments.items()]
            heapq.heapify(self._heap)

    def plan_by(self, thing: Thing, at_us: int) -> None:
        """The thing's moment is this one, or the one that it has if that is earlier."""
        moment = self._moments.get(thing)
        if moment is None or at_us < moment[0]:
            self.plan(thing, at_us)

    def drop(self, thing: Thing) -> None:
        """The thing has no moment; one that has none is fine."""
        self._moments.pop(thing, None)

    def next_us(self) -> int:
        """The first moment; FOREVER if there is none."""
        heap, moments = self._heap, self._moments
        while heap and moments.get(heap[0][2]) != heap[0][:2]:
            heapq.heappop(heap)
        self.first_us = heap[0][0] if heap else FOREVER
        return self.first_us

    def pop(self, now_us: int) -> Thing | None:
        """The first thing whose moment has come, which has none from then on; None: not yet."""
        if self.first_us > now_us or self.next_us() > now_us:
            return None
        thing = heapq.heappop(self._heap)[2]
        del self._moments[thing]
        return thing
