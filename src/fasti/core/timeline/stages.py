"""Messages that are durable but invisible until their stage is published.

A staged message has its id and its row from the start; only its state keeps it out of sight.
Publishing is one event that claims the keys; after that the rows land, that is become scheduled
and enter the calendar, a bounded number per step. Between the two a row is live but can't be
changed: it answers `leased`, by `publish`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class StagedRows:
    """A batch of staged messages of one partition. Without keys, `hashes` is None."""

    partition: int
    sequences: Int64s
    hashes: UInt64s | None


@dataclass(slots=True)
class Stage:
    """One stage: its batches in order, and how far it got. Changed only by events."""

    topic: int
    opened_at_us: int
    published: bool = False
    # Some of its rows are dropped already: it can't be published any more.
    dropping: bool = False
    batches: list[StagedRows] = field(default_factory=list)
    # Rows whose key was taken: they are dropped when their turn to land comes.
    skipped: set[int] = field(default_factory=set)

    @property
    def rows(self) -> int:
        """How many rows are still staged."""
        return sum(len(batch.sequences) for batch in self.batches)

    def take(self, count: int) -> list[StagedRows]:
        """Removes the first `count` rows."""
        taken: list[StagedRows] = []
        while count and self.batches:
            batch = self.batches[0]
            part = min(count, len(batch.sequences))
            hashes = batch.hashes
            taken.append(
                StagedRows(
                    batch.partition,
                    batch.sequences[:part],
                    None if hashes is None else hashes[:part],
                )
            )
            rest = None if hashes is None else hashes[part:]
            if part < len(batch.sequences):
                self.batches[0] = StagedRows(batch.partition, batch.sequences[part:], rest)
            else:
                self.batches.pop(0)
            count -= part
        return taken
