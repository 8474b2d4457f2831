"""What a producer's batch was answered, in few bytes: runs of rows instead of rows.

A batch of new messages has ids that count up, one version and one status: a single run of 22 bytes,
however many rows it has. Where keys spread a batch over partitions, its rows are first put in the
order of their partitions, and two bytes a row say which partition each of them went to.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import some
from fasti.model import SEQUENCE_BITS

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
# Status, ids and versions.
Answers = tuple[NDArray[np.uint8], Int64s, Int64s]

# Rows with one status and one version, whose ids count up by the stride: 1, or 0.
RUN = np.dtype(
    [("rows", "<i4"), ("status", "u1"), ("stride", "u1"), ("id", "<i8"), ("version", "<i8")]
)
ORDER = np.dtype("<u2")
_ONE_RUN = Struct("<iBBqq")
# The object with its numbers, and what Python adds to bytes, about.
_RECEIPT_BYTES = 200


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answers to a batch of so many rows: packed `RUN`s, and the order of the rows if need be."""

    sequence: int
    rows: int
    runs: bytes
    # The partition of each row: sorted by it, rows stand as in `runs`. Empty: they do already.
    order: bytes = b""

    @classmethod
    def of(cls, sequence: int, status: NDArray[np.uint8], ids: Int64s, versions: Int64s) -> Receipt:
        """A receipt of these rows."""
        rows = len(ids)
        breaks = _breaks(status, ids, versions)
        if not some(breaks):
            values = int(status[0]), 1, int(ids[0]), int(versions[0])
            return cls(sequence, rows, _ONE_RUN.pack(rows, *values))
        runs = _runs(breaks, status, ids, versions)
        if len(runs) <= max(rows >> 3, 1):
            return cls(sequence, rows, runs.tobytes())
        numbers = (ids >> SEQUENCE_BITS).astype(ORDER)
        by_partition = np.argsort(numbers, kind="stable")
        columns = status[by_partition], ids[by_partition], versions[by_partition]
        sorted_runs = _runs(_breaks(*columns), *columns)
        saved_bytes = (len(runs) - len(sorted_runs)) * RUN.itemsize
        if saved_bytes > numbers.nbytes:
            return cls(sequence, rows, sorted_runs.tobytes(), numbers.tobytes())
        return cls(sequence, rows, runs.tobytes())

    @property
    def size_bytes(self) -> int:
        """What it takes, about."""
        return _RECEIPT_BYTES + len(self.runs) + len(self.order)

    def answers(self) -> Answers:
        """Row by row again."""
        runs = np.frombuffer(self.runs, RUN)
        lengths = runs["rows"]
        starts = np.cumsum(lengths) - lengths
        steps = np.arange(self.rows) - np.repeat(starts, lengths)
        status = np.repeat(runs["status"], lengths)
        ids = np.repeat(runs["id"], lengths) + steps * np.repeat(runs["stride"], lengths)
        versions = np.repeat(runs["version"], lengths)
        if self.order:
            by_partition = np.argsort(np.frombuffer(self.order, ORDER), kind="stable")
            place = np.empty(self.rows, dtype=np.int64)
            place[by_partition] = np.arange(self.rows)
            status, ids, versions = status[place], ids[place], versions[place]
        return status, ids, versions


def _breaks(status: NDArray[np.uint8], ids: Int64s, versions: Int64s) -> Bools:
    """Which rows don't count on from the row before them."""
    breaks: Bools = ids[1:] - ids[:-1] != 1
    breaks |= status[1:] != status[:-1]
    breaks |= versions[1:] != versions[:-1]
    return breaks


def _runs(
    breaks: Bools, status: NDArray[np.uint8], ids: Int64s, versions: Int64s
) -> NDArray[np.void]:
    stand_still = _stand_still(status, ids, versions)
    # A run goes on while all its steps are of one kind: they count up, or stand still.
    begins = breaks & ~stand_still
    begins[1:] |= stand_still[1:] != stand_still[:-1]
    starts = np.concatenate([[0], np.flatnonzero(begins) + 1])
    runs = np.zeros(len(starts), dtype=RUN)
    runs["rows"] = np.diff(starts, append=len(ids))
    runs["status"], runs["id"], runs["version"] = status[starts], ids[starts], versions[starts]
    # What holds for the step from a run's first row to its second holds for all of its steps.
    runs["stride"] = 1
    longer = runs["rows"] > 1
    runs["stride"][longer] = ~stand_still[starts[longer]]
    return runs


def _stand_still(status: NDArray[np.uint8], ids: Int64s, versions: Int64s) -> Bools:
    """Which rows are answered just as the row before them: rows that were refused have no id."""
    same: Bools = ids[1:] == ids[:-1]
    same &= status[1:] == status[:-1]
    same &= versions[1:] == versions[:-1]
    return same
