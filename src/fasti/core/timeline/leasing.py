"""A timeline or priority topic, as the lease engine sees it: a `Leasable`."""

from __future__ import annotations

from dataclasses import dataclass

from fasti.core import events as ev
from fasti.core.commands import Target
from fasti.core.delivery.silence import held_on
from fasti.core.events import Int64s
from fasti.core.replies import Reply
from fasti.core.state import Topic
from fasti.core.timeline.judging import Piece, locate
from fasti.core.work import Work


@dataclass(frozen=True, slots=True)
class LeasableTopic:
    """All partitions of a topic."""

    topic: Topic

    def locate(self, ids: Int64s, reply: Reply) -> list[Piece]:
        """The messages that ids name, by partition."""
        return locate(self.topic, Target(ids=ids), reply)

    def held(self, work: Work, consumer: str) -> Int64s:
        """The slots of the leases that a consumer has."""
        return held_on(work, self.topic, consumer)

    def renew(self, work: Work, consumer: str) -> None:
        """Renews all leases of a consumer, by one event."""
        work.emit(ev.Renewed(work.now_us, self.topic.number, consumer))


def leased_at(topic: Topic, number: int, sequences: Int64s) -> Piece:
    """Leased messages of one partition."""
    partition = topic.partitions[number]
    slots = partition.ledger.slots(sequences)
    return Piece(topic, partition, slice(None), sequences, slots, partition.states(slots))
