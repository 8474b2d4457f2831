"""A hash table in numpy: 64- or 128-bit keys to int64 values, a batch at a time.

Open addressing over buckets of eight slots. Eight 64-bit keys are one cache line, so a look-up
reads one line for almost every key, and a batch of look-ups is a handful of numpy calls however
long it is. A full bucket overflows into the next one.

Nothing is deleted. An entry whose value no longer means anything (its message is finished) stays
until the table is rebuilt, and the owner's `keep` says then which ones still count; whoever looks
an entry up checks its value anyway. When a table is 70 % full a new one is begun, sized for what
was kept, and every `put` moves a few buckets over, so no call ever stops to rebuild millions.
While that goes on look-ups ask the new table first, then the old, and an entry that has not been
moved yet is changed where it is: what is moved is never in the new table already. The new table's
memory is touched piece by piece beforehand: a large fresh table met by random keys would stall for
as long as the kernel needs to clear all of it. A large table is a mapping of its own, not a piece of
the C library's heap: there it leaves a hole when it goes, which the process never gives back.

Keys must be well mixed already (see hashing.py) and never 0, which marks an empty slot.
Values must be positive; `find` answers 0 for a stranger. One thread only.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]
Keep = Callable[[UInt64s, Int64s], NDArray[np.bool_]]

_WIDTH = 8
_BUCKETS_MIN = 8
_FULL = 0.7
# Late, for two tables at once are twice the memory, and early enough to touch every bucket: 2 % of the
# slots are 0.16 keys a bucket.
_PREPARE = 0.68
_REBUILT = 0.36
# Buckets moved per key put while a rebuild goes on. What stood at 70 % of n slots stands at 36 %
# of 1.94 n; until those are 68 % full 0.62 n puts come in, and n / 8 buckets must have moved.
_MOVED_PER_PUT = 0.28
_MOVED_MIN = 64
_MOVED_MAX = 4096
# Buckets touched per key put while the next table is prepared, and at least.
_TOUCHED_PER_PUT = 8
_TOUCHED_MIN = 2048
_BUCKETS_PER_PAGE = 4096 // (8 * _WIDTH)
# Tables from this size on are mappings of their own.
_MAPPED_BYTES = 1 << 20


def mix(values: Int64s) -> UInt64s:
    """Spreads small integers over 64 bits, one to one, so that they can serve as keys."""
    x = values.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class _Table:
    """One generation: fixed size, filled until 70 %."""

    def __init__(self, buckets: int, wide: bool) -> None:
        self.buckets = buckets
        self._scale = np.uint64(buckets)
        columns = _zeros((3 if wide else 2, buckets, _WIDTH))
        self.keys = columns[0]
        self.values = columns[1].view(np.int64)
        self.tails = columns[2] if wide else None
        self.used = 0
        self.touched = 0
        self.limit = int(buckets * _WIDTH * _FULL)

    def touch(self, buckets: int) -> None:
        """Writes a zero into each page of memory, so that the kernel gives it to us now."""
        rows = slice(self.touched, self.touched + buckets, _BUCKETS_PER_PAGE)
        self.keys[rows] = 0
        self.values[rows] = 0
        if self.tails is not None:
            self.tails[rows] = 0
        self.touched += buckets

    def home(self, keys: UInt64s) -> Int64s:
        """The bucket where each key's search begins; any number of buckets will do."""
        return (((keys >> np.uint64(32)) * self._scale) >> np.uint64(32)).astype(np.int64)

    def locate(self, keys: UInt64s, tails: UInt64s | None) -> Int64s:
        """The flat slot of each key, or -1."""
        slots = np.full(len(keys), -1, dtype=np.int64)
        if not self.used:
            return slots
        rows: Int64s | None = None
        buckets = self.home(keys)
        while True:
            lines = self.keys.take(buckets, axis=0)
            hits = (lines == keys[:, None]).view(np.uint64).ravel()
            found = hits.nonzero()[0]
            if len(found):
                # Each byte is 0 or 1: the zero bits below the first one tell which slot it is.
                at = _first_byte(hits[found]) + buckets[found] * _WIDTH
                if tails is not None:
                    same = self._tail_at(at) == tails[found]
                    if not same.all():
                        at = self._resolve(at, same, buckets[found], keys[found], tails[found])
                slots[found if rows is None else rows[found]] = at
            # Only a full bucket without the key sends the search on to the next bucket.
            on = ((hits == 0) & (lines[:, _WIDTH - 1] != 0)).nonzero()[0]
            if not len(on):
                return slots
            rows = on if rows is None else rows[on]
            keys = keys[on]
            tails = None if tails is None else tails[on]
            buckets = (buckets[on] + 1) % self.buckets

    def values_at(self, at: Int64s) -> Int64s:
        """The values in these slots; 0 where there is none."""
        known = (at >= 0).nonzero()[0]
        if len(known) == len(at):
            return self.values.reshape(-1).take(at)
        values = np.zeros(len(at), dtype=np.int64)
        values[known] = self.values.reshape(-1).take(at[known])
        return values

    def add(self, keys: UInt64s, tails: UInt64s | None, values: Int64s) -> None:
        """Adds keys that are not there, each once. The caller has made sure of the room."""
        self.used += len(keys)
        buckets = self.home(keys)
        if len(keys) > 1:
            # Those of one bucket stand together from here on, and take its slots in turn.
            order = _order(buckets)
            keys, values, buckets = keys[order], values[order], buckets[order]
            tails = None if tails is None else tails[order]
        while len(keys):
            filled = (self.keys.take(buckets, axis=0) != 0).view(np.uint64).ravel()
            place = np.bitwise_count(filled) + _turns(buckets)
            at = buckets * _WIDTH + place
            over = (place >= _WIDTH).nonzero()[0]
            if not len(over):
                self._write(at, keys, tails, values)
                return
            fit = (place < _WIDTH).nonzero()[0]
            self._write(at[fit], keys[fit], None if tails is None else tails[fit], values[fit])
            keys, values = keys[over], values[over]
            tails = None if tails is None else tails[over]
            buckets = (buckets[over] + 1) % self.buckets

    def _write(self, at: Int64s, keys: UInt64s, tails: UInt64s | None, values: Int64s) -> None:
        self.keys.reshape(-1)[at] = keys
        self.values.reshape(-1)[at] = values
        if self.tails is not None and tails is not None:
            self.tails.reshape(-1)[at] = tails

    def _tail_at(self, at: Int64s) -> UInt64s:
        assert self.tails is not None
        return self.tails.reshape(-1)[at]

    def _resolve(
        self, at: Int64s, same: NDArray[np.bool_], buckets: Int64s, keys: UInt64s, tails: UInt64s
    ) -> Int64s:
        """Equal in the first 64 bits and not in the last: one pair in 10^9 tables, but exact."""
        assert self.tails is not None
        for row in np.flatnonzero(~same).tolist():
            at[row] = -1
            bucket = int(buckets[row])
            while at[row] < 0:
                match = (self.keys[bucket] == keys[row]) & (self.tails[bucket] == tails[row])
                if match.any():
                    at[row] = bucket * _WIDTH + int(np.argmax(match))
                elif self.keys[bucket, _WIDTH - 1] == 0:
                    break
                bucket = (bucket + 1) % self.buckets
        return at


def _zeros(shape: tuple[int, int, int]) -> NDArray[np.uint64]:
    size = 8 * shape[0] * shape[1] * shape[2]
    if size < _MAPPED_BYTES:
        return np.zeros(shape, dtype=np.uint64)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # As numpy asks for its own: random look-ups then miss fewer entries of the page table. A
        # kernel that has no huge pages refuses.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint64).reshape(shape)


def _contiguous(keys: UInt64s) -> UInt64s:
    """A column of a table of hashes, laid out so that numpy is quick with it."""
    return np.ascontiguousarray(keys)


def _first_byte(hits: UInt64s) -> Int64s:
    """The index (0 to 7) of the lowest non-zero byte."""
    below = (hits & (~hits + np.uint64(1))) - np.uint64(1)
    return (np.bitwise_count(below) >> 3).astype(np.int64)


def _order(buckets: Int64s) -> NDArray[np.intp]:
    """By bucket. numpy sorts numbers of 16 bits ten times faster than wider ones."""
    ahead = buckets - buckets.min()
    low = ahead.astype(np.uint16)
    if int(ahead.max()) < 1 << 16:
        return np.argsort(low, kind="stable")
    return np.lexsort((low, (ahead >> 16).astype(np.uint16)))


def _turns(buckets: Int64s) -> Int64s:
    """How many of the same bucket stand before each, where those of one bucket stand together."""
    begins = (buckets[1:] != buckets[:-1]).nonzero()[0] + 1
    if len(begins) == len(buckets) - 1:
        return np.zeros(len(buckets), dtype=np.int64)
    begins = np.concatenate([[0], begins, [len(buckets)]])
    return np.arange(len(buckets)) - np.repeat(begins[:-1], np.diff(begins))


class HashIndex:
    """Keys to values. `wide` keys are (first 64 bits, last 64 bits)."""

    def __init__(self, keep: Keep, wide: bool = False, expected: int = 0) -> None:
        self._keep = keep
        self._wide = wide
        # Without any entry, no table: most topics have no keys, and most partitions no leftovers.
        self._table = _Table(_buckets_for(expected) if expected else 0, wide)
        self._next: _Table | None = None
        self._old: _Table | None = None
        self._moved = 0

    @property
    def size_bytes(self) -> int:
        """Memory of the tables."""
        slot_bytes = 24 if self._wide else 16
        tables = [table for table in (self._table, self._old, self._next) if table is not None]
        return sum(table.buckets * _WIDTH * slot_bytes for table in tables)

    @property
    def is_rebuilding(self) -> bool:
        """Whether there is something for `tidy` to do."""
        return self._old is not None

    def find(self, keys: UInt64s, tails: UInt64s | None = None) -> Int64s:
        """The value of each key, 0 where there is none."""
        if not self._table.buckets:
            return np.zeros(len(keys), dtype=np.int64)
        keys, tails = _contiguous(keys), None if tails is None else _contiguous(tails)
        at = self._table.locate(keys, tails)
        values = self._table.values_at(at)
        if self._old is not None:
            missing = (at < 0).nonzero()[0]
            if len(missing):
                rest = None if tails is None else tails[missing]
                values[missing] = self._old.values_at(self._old.locate(keys[missing], rest))
        return values

    def put(
        self, keys: UInt64s, values: Int64s, tails: UInt64s | None = None, new: bool = False
    ) -> None:
        """Sets the values of keys, none of which stands twice; `new` if none has an entry yet."""
        if not len(keys):
            return
        keys, tails = _contiguous(keys), None if tails is None else _contiguous(tails)
        self._make_room(len(keys))
        if not new:
            # Of the old table, what lies before has been moved, or left behind.
            for table, begin in ((self._table, 0), (self._old, self._moved * _WIDTH)):
                if table is not None:
                    at = table.locate(keys, tails)
                    known = at >= begin
                    table.values.reshape(-1)[at[known]] = values[known]
                    if known.all():
                        return
                    keys, values = keys[~known], values[~known]
                    tails = None if tails is None else tails[~known]
        self._table.add(keys, tails, values)

    def tidy(self) -> bool:
        """Goes on with a rebuild although nobody puts anything; True if there is more to do."""
        if self._old is not None:
            self._move(_MOVED_MAX)
        return self._old is not None

    def _make_room(self, count: int) -> None:
        if self._old is not None:
            self._move(int(min(_MOVED_MAX, max(_MOVED_MIN, count * _MOVED_PER_PUT))))
        table = self._table
        if not table.buckets:
            self._table = _Table(_buckets_for(count), self._wide)
            return
        if table.used + count <= table.limit * (_PREPARE / _FULL):
            return
        while self._old is not None:
            self._move(_MOVED_MAX)
        if self._next is None:
            self._next = _Table(self._buckets_wanted(count), self._wide)
        self._next.touch(max(_TOUCHED_MIN, count * _TOUCHED_PER_PUT))
        if table.used + count > table.limit:
            self._begin_rebuild(count)

    def _buckets_wanted(self, count: int) -> int:
        """How large the next table must be. What is kept is found out by looking at a sample."""
        table = self._table
        sample = table.keys[: min(table.buckets, 1024)]
        values = table.values[: len(sample)]
        filled = sample != 0
        kept = int(self._keep(sample[filled], values[filled]).sum()) if filled.any() else 0
        share = min(1.0, 1.1 * kept / max(1, int(filled.sum())))
        return _buckets_for(int(table.limit * share) + 2 * count)

    def _begin_rebuild(self, count: int) -> None:
        assert self._next is not None
        if self._next.limit < count:
            self._next = _Table(_buckets_for(2 * count), self._wide)
        self._old, self._moved = self._table, 0
        self._table, self._next = self._next, None
        if self._old.buckets <= _MOVED_MAX:
            self._move(self._old.buckets)

    def _move(self, buckets: int) -> None:
        """Carries a piece of the old table over; what nobody wants any more is left behind."""
        old = self._old
        assert old is not None
        rows = slice(self._moved, self._moved + buckets)
        filled = old.keys[rows] != 0
        keys, values = old.keys[rows][filled], old.values[rows][filled]
        tails = None if old.tails is None else old.tails[rows][filled]
        kept = self._keep(keys, values)
        if self._table.used + int(kept.sum()) > self._table.limit:
            self._table = self._doubled(self._table)
        self._table.add(keys[kept], None if tails is None else tails[kept], values[kept])
        self._moved += buckets
        if self._moved >= old.buckets:
            self._old = None

    def _doubled(self, table: _Table) -> _Table:
        # The sample misled us about how many are kept. Rare, and never in steady traffic.
        bigger = _Table(table.buckets * 2, self._wide)
        filled = table.keys != 0
        tails = None if table.tails is None else table.tails[filled]
        bigger.add(table.keys[filled], tails, table.values[filled])
        return bigger


def _buckets_for(expected: int) -> int:
    """As many buckets as hold this many at 36 %."""
    return max(_BUCKETS_MIN, int(expected / _REBUILT) // _WIDTH)
