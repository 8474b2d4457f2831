"""Idempotent produce: what each producer sent last, and what it was answered.

A producer numbers its batches 1, 2, 3, ... per shard. The next number is new, one of the last
eight is answered again from its receipt, an older one is a duplicate whose receipt is forgotten.
A producer that nobody remembers may only begin with 1.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

RECEIPTS_KEPT = 8


@dataclass(slots=True)
class Receipt:
    """What a batch was answered."""

    sequence: int
    status: NDArray[np.uint8]
    ids: Int64s
    versions: Int64s


@dataclass(slots=True)
class Producer:
    """One producer's last batches, the newest last."""

    last_sequence: int = 0
    # A setting of the topic it last sent to. Other topics may have others: without one moment
    # for the producer, what it is answered would depend on who was tidied up after when.
    known_until_us: int = 0
    receipts: list[Receipt] = field(default_factory=list)

    def find(self, sequence: int) -> Receipt | None:
        """The receipt of a batch, if it is kept."""
        for receipt in self.receipts:
            if receipt.sequence == sequence:
                return receipt
        return None

    def advanced(self, receipt: Receipt, known_until_us: int) -> Producer:
        """The producer after one more batch."""
        # One that was silent for too long begins with 1 again: its old receipts would answer for
        # new batches of the same number.
        kept = self.receipts[1 - RECEIPTS_KEPT :] if receipt.sequence > 1 else []
        receipts = [*kept, receipt]
        return Producer(receipt.sequence, known_until_us, receipts)


class Producers:
    """All producers of a shard, the one that was silent longest first."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Producer] = OrderedDict()

    def find(self, name: str, now_us: int) -> Producer | None:
        """The producer, unless it has been silent for too long."""
        producer = self._known.get(name)
        return producer if producer and producer.known_until_us >= now_us else None

    def set(self, name: str, producer: Producer | None) -> None:
        """The producer as it is now (None: it never was)."""
        self._known.pop(name, None)
        if producer is not None:
            self._known[name] = producer

    def forget(self, now_us: int) -> None:
        """Drops those silent for too long; a few a call, so that no call is long."""
        for _ in range(4):
            name = next(iter(self._known), None)
            if name is None or self._known[name].known_until_us >= now_us:
                return
            del self._known[name]

    def all(self) -> dict[str, Producer]:
        """Every producer, for a checkpoint. They are replaced, never changed: a copy is cheap."""
        return dict(self._known)
