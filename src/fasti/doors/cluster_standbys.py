"""The shards that a broker stands by for: one thread follows them all, a piece at a time.

It rests for as long as it worked wherever this broker leads shards of its own, unless a leader is about to be
lost; so a large load takes longer and nobody waits for it. What standbys hold counts into the process's memory
budget: one that does not fit is let go, and tried again later. The shard is then taken over cold.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial

from fasti.broker.host import Host
from fasti.broker.logs import fields
from fasti.broker.shard_map import moved
from fasti.broker.threads import Poller
from fasti.cluster.standby import Standby
from fasti.core.layout import ShardPlace
from fasti.doors.standby_reads import StandbyShard
from fasti.errors import FastiError

_log = logging.getLogger("fasti.broker.cluster")

# A standby that had no room is tried again after so long.
_ROOM_S = 30.0
_REST_MAX_S = 0.1


class _Seat:
    """A standby, and the lock of whoever does something with it."""

    def __init__(self, standby: Standby) -> None:
        self.standby = standby
        self.lock = threading.Lock()
        self.taken = False
        self.wait_until = 0.0
        self.no_room = False


class Standbys:
    """Of one process. Any thread; `take` waits for the piece that is under way."""

    def __init__(
        self, host: Host, make: Callable[[int], Standby], changed: Callable[[], None]
    ) -> None:
        """`changed` is called when one has caught up with what was heard: others may wait for it."""
        self._host, self._make, self._changed = host, make, changed
        self._monotonic = host.threads.runtime.monotonic
        # Replaced as a whole.
        self._seats: dict[int, _Seat] = {}
        self._lock = threading.Lock()
        self._hurries = False
        self._poller = Poller(host.threads, "fasti-standby", self._poll, parks=False)

    def start(self) -> None:
        self._host.standby_bytes = lambda: self.used_bytes
        self._host.find_standby = self._find_readable
        self._poller.start()

    def stop(self) -> None:
        self._poller.stop()

    @property
    def used_bytes(self) -> int:
        """Of memory, by all of them."""
        return sum(seat.standby.used_bytes for seat in self._seats.values())

    def __contains__(self, shard: int) -> bool:
        return shard in self._seats

    def find(self, shard: int) -> Standby | None:
        """For looking at it."""
        seat = self._seats.get(shard)
        return None if seat is None else seat.standby

    def _find_readable(self, shard: int) -> StandbyShard | None:
        """For one stale read; a standby that can't be read from says so when it is."""
        standby, host = self.find(shard), self._host
        if standby is None:
            return None
        place = ShardPlace(shard, host.shards)
        elsewhere = partial(self._elsewhere, shard)
        return StandbyShard(standby, place, host.settings, host.clock, elsewhere)

    def _elsewhere(self, shard: int) -> FastiError:
        return moved(shard, self._host.map.leader(shard))

    # What to follow

    def follow(self, shard: int) -> None:
        """Begins, unless it is under way."""
        with self._lock:
            if shard not in self._seats:
                self._seats = {**self._seats, shard: _Seat(self._make(shard))}
        self._poller.wake()

    def leave(self, shard: int) -> None:
        """Ends, and forgets what was followed."""
        with self._lock:
            self._seats = {n: seat for n, seat in self._seats.items() if n != shard}

    def take(self, shard: int) -> Standby | None:
        """For a take-over: nothing is done with it here until `put_back`, or `leave`."""
        seat = self._seats.get(shard)
        if seat is None:
            return None
        with seat.lock:
            seat.taken = True
        return seat.standby

    def put_back(self, shard: int) -> None:
        """It was not opened after all: it follows again."""
        seat = self._seats.get(shard)
        if seat is not None:
            seat.taken = False
        self._poller.wake()

    # What is heard

    def hear(self, shard: int, sequence: int, version: int, at_us: int) -> None:
        """By a leader's beat; `at_us` is a moment at which it was no further."""
        seat = self._seats.get(shard)
        if seat is not None and seat.standby.hear(sequence, version, at_us):
            seat.wait_until = min(seat.wait_until, self._monotonic())
            self._poller.wake()

    def hurry(self, shards: Iterable[int]) -> None:
        """Their leader may be gone: what there is to read is read now."""
        for seat in [self._seats[shard] for shard in shards if shard in self._seats]:
            seat.standby.hurry()
            seat.wait_until = 0.0
            self._hurries = True
        if self._hurries:
            self._poller.wake()

    # The thread

    def _poll(self) -> float | None:
        began = self._monotonic()
        hurries, self._hurries = self._hurries, False
        waits = [self._step(seat) for seat in self._seats.values() if not seat.taken]
        self._make_room()
        known = [wait for wait in waits if wait is not None]
        if not known:
            return None
        worked_s = self._monotonic() - began
        rest_s = 0.0 if hurries or not self._host.services else min(worked_s, _REST_MAX_S)
        return max(min(known), rest_s)

    def _step(self, seat: _Seat) -> float | None:
        now = self._monotonic()
        if seat.wait_until > now:
            return seat.wait_until - now
        with seat.lock:
            if seat.taken:
                return None
            before = seat.standby.sequence
            wait_s = seat.standby.step()
        if seat.standby.sequence != before and wait_s is None:
            self._changed()
        seat.no_room = False
        seat.wait_until = 0.0 if wait_s is None else now + wait_s
        return wait_s

    def _make_room(self) -> None:
        """Leaders go first: the largest standby goes while all together are above the budget."""
        led = sum(shard.engine.memory.used_bytes for shard in self._host.all_shards())
        budget_bytes = self._host.settings.memory_bytes
        while self.used_bytes and led + self.used_bytes > budget_bytes:
            shard, seat = max(self._seats.items(), key=lambda item: item[1].standby.used_bytes)
            with seat.lock:
                if seat.taken:
                    return
                used_bytes, seat.standby = seat.standby.used_bytes, self._make(shard)
            seat.wait_until = self._monotonic() + _ROOM_S
            if not seat.no_room:
                extra = fields(shard=shard, used_bytes=used_bytes, budget_bytes=budget_bytes)
                _log.warning("a standby has no room in memory, and is let go", extra=extra)
            seat.no_room = True
