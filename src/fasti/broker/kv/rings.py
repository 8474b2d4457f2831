"""The latest durable changes of key-value topics that somebody watches or scans.

A ring holds what each group of frames did to one topic, from a position on (`base`) and up to the
last frame that is durable (`reached`), within a bound of rows, bytes and moments: what is older is read from
the journal. The committer's thread fills the rings, before anybody is told that a change happened;
any thread reads them.

Where a ring begins: it is opened first and collects from then on; whoever opened it then asks the
engine for its position, which is answered behind everything that was decided before, and says so
(`begin`). When the shard recovers, all rings are emptied and begin again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from fasti.core.events import Event, Replaced
from fasti.core.kv.events import KvProduced, Removed
from fasti.core.replies import Frame
from fasti.runtime import Runtime

ROWS_MAX = 65_536
BYTES_MAX = 16 << 20
# One of a single row holds on to kilobytes, whatever its batch says of its bytes.
MOMENTS_MAX = 4_096
# Rings without readers that are kept: somebody whose connection was lost comes back to them.
_IDLE_MAX = 16

KV_EVENTS = (KvProduced, Replaced, Removed)
# An event, and the rows of its frame.
Happened = tuple[Any, pa.RecordBatch]
# One thread makes the rows of a moment while others wait for them.
_MAKING = threading.Lock()


class Moment:
    """What one group of frames did to a topic: all of it happened at once."""

    __slots__ = ("_batch", "happened", "position", "rows", "size_bytes")

    def __init__(self, position: int, happened: list[Happened]) -> None:
        # The group's last frame.
        self.position = position
        self.happened = happened
        # How many changes these are, and about how much memory they hold.
        self.rows = sum(len(event.row) for event, _ in happened)
        self.size_bytes = sum(batch.nbytes for _, batch in happened)
        self._batch: pa.RecordBatch | None = None

    def batch(self, make: Callable[[int, list[Happened]], pa.RecordBatch]) -> pa.RecordBatch:
        """Its rows, which are made once, for all who watch."""
        with _MAKING:
            if self._batch is None:
                self._batch = make(self.position, self.happened)
                self.happened = []
            return self._batch


Listener = Callable[[Moment | None], None]


class Ring:
    """The latest changes of one topic."""

    def __init__(self, topic: int, changed: threading.Condition) -> None:
        self.topic, self._changed = topic, changed
        self.readers = 0
        self._moments: deque[Moment] = deque()
        self._rows = self._bytes = 0
        # None: where it begins is not known (yet, or any more).
        self._base: int | None = None
        self._reached = 0
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Calls it with every moment, in the committer's thread, and with None when emptied."""
        with self._changed:
            self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """No more."""
        with self._changed:
            self._listeners.remove(listener)

    def begin(self, position: int) -> None:
        """It is complete behind this position. Again: nothing happens."""
        with self._changed:
            if self._base is None:
                self._base = position
                self._reached = max(self._reached, position)
                while self._moments and self._moments[0].position <= position:
                    self._drop_first()
                self._changed.notify_all()

    def after(self, position: int) -> tuple[list[Moment], int] | None:
        """What happened behind a position, and how far that goes; None if the ring can't tell."""
        with self._changed:
            if self._base is None or position < self._base:
                return None
            # From the end: whoever keeps up looks at the last few only.
            later = takewhile(lambda moment: moment.position > position, reversed(self._moments))
            return list(later)[::-1], max(self._reached, position)

    @property
    def base(self) -> int | None:
        """The position behind which it is complete."""
        return self._base

    def wait(self, position: int, timeout: float, over: Callable[[], bool]) -> bool:
        """Sleeps until something may have happened behind a position; False if not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._has(position) or over(), timeout)

    def _has(self, position: int) -> bool:
        if self._base is None or position < self._base:
            return True
        return bool(self._moments) and self._moments[-1].position > position

    def wake(self) -> None:
        """Whoever waits is to look up."""
        with self._changed:
            self._changed.notify_all()

    # The committer's thread

    def add(self, happened: list[Happened], position: int) -> None:
        """A group of frames is durable; `happened` may be empty."""
        with self._changed:
            self._reached = position
            if not happened:
                return
            moment = Moment(position, happened)
            for listener in self._listeners:
                listener(moment)
            self._moments.append(moment)
            self._rows += moment.rows
            self._bytes += moment.size_bytes
            while self._is_full():
                dropped = self._drop_first()
                if self._base is not None:
                    self._base = max(self._base, dropped.position)
            self._changed.notify_all()

    def clear(self) -> None:
        """The shard has recovered."""
        with self._changed:
            self._moments.clear()
            self._rows = self._bytes = self._reached = 0
            self._base = None
            for listener in self._listeners:
                listener(None)
            self._changed.notify_all()

    def _is_full(self) -> bool:
        rows, size_bytes = self._rows > ROWS_MAX, self._bytes > BYTES_MAX
        return rows or size_bytes or len(self._moments) > MOMENTS_MAX

    def _drop_first(self) -> Moment:
        dropped = self._moments.popleft()
        self._rows -= dropped.rows
        self._bytes -= dropped.size_bytes
        return dropped


class Rings:
    """All rings of a shard."""

    def __init__(self, runtime: Runtime) -> None:
        self._condition = runtime.condition
        self._lock = threading.Lock()
        self.by_topic: OrderedDict[int, Ring] = OrderedDict()

    # The committer's thread

    def durable(self, frames: Sequence[Frame]) -> None:
        """These are in the journal, in this order: whole groups."""
        with self._lock:
            rings = list(self.by_topic.values())
        group: list[Frame] = []
        for frame in frames:
            group.append(frame)
            if frame.ends_group:
                found = _by_topic(group)
                for ring in rings:
                    ring.add(found.get(ring.topic, []), frame.sequence)
                group = []

    def reset(self) -> None:
        """The shard has recovered: what is durable is what the journal has."""
        with self._lock:
            rings = list(self.by_topic.values())
        for ring in rings:
            ring.clear()

    # Any thread

    def open(self, topic: int) -> Ring:
        """The ring of a topic, which collects from now on; to be given back to `close`."""
        with self._lock:
            ring = self.by_topic.get(topic)
            if ring is None:
                ring = self.by_topic[topic] = Ring(topic, self._condition())
            ring.readers += 1
            self.by_topic.move_to_end(topic)
            return ring

    def close(self, ring: Ring) -> None:
        """One reader fewer. The ring is kept for a while."""
        with self._lock:
            ring.readers -= 1
            idle = [number for number, each in self.by_topic.items() if not each.readers]
            for number in idle[:-_IDLE_MAX]:
                del self.by_topic[number]


def _by_topic(group: Iterable[Frame]) -> dict[int, list[Happened]]:
    """What happened to entries, by the topic's number."""
    found: dict[int, list[Happened]] = {}
    for frame in group:
        for event in frame.events:
            if isinstance(event, KV_EVENTS) and frame.rows is not None:
                found.setdefault(event.topic, []).append((event, frame.rows.batch))
    return found


def happened_to(topic: int, events: Iterable[Event], rows: Any) -> list[Happened]:
    """Of a frame that was read back what it did to one topic."""
    return [
        (event, rows.batch)
        for event in events
        if isinstance(event, KV_EVENTS) and event.topic == topic
    ]
