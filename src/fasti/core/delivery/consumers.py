"""Who consumes: the sessions that wait, and the leases that are out.

A consumer is shown once for each topic (of logs, for each group) where a session has its name or a
lease is its; one that is gone may still have leases, and one that waits may have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import DescribeConsumers
from fasti.core.delivery.turns import Line
from fasti.core.replies import Done
from fasti.core.state import Topic
from fasti.core.work import Work

Int64s = NDArray[np.int64]
# The lines of a topic: of each group by its number, 0 where there are no groups.
Lines = Callable[[Topic], Iterator[tuple[int, Line]]]


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
