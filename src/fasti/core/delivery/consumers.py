"""Who consumes: the sessions that wait, the leases that are out, and taking leases back.

A consumer is shown once for each topic (of logs, for each group) where a session has its name or a
lease is its; one that is gone may still have leases, and one that waits may have none.

Taking back is for operators: it needs no token. The message is scheduled again at the due time it
had, the attempt doesn't count, and the old token is stale from then on, as after every release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.columns import codes
from fasti.core.columns.reductions import rows_where
from fasti.core.commands import DescribeConsumers, ReleaseLeases, Target
from fasti.core.delivery.expiry import lapse_over
from fasti.core.delivery.lines import Line
from fasti.core.replies import Done, Reply
from fasti.core.state import Topic
from fasti.core.timeline.judging import blank, explain, locate, mark_repeated, why_not
from fasti.core.work import Work
from fasti.errors import InvalidArgument
from fasti.model import SEQUENCE_BITS, Outcome

Int64s = NDArray[np.int64]
# The lines of a topic: of each group by its number, 0 where there are no groups.
Lines = Callable[[Topic], Iterator[tuple[int, Line]]]

RELEASED_PER_CALL = 5_000


@dataclass(slots=True)
class ConsumerRow:
    """One consumer of one topic, or of one group of a log."""

    topic: str
    group: str
    consumer: str
    # The session that has the name; 0 if none has.
    session: int = 0
    # How many messages it still waits for.
    credit: int = 0
    leases: int = 0
    # Of its leases: when the first of them was given, and when the first of them ends.
    oldest_lease_us: int = 0
    lease_until_us: int = 0


def describe(work: Work, command: DescribeConsumers, lines: Lines) -> Done:
    """All consumers, or those of one topic, by topic, group and name."""
    topics = [work.topic(command.topic)] if command.topic else list(work.state.topics.values())
    found: dict[tuple[int, int, str], ConsumerRow] = {}
    for topic in topics:
        for group, line in lines(topic):
            for consumer, session, credit in line.names():
                row = _row(found, topic, group, consumer)
                row.session, row.credit = session, credit
    _add_leases(work, {topic.number: topic for topic in topics}, found)
    rows = sorted(found.values(), key=lambda row: (row.topic, row.group, row.consumer))
    return Done(rows)


def _row(
    found: dict[tuple[int, int, str], ConsumerRow], topic: Topic, group: int, consumer: str
) -> ConsumerRow:
    key = (topic.number, group, consumer)
    if key not in found:
        name = topic.kind.group_name(topic, group) if group else ""
        found[key] = ConsumerRow(topic.name, name, consumer)
    return found[key]


def _add_leases(
    work: Work, topics: dict[int, Topic], found: dict[tuple[int, int, str], ConsumerRow]
) -> None:
    leases, names = work.state.memory.leases, work.state.memory.consumers
    live = leases.live()
    groups = np.zeros(len(live), dtype=np.int64)
    for topic in topics.values():
        if not topic.partitions:
            mine = leases.topic[live] == topic.number
            if mine.any():
                groups[mine] = topic.kind.groups_of(leases.partition[live[mine]])
    places = np.stack([leases.topic[live], groups, leases.consumer[live]])
    distinct, members, counts = np.unique(places, axis=1, return_inverse=True, return_counts=True)
    since = np.full(len(counts), np.iinfo(np.int64).max)
    np.minimum.at(since, members.ravel(), leases.since[live])
    until = np.full(len(counts), np.iinfo(np.int64).max)
    np.minimum.at(until, members.ravel(), leases.until[live])
    for place, (number, group, consumer) in enumerate(distinct.T.tolist()):
        if number in topics:
            row = _row(found, topics[number], group, names.name(consumer))
            row.leases = int(counts[place])
            row.oldest_lease_us = int(since[place])
            row.lease_until_us = int(until[place]) + work.now_us - work.tick


def check(command: ReleaseLeases) -> None:
    """It names a consumer or messages. Raises `invalid_argument`."""
    if (command.ids is None) == (not command.consumer):
        raise InvalidArgument("name a consumer, or messages by id", field="consumer")


def release_leases(work: Work, command: ReleaseLeases) -> Reply:
    """Gives leased messages back: those of a consumer, some thousand a call, or named ones."""
    check(command)
    topic = work.topic(command.topic)
    ids = command.ids
    if ids is None:
        ids = _held_ids(work, topic, command.consumer)
    reply = blank(len(ids))
    for piece in locate(topic, Target(ids=ids), reply):
        status = np.zeros(len(piece.sequences), dtype=np.uint8)
        others = rows_where(piece.states != codes.LEASED)
        if len(others):
            answers = why_not(work, topic, piece, others, by_key=False)
            # Nobody has it.
            answers[answers == Outcome.OK] = Outcome.CONFLICT
            status[others] = answers
        mark_repeated(piece, status)
        reply.status[piece.rows] = status
        reply.versions[piece.rows] = piece.versions()
        explain(work, topic, piece, reply)
        good = rows_where(status == codes.OK)
        free = piece.only(good, len(ids))
        left = lapse_over(work, piece.partition, free.sequences, free.slots)
        if left is not None:
            free = free.only(left, len(ids))
        if len(free.sequences):
            due = piece.partition.arena.due.take(free.slots)
            where = (work.now_us, topic.number, piece.partition.number)
            none = np.zeros(len(due), dtype=np.int64)
            work.emit(ev.Released(*where, free.sequences, due, none), free.slots)
            reply.versions[free.rows] = piece.partition.arena.version.take(free.slots)
    return reply


def _held_ids(work: Work, topic: Topic, consumer: str) -> Int64s:
    memory = work.state.memory
    number = memory.consumers.find(consumer)
    if number is None:
        return np.zeros(0, dtype=np.int64)
    held = memory.leases.held_by(number, topic.number)[:RELEASED_PER_CALL]
    partitions = memory.leases.partition[held].astype(np.int64)
    return memory.leases.sequence[held] | partitions << SEQUENCE_BITS
