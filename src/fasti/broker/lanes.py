"""Bulk that waits for its step, in a lane for each producer: one request of each in turn.

A producer that writes as fast as it is answered has several large batches here at any time. Behind all of
them a small batch of another producer would wait for as many steps; so it waits for one. In a lane order
holds, because a producer's order is promised; between producers no order is.

With the sequencer's lock held.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from fasti.broker.request import Request


class Lanes:
    """What the sequencer takes bulk from: like a deque, but for the order between producers."""

    def __init__(self) -> None:
        # The first has the turn. None is empty.
        self._lanes: OrderedDict[tuple[str, str], deque[Request]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for lane in self._lanes.values():
            yield from lane

    @property
    def first(self) -> Request:
        """The next to be taken; the same until it is. Only while there is one."""
        return next(iter(self._lanes.values()))[0]

    def append(self, request: Request) -> None:
        """It goes behind what its producer has here."""
        self._lanes.setdefault(request.lane, deque()).append(request)
        self._count += 1

    def appendleft(self, request: Request) -> None:
        """It is taken next."""
        name = request.lane
        self._lanes.setdefault(name, deque()).appendleft(request)
        self._lanes.move_to_end(name, last=False)
        self._count += 1

    def popleft(self) -> Request:
        """Takes the first. Then other lanes have their turn."""
        name, lane = next(iter(self._lanes.items()))
        request = lane.popleft()
        if lane:
            self._lanes.move_to_end(name)
        else:
            del self._lanes[name]
        self._count -= 1
        return request

    def clear(self) -> None:
        """Nothing waits any more."""
        self._lanes.clear()
        self._count = 0
