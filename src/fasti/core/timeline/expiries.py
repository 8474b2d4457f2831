"""When messages expire: a calendar of its own beside that of due times, for those that do.

A message that is not handed out by its moment is dead then. Entries are sequences, and hints as in
the time index: what a row says counts. The calendar gives slices of 16 ms; what of a slice is not
over yet waits in `_soon`, so that a message dies at its moment and not before. The next look is
planned (`Memory.plans`), so that nothing is looked at before.

A partition has this only once one of its messages expires.
The sequencer's thread only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.core.calendar.wheel import Calendar
from fasti.core.columns import codes
from fasti.core.columns.reductions import distinct, lowest, some
from fasti.core.rows.arena import EXPIRES, STATE_MASK, Ledger
from fasti.core.rows.memory import Memory

Int64s = NDArray[np.int64]

_NOBODY = np.zeros(0, dtype=np.int64)


class Expiries:
    """The moments of one partition's messages."""

    def __init__(self, memory: Memory, place: tuple[int, int], ledger: Ledger) -> None:
        self._arena, self._plans = memory.arena, memory.plans
        self._place, self._ledger = place, ledger
        self._calendar = Calendar()
        # Entries that have left the calendar, and the earliest of their moments.
        self._soon: Int64s = _NOBODY
        self._soon_us = 0

    def plan(self, sequences: Int64s, slots: Int64s, at_us: int) -> None:
        """Rows that became scheduled, or were given a moment, are looked at when it comes."""
        expires = self._expires(slots)
        if some(expires):
            moments = self._arena.moment.take(slots[expires], mode="clip")
            self.add(sequences[expires], moments, at_us)

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
        self._plan_next()

    @property
    def entries(self) -> int:
        """How many there are, stale ones included."""
        return self._calendar.entries + len(self._soon)

    def sweep(self) -> None:
        """Drops the stale ones of a bounded number of entries."""
        self._calendar.sweep(self._resolve)

    def pull(self, now_us: int, count: int) -> Int64s:
        """Up to `count` scheduled messages that are over now; the next look is planned."""
        left, more = _NOBODY, True
        if not len(self._soon) or self._soon_us > now_us:
            # Not while some that are over wait for their turn: each pull would look at all of them.
            (left, _), more = self._calendar.pull(now_us, self._resolve)
        sequences, moments = self._resolve(distinct(np.concatenate([self._soon, left])))
        over = np.flatnonzero(moments <= now_us)[:count]
        rest = np.ones(len(sequences), dtype=np.bool_)
        rest[over] = False
        self._soon = sequences[rest]
        self._soon_us = lowest(moments[rest]) if len(self._soon) else 0
        if more or (len(self._soon) > 0 and self._soon_us <= now_us):
            self._plans.plan_by(self._place, now_us)
        else:
            self._plan_next()
        # One that is leased may still be acked; if it comes back instead, it dies then.
        flags = self._arena.flags.take(self._ledger.slots(sequences[over]), mode="clip")
        return sequences[over][flags & STATE_MASK == codes.SCHEDULED]

    def is_over(self, slots: Int64s, now_us: int) -> NDArray[np.bool_]:
        """Which live rows have expired."""
        return self._expires(slots) & (self._arena.moment.take(slots, mode="clip") <= now_us)

    def moments_of(self, slots: Int64s) -> Int64s | None:
        """When each live row expires, 0: never; None if none does."""
        expires = self._expires(slots)
        if not some(expires):
            return None
        return np.where(expires, self._arena.moment.take(slots, mode="clip"), 0)

    def _expires(self, slots: Int64s) -> NDArray[np.bool_]:
        return self._arena.flags.take(slots, mode="clip") & EXPIRES != 0

    def _resolve(self, sequences: Int64s) -> tuple[Int64s, Int64s]:
        """Of entries, those that expire, with their moments: also leased ones, which may come back."""
        slots = self._ledger.slots(sequences)
        flags = self._arena.flags.take(slots, mode="clip")
        states = flags & STATE_MASK
        live = (states == codes.SCHEDULED) | (states == codes.LEASED)
        good = live & (flags & EXPIRES != 0)
        return sequences[good], self._arena.moment.take(slots[good], mode="clip")

    def _plan_next(self) -> None:
        """Nothing is over before the first moment."""
        coming = self._calendar.next_us()
        if len(self._soon):
            coming = self._soon_us if coming is None else min(self._soon_us, coming)
        if coming is not None:
            self._plans.plan_by(self._place, coming)
