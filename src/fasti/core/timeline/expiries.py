"""When messages expire: a calendar of its own beside that of due times, for those that do.

A message that is not handed out by its moment is dead then. Entries are sequences, and hints as in
the time index: what a row says counts (`resolve`). The calendar gives slices of 16 ms; what of a
slice is not over yet waits in `_soon`, so that a message dies at its moment and not before.

A partition has this only once one of its messages expires: without, nothing is looked at.
The sequencer's thread only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.core.calendar.wheel import Calendar, Resolve
from fasti.core.columns.reductions import distinct, lowest, some

Int64s = NDArray[np.int64]

_NOBODY = np.zeros(0, dtype=np.int64)


class Expiries:
    """The moments of one partition's messages."""

    __slots__ = ("_calendar", "_soon", "_soon_us")

    def __init__(self) -> None:
        self._calendar = Calendar()
        # Entries that have left the calendar, and the earliest of their moments.
        self._soon: Int64s = _NOBODY
        self._soon_us = 0

    def add(self, sequences: Int64s, moments: Int64s, at_us: int) -> None:
        """Messages expire then."""
        calendar = self._calendar
        calendar.begin_at(at_us)
        past = moments < calendar.cursor_us
        if some(past):
            first_us = lowest(moments[past])
            self._soon_us = min(self._soon_us, first_us) if len(self._soon) else first_us
            self._soon = np.concatenate([self._soon, sequences[past]])
            sequences, moments = sequences[~past], moments[~past]
        calendar.insert(sequences, moments)

    @property
    def entries(self) -> int:
        """How many there are, stale ones included."""
        return self._calendar.entries + len(self._soon)

    def sweep(self, resolve: Resolve) -> None:
        """Drops the stale ones of a bounded number of entries."""
        self._calendar.sweep(resolve)

    def pull(self, now_us: int, resolve: Resolve, count: int) -> tuple[Int64s, bool]:
        """Up to `count` messages that are over now, and whether there is more to do at once."""
        left, more = _NOBODY, True
        if not len(self._soon) or self._soon_us > now_us:
            # Not while some that are over wait for their turn: each pull would look at all of them.
            (left, _), more = self._calendar.pull(now_us, resolve)
        sequences, moments = resolve(distinct(np.concatenate([self._soon, left])))
        over = np.flatnonzero(moments <= now_us)[:count]
        rest = np.ones(len(sequences), dtype=np.bool_)
        rest[over] = False
        self._soon = sequences[rest]
        self._soon_us = lowest(moments[rest]) if len(self._soon) else 0
        return sequences[over], more or (len(self._soon) > 0 and self._soon_us <= now_us)

    def next_us(self) -> int | None:
        """Nothing is over before this moment; None if nothing expires."""
        coming = self._calendar.next_us()
        if not len(self._soon):
            return coming
        return self._soon_us if coming is None else min(self._soon_us, coming)
