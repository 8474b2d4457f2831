"""A group of a log, as the lease engine sees it: a `Leasable`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasti.core.log import group_events as ge
from fasti.core.log.group import GROUP_SHIFT, Group
from fasti.core.log.judging import GroupPiece, find_group, locate, mark_repeated, why_not
from fasti.core.replies import Reply, blank
from fasti.core.rows.memory import Memory
from fasti.core.state import Topic
from fasti.core.timeline.corrupt import CORRUPT, GiveUp
from fasti.core.work import Work
from fasti.model import PARTITIONS_MAX, Outcome

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LeasableGroup:
    """A group's places in all partitions of its log."""

    topic: Topic
    group: Group

    def locate(self, ids: Int64s, reply: Reply) -> Iterator[GroupPiece]:
        """The rows that ids name, by partition."""
        return locate(self.topic, self.group, ids, reply)

    def held(self, work: Work, consumer: str) -> Int64s:
        """The slots of the leases that a consumer has."""
        return held_in_group(work.state.memory, self.topic.number, self.group, consumer)

    def renew(self, work: Work, consumer: str) -> None:
        """Renews all leases of a consumer, by one event."""
        where = self.topic.number, self.group.number
        work.emit(ge.GroupRenewed(work.now_us, *where, consumer))


def leased_at(topic: Topic, place: int, sequences: Int64s) -> GroupPiece:
    """Leased rows, by their place in the lease table."""
    group = topic.body.groups.by_number[place >> GROUP_SHIFT]
    number = place & (PARTITIONS_MAX - 1)
    mine, log = group.partitions[number], topic.body.partitions[number]
    return GroupPiece(group, mine, log, topic.number, slice(None), sequences - 1)


def held_in_group(memory: Memory, topic: int, group: Group, consumer: str) -> Int64s:
    """Slots of the leases that a consumer has in a group."""
    number = memory.consumers.find(consumer)
    if number is None:
        return np.zeros(0, dtype=np.int64)
    held = memory.leases.held_by(number, topic)
    return held[memory.leases.partition[held] >> GROUP_SHIFT == group.number]


def give_up(work: Work, command: GiveUp) -> Reply:
    """Rows that can't be read are dead for the group that has them; `conflict` for all others."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    reply = blank(len(command.ids))
    for piece in locate(topic, group, command.ids, reply):
        lost = why_not(piece, np.arange(len(piece.offsets))) == Outcome.LEASED
        mine = command.locations[piece.rows]
        lost[lost] = piece.log.locations_of(piece.offsets[lost]) == mine[lost]
        status = np.where(lost, Outcome.OK, Outcome.CONFLICT).astype(np.uint8)
        mark_repeated(piece, status)
        reply.status[piece.rows] = status
        dead = piece.only(status == Outcome.OK, len(command.ids))
        if len(dead):
            dead.die(work, CORRUPT, np.zeros(len(dead), dtype=np.int64), exhausted=False)
    return reply
