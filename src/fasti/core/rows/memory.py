"""What all partitions of a shard share: the arena, the leases, names, marks and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fasti.core.agenda import Agenda
from fasti.core.columns.reductions import every
from fasti.core.delivery.leases import LeaseTable
from fasti.core.producers import Producers
from fasti.core.rows.arena import FRAME_BITS, FRAME_BYTES, FRAMES_SPARE, Arena
from fasti.core.rows.marks import Marks
from fasti.core.rows.names import Names
from fasti.core.undo import Undo
from fasti.errors import Overloaded
from fasti.model import SECOND_US

if TYPE_CHECKING:
    from fasti.core.timeline.partition import Partition

# Some eighty thousand different ones of the usual length. The journal has every reason in full.
_REASONS_BYTES = 16 << 20


class Tidied(Protocol):
    """A partition, as the memory sees it."""

    def tidy(self) -> bool: ...


class Memory:
    """One per engine. `epoch` counts checkpoints; rows remember in which they last changed."""

    def __init__(self, budget_bytes: int, leases_max: int, producers_max: int = 100_000) -> None:
        self.budget_bytes = budget_bytes
        self.arena = Arena(budget_bytes)
        self.producers = Producers(producers_max)
        # What the key indexes of all partitions take; their places in time, with all that finds
        # their rows; and what became of finished messages.
        self.keys_bytes = self.index_bytes = self.outcomes_bytes = 0
        # Topics with their partitions and bindings; where rows of logs lie; consumer groups.
        self.topics_bytes = self.logs_bytes = self.groups_bytes = 0
        # Staged rows beside their columns; schedules.
        self.stages_bytes = self.schedules_bytes = 0
        self.leases = LeaseTable(leases_max)
        self.owners = Names()
        self.consumers = Names()
        self.reasons = Names(_REASONS_BYTES)
        self.marks = Marks()
        self.undo = Undo()
        self.epoch = 1
        # Partitions in which messages expire.
        self.plans: Agenda[Partition] = Agenda()
        # Partitions that have memory to give back.
        self.untidy: set[Tidied] = set()
        # By topic: the earliest due time of what became scheduled since somebody looked.
        self.news: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """Everything that is remembered, as it is counted: running sums, whatever the allocator does."""
        return (
            self.arena.frames_used * FRAME_BYTES
            + self.keys_bytes
            + self.index_bytes
            + self.outcomes_bytes
            + self.leases.size_bytes
            + self.topics_bytes
            + self.logs_bytes
            + self.groups_bytes
            + self.producers.size_bytes
            + self.stages_bytes
            + self.schedules_bytes
            + self._names_bytes
        )

    @property
    def _names_bytes(self) -> int:
        return self.owners.size_bytes + self.consumers.size_bytes + self.reasons.size_bytes

    def parts(self) -> dict[str, int]:
        """The same by what it is for."""
        return {
            "rows": self.arena.frames_used * FRAME_BYTES,
            "keys": self.keys_bytes,
            "index": self.index_bytes,
            "outcomes": self.outcomes_bytes,
            "leases": self.leases.size_bytes,
            "topics": self.topics_bytes,
            "logs": self.logs_bytes,
            "groups": self.groups_bytes,
            "producers": self.producers.size_bytes,
            "stages": self.stages_bytes,
            "schedules": self.schedules_bytes,
            "names": self._names_bytes,
        }

    def close_leases(self, held: NDArray[np.int64], sequences: NDArray[np.int64]) -> None:
        """The leases of these messages are over, once that stands."""
        leases, consumers = self.leases, self.consumers
        assert every(leases.sequence[held] == sequences), "the lease is this message's"
        tokens = leases.token[held]
        leases.token[held] = 0

        def let_go() -> None:
            consumers.unuse_all(leases.consumer[held])
            leases.close(held)

        def take_back() -> None:
            leases.token[held] = tokens

        self.undo.when_settled(let_go, take_back)

    def require(self, needed_bytes: int, what: str) -> None:
        """Raises `overloaded` if the budget has no room for what a command would make it remember.

        Whatever gives memory back (acks, cancels, deletes) is never asked.
        """
        used_bytes = self.used_bytes
        if used_bytes + needed_bytes > self.budget_bytes:
            raise Overloaded(
                f"the memory budget is spent: there is no room for {what}; consume, cancel or "
                "delete something, or give the broker more (memory)",
                retry_after_us=SECOND_US,
                details={"memory_used": used_bytes, "memory": self.budget_bytes},
            )

    def require_rows(self, rows: int, partitions: int) -> None:
        """The same for rows that may go to any of so many partitions."""
        frames = (rows >> FRAME_BITS) + 2 * min(rows, partitions) + FRAMES_SPARE
        self.require(frames * FRAME_BYTES, "more messages")
        if frames > self.arena.frames_left:
            raise Overloaded(
                "the memory budget for pending messages is spent", retry_after_us=SECOND_US
            )

    def note_due(self, topic: int, due_us: int) -> None:
        """From this moment on there may be something to hand out that was not there before."""
        if due_us < self.news.get(topic, due_us + 1):
            self.news[topic] = due_us

    def names(self) -> dict[str, list[str]]:
        """Owners, consumers and reasons by the numbers that rows and leases have for them."""
        return {
            "owner": self.owners.all(),
            "consumer": self.consumers.all(),
            "reason": self.reasons.all(),
        }

    @property
    def epoch_byte(self) -> np.uint8:
        """The epoch as rows keep it. After 256 epochs a row may look changed that isn't."""
        return np.uint8(self.epoch & 0xFF)
