"""A consumer's session: where leased messages arrive, and are joined with their payloads."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from fasti.core.commands import Detach, Lease
from fasti.core.replies import ConsumerReplaced, Deliver
from fasti.errors import Closed, Fenced

if TYPE_CHECKING:
    from fasti.broker.shard import Shard


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
        self._arrived: queue.SimpleQueue[Deliver | ConsumerReplaced | None] = queue.SimpleQueue()

    def lease(self, topic: str, consumer: str, count: int, wait: bool = True) -> None:
        """Asks for messages; they arrive when they are due."""
        reply = self._shard.call(Lease(topic, self.number, consumer, count, wait))
        if reply.error is not None:
            raise reply.error

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next delivery, or None when none came in time."""
        try:
            arrived = self._arrived.get(timeout=timeout)
        except queue.Empty:
            return None
        if arrived is None:
            raise Closed("the session was lost when the shard recovered: lease again")
        if isinstance(arrived, ConsumerReplaced):
            raise Fenced(f"another session took the name {arrived.consumer!r}")
        return Delivery(arrived, self._shard.store.payloads.gather(arrived.location))

    def close(self) -> None:
        """Waits for nothing any more; leases stay until they are used or expire."""
        self._shard.sessions.pop(self.number, None)
        self._shard.call(Detach(self.number))

    def arrive(self, effect: Deliver | ConsumerReplaced) -> None:
        """The committer brings something that is durable."""
        self._arrived.put(effect)

    def lose(self) -> None:
        """The engine that knew this session is gone."""
        self._arrived.put(None)
