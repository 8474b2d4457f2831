"""Messages that are durable but invisible until their stage is published.

A staged message has its id and its row from the start; only its state keeps it out of sight.
Publishing is one event that claims the keys; after that the rows land, that is become scheduled
and enter the calendar, a bounded number per step. Between the two a row is live but can't be
changed: it answers `leased`, by `publish`.

A stage may belong to a sink (core/sinks). Operations other than producing into a timeline have their
rows wrapped into parcels, which lie in a topic of their own, never land, and are carried out by the
broker: a parcel is a staged message whose due time is the number of rows in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s

Int64s = NDArray[np.int64]

# The objects that a stage, and a batch of its rows, are made of, about.
_STAGE_BYTES = 1024
_BATCH_BYTES = 384


@dataclass(slots=True)
class StagedRows:
    """A batch of staged messages of one partition, whose sequences count up by one.

    Without keys, `hashes` is None.
    """

    partition: int
    sequences: Int64s
    hashes: UInt64s | None

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return self.sequences.nbytes + (0 if self.hashes is None else self.hashes.nbytes)

    def has(self, sequences: Int64s) -> NDArray[np.bool_]:
        """Which of these are its rows."""
        return (sequences >= self.sequences[0]) & (sequences <= self.sequences[-1])


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
    # Keys are claimed when rows land; rows whose key is taken then are dropped.
    skip: bool = False
    # Of a sink: its name and batch, what is to be done, to which topic, in whose name.
    sink: str = ""
    batch: int = 0
    operation: str = ""
    target: int = 0
    owner: str = ""
    # How many rows were ever put into it.
    total: int = 0
    # What its rows take, and what was last counted into the memory budget: no durable state.
    rows_bytes: int = 0
    counted_bytes: int = 0
    # Its keys are being claimed: it must stay as it is. No durable state.
    claimed: bool = False

    @property
    def rows(self) -> int:
        """How many messages are still staged."""
        return sum(len(batch.sequences) for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        """What it takes, about."""
        return _STAGE_BYTES + len(self.batches) * _BATCH_BYTES + self.rows_bytes

    @property
    def has_keys(self) -> bool:
        """Whether any of its rows may have a key."""
        return any(batch.hashes is not None for batch in self.batches)

    @property
    def is_parcels(self) -> bool:
        """Whether its rows are wrapped into parcels."""
        return self.target not in (0, self.topic)

    def add(self, rows: StagedRows, count: int) -> None:
        """More rows, which stand for so many."""
        self.batches.append(rows)
        self.rows_bytes += rows.size_bytes
        self.total += count

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
            self.rows_bytes -= taken[-1].size_bytes
            rest = None if hashes is None else hashes[part:]
            if part < len(batch.sequences):
                self.batches[0] = StagedRows(batch.partition, batch.sequences[part:], rest)
            else:
                self.batches.pop(0)
            count -= part
        return taken
