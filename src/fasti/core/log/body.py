"""What a log topic's body is. The sequencer's thread only."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fasti.core.log.partition import LogPartition
from fasti.core.state import Topic
from fasti.errors import InvalidArgument


class Log:
    """The body of a log topic."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [LogPartition(number) for number in range(partitions)]
        # How many rows were dropped since the start, by why: no durable state.
        self.dropped: Counter[str] = Counter()
        # Whatever LogGroups keeps for the topic.
        self.groups: Any = None


def log_of(topic: Topic) -> Log:
    """A log topic's body."""
    log: Log = topic.body
    return log


def partition_of(topic: Topic, number: int) -> LogPartition:
    """A partition by its number, or `invalid_argument`."""
    partitions = log_of(topic).partitions
    if not 0 <= number < len(partitions):
        raise InvalidArgument(
            f"{topic.name!r} has partitions 0 to {len(partitions) - 1}, not {number}",
            field="partition",
        )
    return partitions[number]
