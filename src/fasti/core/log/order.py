"""Order per key within a group: of the rows that share a key at most one is out at a time.

Rows of a key leave in the order of their offsets, the next one when the one before it is acked or
dead; a row that was given back keeps its key busy. Rows without a key go as they come.

The engine has no keys of a log's rows: storage is asked for their hashes, some way ahead of what is
handed out (`LoadKeys`, answered by `KeysLoaded`). A fresh row whose key is busy is *blocked*: it
waits in a queue of its key, while rows behind it go out. All of this is derived and never journaled:
after a start it is worked out anew from the window, once its hashes are here.

A dead row that is made to live again has lost its place: it goes out without regard to its key.

The sequencer's thread only.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s
from fasti.core.log.commands import KeysLoaded, LogPiece
from fasti.core.replies import Asked

Int64s = NDArray[np.int64]

# Asked for at a time; asked again when fewer than half of it is ahead.
KEYS_AHEAD = 65_536
# A turn looks at so many fresh rows and no more, however many of them are blocked.
_LOOKED_AT = 20_000
_NO_HASHES: UInt64s = np.zeros(0, dtype=np.uint64)


@dataclass(slots=True)
class LoadKeys(Asked):
    """Please read the keys of these rows of a log."""

    topic: int
    partition: int
    first_offset: int
    pieces: list[LogPiece]

    def failed(self) -> KeysLoaded:
        """An answer without hashes: the engine asks again, a little later."""
        return KeysLoaded(self.topic, self.partition, self.first_offset, _NO_HASHES)


class Order:
    """Which rows of one partition may go, for one group."""

    __slots__ = (
        "_blocked",
        "_busy",
        "_first",
        "_freed",
        "_hashes",
        "asked_from",
        "ready",
        "scanned",
    )

    def __init__(self, offset: int) -> None:
        # Hashes of the rows from `_first` on.
        self._first = offset
        self._hashes = _NO_HASHES
        # Fresh rows below were looked at: they went out or are blocked.
        self.scanned = offset
        # Whether what is in the window has been worked out.
        self.ready = False
        # What storage was asked for; None when it was asked for nothing.
        self.asked_from: int | None = None
        self._busy: set[int] = set()
        self._blocked: dict[int, deque[int]] = {}
        # A heap: rows whose key is free, and held for them.
        self._freed: list[int] = []

    @property
    def known_until(self) -> int:
        """The first offset whose hash is not known."""
        return self._first + len(self._hashes)

    @property
    def freed(self) -> int:
        """How many rows that were blocked may go now."""
        return len(self._freed)

    def wants_from(self, committed: int, end: int) -> int | None:
        """From where on keys should be read; None if enough is known, or being read."""
        if self.known_until < committed:
            self._first, self._hashes = committed, _NO_HASHES
        ahead = self.known_until - self.scanned
        enough = self.known_until >= end or (self.ready and ahead >= KEYS_AHEAD // 2)
        return None if enough or self.asked_from is not None else self.known_until

    def load(self, first: int, hashes: UInt64s, committed: int) -> None:
        """Storage has read keys."""
        if self.asked_from == first:
            self.asked_from = None
        begin = self.known_until - first
        if 0 <= begin < len(hashes):
            kept = self._hashes[max(0, committed - self._first) :]
            self._first = self.known_until - len(kept)
            self._hashes = np.concatenate([kept, hashes[begin:]])

    def rebuild(self, offsets: Int64s, entered: NDArray[np.bool_], end: int) -> None:
        """Works out what is busy, blocked or free.

        `offsets` are the unfinished rows of the window, in order, which ends at `end`; `entered`
        tells which are leased, or wait for their time after they were given back.
        """
        self.ready, self.scanned = True, end
        keys = self._hashes.take(offsets - self._first).tolist()
        for offset, key, out in zip(offsets.tolist(), keys, entered.tolist(), strict=True):
            if key and key in self._busy:
                self._blocked.setdefault(key, deque()).append(offset)
                continue
            if key:
                self._busy.add(key)
            if not out:
                heapq.heappush(self._freed, offset)

    def take(self, count: int, limit: int) -> Int64s:
        """Up to `count` rows that may go, fresh ones below the limit: they are on their way."""
        found = [heapq.heappop(self._freed) for _ in range(min(count, len(self._freed)))]
        end = min(limit, self.known_until, self.scanned + _LOOKED_AT)
        begin = self.scanned
        keys = self._hashes[begin - self._first : max(begin, end) - self._first].tolist()
        for offset, key in enumerate(keys, begin):
            if len(found) == count:
                break
            self.scanned = offset + 1
            if not key:
                found.append(offset)
            elif key in self._busy:
                self._blocked.setdefault(key, deque()).append(offset)
            else:
                self._busy.add(key)
                found.append(offset)
        return np.array(sorted(found), dtype=np.int64)

    def finished(self, offsets: Int64s) -> None:
        """Rows are acked or dead: the next of their keys may go."""
        if not self.ready:
            return
        here = offsets[(offsets >= self._first) & (offsets < self.known_until)]
        for key in self._hashes.take(here - self._first).tolist():
            if not key:
                continue
            queue = self._blocked.get(key)
            if queue is None:
                self._busy.discard(key)
                continue
            heapq.heappush(self._freed, queue.popleft())
            if not queue:
                del self._blocked[key]
