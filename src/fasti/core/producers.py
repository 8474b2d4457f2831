"""Idempotent produce: what each producer sent last, and what it was answered.

A producer numbers its batches 1, 2, 3, ... per shard. The next number is new, one of the last
eight is answered again from its receipt, an older one is a duplicate whose receipt is forgotten.
A producer that is not remembered may only begin with 1.

So many producers are remembered at most. When there are more, those that were silent longest are
forgotten first, but none within an hour of its last batch, which is longer than a client repeats one:
until then a new producer is refused instead. What is forgotten is worked out from the events' own
times, so that a replay forgets the same ones.

A receipt is what a batch was answered, in few bytes: runs of rows instead of rows. A batch of new
messages has ids that count up, one version and one status: a single run of 22 bytes, however many rows
it has. Where keys spread a batch over partitions, its rows are first put in the order of their
partitions, and two bytes a row say which partition each of them went to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.reductions import some
from fasti.model import HOUR_US, SEQUENCE_BITS

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
        if rows == 1 or not some(breaks := _breaks(status, ids, versions)):
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

    def numbers(self) -> list[int]:
        """Its sequence, and how many rows, runs and numbers of partitions it has."""
        runs, order = len(self.runs) // RUN.itemsize, len(self.order) // ORDER.itemsize
        return [self.sequence, self.rows, runs, order]

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


def pack_receipts(prefix: str, receipts: list[Receipt], columns: dict[str, Any]) -> None:
    """For a checkpoint: what they are made of, as columns under names that begin so."""
    runs = np.frombuffer(b"".join(receipt.runs for receipt in receipts), RUN)
    for name in RUN.names or ():
        columns[f"{prefix}.{name}"] = np.ascontiguousarray(runs[name])
    columns[f"{prefix}.order"] = np.frombuffer(b"".join(r.order for r in receipts), ORDER)


def unpack_receipts(
    prefix: str, numbers: list[list[int]], columns: dict[str, Any]
) -> Iterator[Receipt]:
    """Back from the columns, with the `numbers` of each."""
    runs = np.zeros(len(columns[f"{prefix}.rows"]), dtype=RUN)
    for name in RUN.names or ():
        runs[name] = columns[f"{prefix}.{name}"]
    order = columns[f"{prefix}.order"].astype(ORDER)
    begin = place = 0
    for sequence, rows, count, placed in numbers:
        part, its_order = runs[begin : begin + count], order[place : place + placed]
        yield Receipt(sequence, rows, part.tobytes(), its_order.tobytes())
        begin, place = begin + count, place + placed


RECEIPTS_KEPT = 8
# No producer is forgotten so soon after a batch, however many there are.
REMEMBERED_US_MIN = HOUR_US
# The objects that a producer is made of, beside its name and its receipts, about.
PRODUCER_BYTES = 512
_FORGOTTEN_PER_CALL = 4


@dataclass(slots=True)
class Producer:
    """One producer's last batches, the newest last. It is replaced, and never changed."""

    last_sequence: int = 0
    # A setting of the topic it last sent to. Other topics may have others: without one moment
    # for the producer, what it is answered would depend on who was tidied up after when.
    known_until_us: int = 0
    # When it sent its last batch.
    seen_us: int = 0
    receipts: list[Receipt] = field(default_factory=list)
    # What it takes beside its name, about: asked for twice at every batch.
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        packed = sum([len(receipt.runs) + len(receipt.order) for receipt in self.receipts])
        self.size_bytes = PRODUCER_BYTES + len(self.receipts) * _RECEIPT_BYTES + packed

    def find(self, sequence: int) -> Receipt | None:
        """The receipt of a batch, if it is kept."""
        for receipt in self.receipts:
            if receipt.sequence == sequence:
                return receipt
        return None

    def advanced(self, receipt: Receipt, seen_us: int, known_until_us: int) -> Producer:
        """The producer after one more batch."""
        # One that was silent for too long begins with 1 again: its old receipts would answer for
        # new batches of the same number.
        earlier = self.receipts[1 - RECEIPTS_KEPT :] if receipt.sequence > 1 else []
        receipts = [*earlier, receipt]
        return Producer(receipt.sequence, known_until_us, seen_us, receipts)


class Producers:
    """All producers of a shard, the one that was silent longest first."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.size_bytes = 0
        self._known: OrderedDict[str, Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: str, now_us: int) -> Producer | None:
        """The producer, unless it has been silent for too long."""
        producer = self._known.get(name)
        return producer if producer and producer.known_until_us >= now_us else None

    def set(self, name: str, producer: Producer | None) -> None:
        """The producer as it is now (None: it never was)."""
        before = self._known.pop(name, None)
        if before is not None:
            self.size_bytes -= before.size_bytes + len(name)
        if producer is not None:
            self._known[name] = producer
            self.size_bytes += producer.size_bytes + len(name)

    def has_room(self, now_us: int) -> bool:
        """Whether one more can be remembered, once those are forgotten that may be."""
        if len(self._known) < self.count_max:
            return True
        name = next(iter(self._known), None)
        return name is not None and self._may_go(self._known[name], now_us)

    def forget(self, now_us: int) -> None:
        """Drops those silent for too long, or too many; a few a call, so that no call is long."""
        for _ in range(_FORGOTTEN_PER_CALL):
            name = next(iter(self._known), None)
            if name is None:
                return
            oldest = self._known[name]
            too_many = len(self._known) > self.count_max and self._may_go(oldest, now_us)
            if oldest.known_until_us >= now_us and not too_many:
                return
            self.set(name, None)

    def all(self) -> dict[str, Producer]:
        """Every producer, for a checkpoint. They are replaced, never changed: a copy is cheap."""
        return dict(self._known)

    def _may_go(self, producer: Producer, now_us: int) -> bool:
        return producer.seen_us + REMEMBERED_US_MIN <= now_us or producer.known_until_us < now_us
