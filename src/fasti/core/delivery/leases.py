"""The leases that are out: one row each, in columns of a fixed size.

A lease is a consumer's exclusive right to a message until a tick (the broker's monotonic time),
under a fencing token that only grows. Slots are reused from a stack, so the rows in use stay at
the low end and a look at all of them (who expired, what does this consumer hold) is one numpy
call over a short range. Expiry is looked for only when the earliest deadline known may have
passed; that bound is lowered by every new lease and worked out anew by every look.

Deadlines are ticks and mean nothing after a restart: the engine arms every lease anew then, for its
full length from the tick of the new start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import every, highest, lowest
from fasti.errors import Overloaded

if TYPE_CHECKING:
    from fasti.core.rows.memory import Undo

Int64s = NDArray[np.int64]

NEVER = (1 << 62) - 1
_COLUMNS: dict[str, type[np.generic]] = {
    "token": np.int64,
    "sequence": np.int64,
    "until": np.int64,  # tick
    "hold_until": np.int64,  # tick: renewals by heartbeat end here
    "length": np.int64,  # microseconds, what a renewal gives
    "since": np.int64,  # when it was given, on the broker's clock; 0: not known
    "topic": np.int32,
    "partition": np.int32,
    "consumer": np.int32,
    "reason": np.int32,  # why the message last came back; 0: it never did, or no reason was given
    "sign": np.int8,  # what is known of the holder since it got the message: see below
}
# Nothing is known of the holder; it gave a sign of life; it is known to be silent since.
UNKNOWN, ALIVE, SILENT = 0, 1, 2
# Free slots that are written at once.
_FREE_ROWS = 8_192
_ROW_BYTES = sum(np.dtype(kind).itemsize for kind in _COLUMNS.values())
_DURABLE = ("token", "sequence", "length", "topic", "partition", "consumer", "reason", "since")


@dataclass(frozen=True, slots=True)
class LeaseView:
    """Leases as they were at one moment, copied: slots and numbers of names serve others later."""

    consumer: NDArray[np.int32]
    reason: NDArray[np.int32]
    since_us: Int64s
    until_us: Int64s


class LeaseTable:
    """All leases of a shard. Slot 0 is never used: its token is 0, which no lease has."""

    token: Int64s
    sequence: Int64s
    until: Int64s
    hold_until: Int64s
    length: Int64s
    since: Int64s
    topic: NDArray[np.int32]
    partition: NDArray[np.int32]
    consumer: NDArray[np.int32]
    reason: NDArray[np.int32]
    sign: NDArray[np.int8]

    def __init__(self, capacity: int) -> None:
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(capacity + 1, dtype=kind))
        self._seen = np.zeros(capacity + 1, dtype=np.int32)
        # A stack, whose bottom is written when it is come to: a shard that is idle takes no memory for it.
        self._free = np.empty(capacity, dtype=np.int64)
        self._free_count = self._unwritten = capacity
        self._top = 1
        self.next_token = 1
        self.expiry_bound = NEVER

    @property
    def free(self) -> int:
        """How many more leases there is room for."""
        return self._free_count

    @property
    def size_bytes(self) -> int:
        """What the columns take up to the highest slot that was ever used."""
        return self._top * _ROW_BYTES

    @property
    def active(self) -> int:
        """How many leases are out."""
        return len(self._free) - self._free_count

    def open(
        self,
        sequences: Int64s,
        topic: int,
        partition: int,
        consumer: int,
        token: Int64s | int,
        length: Int64s | int,
        since: Int64s | int = 0,
        reason: NDArray[Any] | int = 0,
    ) -> Int64s:
        """Slots for new leases. Their deadlines are set by `arm`."""
        count = len(sequences)
        if count > self._free_count:
            raise Overloaded("too many leases are out")
        if not count:
            return np.zeros(0, dtype=np.int64)
        self._free_count -= count
        if self._free_count < self._unwritten:
            self._write_free()
        slots = self._free[self._free_count : self._free_count + count][::-1].copy()
        self._top = max(self._top, highest(slots) + 1)
        rows = _range_or_slots(slots)
        self.sequence[rows] = sequences
        self.topic[rows] = topic
        self.partition[rows] = partition
        self.consumer[rows] = consumer
        self.token[rows] = token
        self.length[rows] = length
        self.since[rows] = since
        self.reason[rows] = reason
        self.sign[rows] = UNKNOWN
        last_token = token if isinstance(token, int) else highest(token)
        self.next_token = max(self.next_token, last_token + 1)
        return slots

    def _write_free(self) -> None:
        """Down to the place that is needed, and some more: as if all had been written in the beginning."""
        begin = max(0, self._free_count - _FREE_ROWS)
        places = np.arange(begin, self._unwritten, dtype=np.int64)
        self._free[begin : self._unwritten] = len(self._free) - places
        self._unwritten = begin

    def close(self, slots: Int64s) -> None:
        """The leases are over; their slots serve again."""
        rows = _range_or_slots(slots)
        self.token[rows] = 0
        self.until[rows] = NEVER
        self._free[self._free_count : self._free_count + len(slots)] = slots[::-1]
        self._free_count += len(slots)
        if self._free_count == len(self._free):
            self._top = 1

    def arm(
        self, slots: Int64s, until: Int64s | int, hold_until: Int64s | int | None = None
    ) -> None:
        """Sets deadlines, and how far renewals can move them."""
        rows = _range_or_slots(slots)
        self.until[rows] = until
        if hold_until is not None:
            self.hold_until[rows] = hold_until
        if len(slots):
            first = until if isinstance(until, int) else lowest(until)
            self.expiry_bound = min(self.expiry_bound, first)

    def renew(self, slots: Int64s, tick: int) -> None:
        """A heartbeat: each lease gets its length again, up to its longest hold.

        It never shortens one: a lease that was extended, or whose message was sent ahead of its
        time, may run longer already.
        """
        renewed = np.minimum(tick + self.length[slots], self.hold_until[slots])
        self.arm(slots, np.maximum(renewed, self.until[slots]))
        self.sign[slots] = ALIVE

    def resume(self, slots: Int64s, token: int, tick: int) -> None:
        """Their consumer came back: they run under a new token."""
        self.token[slots] = token
        self.next_token = max(self.next_token, token + 1)
        self.renew(slots, tick)

    def extend(self, slots: Int64s, length_us: int, tick: int, undo: Undo) -> None:
        """Each runs so long from now."""
        until, length, sign = self.until[slots], self.length[slots], self.sign[slots]

        def take_back() -> None:
            self.length[slots], self.sign[slots] = length, sign
            self.arm(slots, until)

        undo.note(take_back)
        self.length[slots] = length_us
        self.arm(slots, tick + length_us)
        self.note_alive(slots)

    def note_silent(self, slots: Int64s, after_token: int) -> int:
        """Nothing was heard from the holder since the lease of that token: how many are news."""
        new = slots[(self.token[slots] > after_token) & (self.sign[slots] == UNKNOWN)]
        self.sign[new] = SILENT
        return len(new)

    def note_alive(self, slots: Int64s) -> None:
        """The holder was heard."""
        self.sign[slots] = ALIVE

    def live(self) -> Int64s:
        """Slots of all leases that are out."""
        return np.flatnonzero(self.token[: self._top])

    def view(self, ahead_us: int, slots: Int64s | None = None) -> LeaseView:
        """Some slots, or all in use. `ahead_us`: the broker's clock less its tick."""
        rows = np.arange(self._top) if slots is None else slots
        until_us = self.until.take(rows) + ahead_us
        return LeaseView(
            self.consumer.take(rows), self.reason.take(rows), self.since.take(rows), until_us
        )

    def held_by(self, consumer: int, topic: int) -> Int64s:
        """Slots of the leases that a consumer has on a topic."""
        rows = slice(0, self._top)
        mine = (self.consumer[rows] == consumer) & (self.topic[rows] == topic)
        return np.flatnonzero(mine & (self.token[rows] != 0))

    def repeats(self, slots: NDArray[np.integer[Any]]) -> bool:
        """Whether a slot stands twice. Each writes its number; who is overwritten isn't alone."""
        if len(slots) < 2:
            return False
        numbers = np.arange(len(slots), dtype=np.int32)
        self._seen[slots] = numbers
        return not every(self._seen.take(slots, mode="clip") == numbers)

    def expired(self, tick: int, count: int) -> Int64s:
        """Slots of up to `count` leases whose deadline has passed."""
        if tick < self.expiry_bound:
            return np.zeros(0, dtype=np.int64)
        live = self.live()
        until = self.until[live]
        over = live[until <= tick]
        if len(over) > count:
            self.expiry_bound = tick
            return over[:count]
        self.expiry_bound = int(until[until > tick].min(initial=NEVER))
        return over

    def columns(self) -> dict[str, NDArray[Any]]:
        """A copy of what is durable of every live lease, for a checkpoint."""
        slots = self.live()
        return {name: getattr(self, name)[slots] for name in _DURABLE}


def _range_or_slots(slots: Int64s) -> Int64s | slice:
    """Slots that follow one another as a range, which numpy writes ten times faster."""
    if len(slots) > 1:
        first, last = int(slots[0]), int(slots[-1])
        if last - first == len(slots) - 1 and every(slots[1:] - slots[:-1] == 1):
            return slice(first, last + 1)
    return slots
