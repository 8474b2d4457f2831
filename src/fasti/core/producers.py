"""Idempotent produce: what each producer sent last, and what it was answered.

A producer numbers its batches 1, 2, 3, ... per shard. The next number is new, one of the last
eight is answered again from its receipt, an older one is a duplicate whose receipt is forgotten.
A producer that nobody remembers may only begin with 1.

So many producers are remembered at most. When there are more, those that were silent longest are
forgotten first, but none within an hour of its last batch, which is longer than anybody repeats one:
until then a new producer is refused instead. What is forgotten is worked out from the events' own
times, so that a replay forgets the same ones.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from fasti.core.receipts import Receipt
from fasti.model import HOUR_US

RECEIPTS_KEPT = 8
# Nobody is forgotten so soon after a batch, however many there are.
REMEMBERED_US_MIN = HOUR_US
# The objects that a producer is made of, beside its name and its receipts, about.
PRODUCER_BYTES = 512
_FORGOTTEN_PER_CALL = 4


@dataclass(slots=True)
class Producer:
    """One producer's last batches, the newest last."""

    last_sequence: int = 0
    # A setting of the topic it last sent to. Other topics may have others: without one moment
    # for the producer, what it is answered would depend on who was tidied up after when.
    known_until_us: int = 0
    # When it sent its last batch.
    seen_us: int = 0
    receipts: list[Receipt] = field(default_factory=list)

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
        kept = self.receipts[1 - RECEIPTS_KEPT :] if receipt.sequence > 1 else []
        receipts = [*kept, receipt]
        return Producer(receipt.sequence, known_until_us, seen_us, receipts)

    @property
    def size_bytes(self) -> int:
        """What it takes beside its name, about."""
        return PRODUCER_BYTES + sum(receipt.size_bytes for receipt in self.receipts)


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
