"""The forecast: how many messages are due when."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.model import MINUTE_US

Int64s = NDArray[np.int64]

BUCKET_US = MINUTE_US
_GATHERED_MAX = 32_768
_DENSE_MINUTES = 1 << 20


class Histogram:
    """How many messages are due when: exact counts per minute, without looking at the messages.

    Due times are only collected; when 32,768 have gathered, or are asked for, they are sorted into the
    sparse table once. Where they lie within two years, counting needs no sort.
    """

    def __init__(self) -> None:
        self._minutes = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._gathered: list[tuple[Int64s, int]] = []
        self._gathered_rows = 0

    def add(self, due: Int64s) -> None:
        """These came. The array is kept until it is counted: the caller must not change it."""
        self._gather(due, 1)

    def remove(self, due: Int64s) -> None:
        """These went."""
        self._gather(due, -1)

    def between(self, from_us: int, to_us: int, bucket_us: int) -> tuple[Int64s, Int64s]:
        """Starts of the buckets that have messages, and their counts. Minutes are the finest."""
        self._settle()
        first = -(-from_us // BUCKET_US)
        begin, end = np.searchsorted(self._minutes, [first, -(-to_us // BUCKET_US)])
        starts = self._minutes[begin:end] * BUCKET_US
        starts = starts - (starts - from_us) % bucket_us
        return _sum_equal(starts, self._counts[begin:end])

    def first_us(self) -> int | None:
        """The start of the first minute that has messages."""
        self._settle()
        return int(self._minutes[0]) * BUCKET_US if len(self._minutes) else None

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return 2 * self._minutes.nbytes + 8 * self._gathered_rows

    @property
    def total(self) -> int:
        """All that came and have not gone."""
        self._settle()
        return int(self._counts.sum())

    def _gather(self, due: Int64s, sign: int) -> None:
        if not len(due):
            return
        self._gathered.append((due, sign))
        self._gathered_rows += len(due)
        if self._gathered_rows >= _GATHERED_MAX or len(self._gathered) >= 4096:
            self._settle()

    def _settle(self) -> None:
        if not self._gathered:
            return
        came = self._minutes_of(1)
        went = self._minutes_of(-1)
        self._gathered.clear()
        self._gathered_rows = 0
        parts = [part for part in (self._minutes, came, went) if len(part)]
        low = min(int(part.min()) for part in parts)
        span = max(int(part.max()) for part in parts) - low + 1
        if span <= _DENSE_MINUTES:
            counts = np.bincount(came - low, minlength=span) - np.bincount(
                went - low, minlength=span
            )
            counts[self._minutes - low] += self._counts
            present = np.flatnonzero(counts)
            self._minutes, self._counts = present + low, counts[present]
        else:
            self._settle_sparse(came, went)
        assert not len(self._counts) or int(self._counts.min()) > 0

    def _minutes_of(self, sign: int) -> Int64s:
        dues = [due for due, its_sign in self._gathered if its_sign == sign]
        return np.concatenate(dues) // BUCKET_US if dues else np.zeros(0, dtype=np.int64)

    def _settle_sparse(self, came: Int64s, went: Int64s) -> None:
        every = np.concatenate([self._minutes, came, went])
        signs = np.repeat([1, -1], [len(came), len(went)])
        order = np.argsort(every, kind="stable")
        changes = np.concatenate([self._counts, signs])[order]
        minutes, counts = _sum_equal(every[order], changes)
        present = counts != 0
        self._minutes, self._counts = minutes[present], counts[present]


def _sum_equal(keys: Int64s, counts: Int64s) -> tuple[Int64s, Int64s]:
    """Adds up the counts of equal keys; the keys are sorted."""
    if not len(keys):
        return keys, counts
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    return keys[starts], np.add.reduceat(counts, starts)
