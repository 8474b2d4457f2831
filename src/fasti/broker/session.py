"""A consumer's session: where leased messages arrive, and are joined with their payloads."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fasti.broker.reading import MOVED, fetch
from fasti.core.commands import Detach, Lease, Target
from fasti.core.replies import ConsumerReplaced, Deliver
from fasti.errors import Closed, Corruption, Fenced, Moved, NoQuorum
from fasti.model import Outcome, State
from fasti.storage.runs import PAYLOAD_SCHEMA
from fasti.storage.stored_rows import SmallFrame

if TYPE_CHECKING:
    from fasti.broker.committer import Commit
    from fasti.broker.shard import Shard


# So long a session that ends waits until the engine knows.
_DETACH_S = 3.0
# Payloads of one delivery: more of them come in several.
# A consumer that doesn't read holds up one delivery: so much memory it may cost.
_DELIVERY_BYTES = 16 << 20


@dataclass(slots=True)
class Shown:
    """Leased messages on their way: payloads may be joined before the lease is durable."""

    leased: Deliver
    commit: Commit


@dataclass(slots=True)
class Delivery:
    """Leased messages and their payloads, row by row."""

    leased: Deliver
    payloads: pa.RecordBatch


class Session:
    """One per consumer. `receive` is for one thread; payloads are read there, not in the broker."""

    def __init__(self, number: int, shard: Shard) -> None:
        self.number = number
        self._shard = shard
        # What the committer brings, and what a subscription puts between.
        self.arrived = shard.runtime.queue()
        self.parts: deque[Deliver] = deque()
        # Who waits here for more; empty if nobody does.
        self.consumer = ""
        # It let leases run out; the engine is to be told when it finishes messages.
        self.doubted = False
        # Of the last messages that were leased to it.
        self.last_token = 0

    def lease(self, topic: str, consumer: str, count: int, wait: bool = True) -> None:
        """Asks for messages; they arrive when they are due."""
        self.consumer = consumer if wait else ""
        reply = self._shard.call(Lease(topic, self.number, consumer, count, wait))
        if reply.error is not None:
            raise reply.error

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next delivery, or None when none came in time."""
        if self.parts:
            return self.join(self.parts.popleft())
        try:
            arrived = self.arrived.get(timeout=timeout)
        except Empty:
            return None
        if arrived is None:
            raise self._shard.end_error(
                "the session was lost when the shard recovered or ended: lease again"
            )
        if isinstance(arrived, ConsumerReplaced):
            raise arrived.error or Fenced(f"another session took the name {arrived.consumer!r}")
        delivery = self.join(arrived.leased)
        if not arrived.commit.wait():
            # Never durable: the word that the session is lost follows.
            self.parts.clear()
        elif len(delivery.leased.ids):
            return delivery
        return self.receive(timeout)

    def join(self, leased: Deliver) -> Delivery:
        """Leased messages with their payloads; what is too much at once is left in `parts`."""
        try:
            payloads = self._gather(leased)
        except MOVED:
            return self._find_again(leased)
        except Corruption:
            return self._join_undamaged(leased)
        count, all_rows = payloads.num_rows, np.arange(len(leased.ids))
        if count < len(all_rows):
            self.parts.appendleft(_rows_of(leased, all_rows[count:]))
            leased = _rows_of(leased, all_rows[:count])
        return Delivery(leased, payloads)

    def _gather(self, leased: Deliver) -> pa.RecordBatch:
        """Waits for servers that are away: the session lives on, as do its leases."""
        while True:
            try:
                return self._shard.store.payloads.gather(leased.location, _DELIVERY_BYTES)
            except NoQuorum:
                # It took seconds to find out.
                if self._shard.is_stopped:
                    raise

    def find_alone(self, leased: Deliver) -> SmallFrame | None:
        """The one message of a delivery, if it came alone and is still in memory."""
        return self._shard.store.payloads.alone(int(leased.location[0]))

    def _join_undamaged(self, leased: Deliver) -> Delivery:
        """Some of the payloads can't be read: their messages die, the others go on."""
        try:
            lost = self._shard.store.payloads.damaged(leased.location)
        except MOVED:
            return self._find_again(leased)
        self._shard.damage.give_up_delivered(leased, lost, self.consumer)
        leased = _rows_of(leased, np.flatnonzero(~lost))
        if len(leased.ids):
            return self.join(leased)
        return Delivery(leased, pa.RecordBatch.from_pylist([], schema=PAYLOAD_SCHEMA))

    def _find_again(self, leased: Deliver) -> Delivery:
        """The payloads have moved since. Messages whose lease is over by now are left out."""
        found, contents = fetch(self._shard, leased.topic, Target(ids=leased.ids))
        here = found.status == Outcome.OK
        # What a group has of a row only the group knows: acks of stale leases are refused.
        if found.columns and not leased.group:
            here &= found.columns["state"] == State.LEASED
        lost = here & pc.is_null(contents.column("payload")).to_numpy(zero_copy_only=False)
        if lost.any():
            moved = replace(leased, location=found.columns["location"])
            self._shard.damage.give_up_delivered(moved, lost, self.consumer)
        if self.consumer and not here.all():
            # Whoever counts its credit waits for as many others. If that is refused, it is told.
            count = int((~here).sum())
            again = Lease(leased.topic, leased.session, self.consumer, count, group=leased.group)
            self._shard.submit([again])
        rows = np.flatnonzero(here & ~lost)
        return Delivery(_rows_of(leased, rows), contents.take(pa.array(rows)))

    def close(self) -> None:
        """Waits for nothing any more; leases stay until they are used or expire."""
        self._shard.sessions.pop(self.number, None)
        with suppress(Closed, Moved, TimeoutError):
            self._shard.call(Detach(self.number), _DETACH_S)

    def arrive(self, leased: Deliver, commit: Commit) -> None:
        """The committer brings messages; they may leave when it has synced their lease."""
        self.last_token = leased.token
        self.arrived.put(Shown(leased, commit))

    def end(self, replaced: ConsumerReplaced) -> None:
        """Another session has the name."""
        self.arrived.put(replaced)

    def lose(self) -> None:
        """The engine that knew this session is gone."""
        self.arrived.put(None)


# Columns that not every delivery has.
_OPTIONAL = ("priority", "reasons", "expires_us")


def _rows_of(leased: Deliver, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Deliver:
    columns: tuple[str, ...] = ("ids", "due_us", "version", "attempts", "location")
    columns += tuple(name for name in _OPTIONAL if getattr(leased, name) is not None)
    return replace(leased, **{name: getattr(leased, name)[rows] for name in columns})
