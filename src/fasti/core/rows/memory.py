"""What all partitions of a shard share: the arena, the leases, names, marks and notes."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fasti.core.delivery.leases import LeaseTable
from fasti.core.rows.arena import FRAME_BYTES, Arena
from fasti.core.rows.marks import Marks
from fasti.core.rows.names import Names
from fasti.core.rows.plans import Plans
from fasti.core.undo import Undo

# Some eighty thousand different ones of the usual length. The journal has every reason in full.
_REASONS_BYTES = 16 << 20


class Tidied(Protocol):
    """A partition, as the memory sees it."""

    def tidy(self) -> bool: ...


class Memory:
    """One per engine. `epoch` counts checkpoints; rows remember in which they last changed."""

    def __init__(self, budget_bytes: int, leases_max: int) -> None:
        self.budget_bytes = budget_bytes
        self.arena = Arena(budget_bytes)
        # What the key indexes of all partitions take.
        self.keys_bytes = 0
        # What the windows of consumer groups take.
        self.groups_bytes = 0
        self.leases = LeaseTable(leases_max)
        self.owners = Names()
        self.consumers = Names()
        self.reasons = Names(_REASONS_BYTES)
        self.marks = Marks()
        self.undo = Undo()
        self.epoch = 1
        # Partitions in which messages expire.
        self.plans = Plans()
        # Partitions that have memory to give back.
        self.untidy: set[Tidied] = set()
        # By topic: the earliest due time of what became scheduled since somebody looked.
        self.news: dict[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """What the metadata of pending messages takes: rows, keys, and windows of groups."""
        return self.arena.frames_used * FRAME_BYTES + self.keys_bytes + self.groups_bytes

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
