"""What a log topic's body is. The sequencer's thread only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from fasti.core.log.group import Groups
from fasti.core.log.partition import LogPartition, LogTail
from fasti.core.state import Partitions, ShardState, Topic
from fasti.errors import InvalidArgument


class Log:
    """The body of a log topic."""

    def __init__(self, partitions: int, note: Callable[[int], None]) -> None:
        self.partitions = Partitions(partitions, LogPartition, note)
        # Of all partitions: rows that were dropped, rows that ever were, and about how many bytes
        # those take that are there.
        self.earliest = self.end = self.size_bytes = 0
        # How many rows were dropped since the start, by why: no durable state.
        self.dropped: Counter[str] = Counter()
        self.groups = Groups()

    def count(self, partition: LogPartition) -> None:
        """Something of a partition has changed: so have the sums."""
        now = partition.earliest, partition.next_offset, partition.segments.size_bytes
        earliest, end, size_bytes = partition.counted
        self.earliest += now[0] - earliest
        self.end += now[1] - end
        self.size_bytes += now[2] - size_bytes
        partition.counted = now


def log_of(topic: Topic) -> Log:
    """A log topic's body."""
    log: Log = topic.body
    return log


def tails(state: ShardState) -> dict[tuple[int, int], LogTail]:
    """Rows of logs that lie in the journal only, by topic and partition."""
    return {
        (topic.number, partition.number): tail
        for topic in state.kinds["log"].all_topics.values()
        for partition in log_of(topic).partitions.made()
        if (tail := partition.tail()) is not None
    }


def partition_of(topic: Topic, number: int) -> LogPartition:
    """A partition by its number, to be read only; or `invalid_argument`."""
    partitions = log_of(topic).partitions
    if not 0 <= number < len(partitions):
        raise InvalidArgument(
            f"{topic.name!r} has partitions 0 to {len(partitions) - 1}, not {number}",
            field="partition",
        )
    return partitions.look(number)


def own_numbers(topic: Topic) -> Sequence[int]:
    """The numbers of the partitions that this shard has, in order."""
    if topic.own is not None:
        return topic.own.numbers
    return range(len(log_of(topic).partitions))
