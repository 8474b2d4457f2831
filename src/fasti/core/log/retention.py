"""Retention of logs: which segments are too old or too many, and when to look.

What a segment's newest row says about its age, and how many bytes a partition has, are looked at in
the step in which they may have changed, or at the moment for which they were planned, a bounded
number of partitions a step. Since times of rows are durable, ages go on over restarts. What is
decided is journaled (`LogTrimmed`). The sequencer's thread only.
"""

from __future__ import annotations

from fasti.core.agenda import Agenda
from fasti.core.log.body import log_of, partition_of
from fasti.core.log.commands import Truncate
from fasti.core.log.events import LogTrimmed
from fasti.core.log.partition import LogPartition
from fasti.core.log.reading import describe_partition
from fasti.core.replies import Done
from fasti.core.state import ShardState, Topic
from fasti.core.work import Work
from fasti.errors import InvalidArgument

_TRIMMED_PER_STEP = 512
# Why rows are dropped.
REASONS = ("age", "bytes", "truncated")

Place = tuple[int, int]


def truncate(work: Work, command: Truncate) -> Done:
    """Drops the rows before an offset at once."""
    topic = work.topic(command.topic)
    partition = partition_of(topic, command.partition)
    if not 0 <= command.before <= partition.next_offset:
        raise InvalidArgument(
            f"partition {partition.number} ends at {partition.next_offset}: rows before "
            f"{command.before} can't be dropped",
            field="before",
            limit=partition.next_offset,
        )
    if command.before > partition.earliest:
        where = topic.number, partition.number
        work.emit(LogTrimmed(work.now_us, *where, command.before, "truncated"))
    return Done(describe_partition(partition))


class Retention:
    """That of all logs of a shard. Nothing here is durable: it follows from rows and settings."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        # When a segment may be too old.
        self._agenda: Agenda[Place] = Agenda()
        # Partitions that grew: they may have too many bytes.
        self._grown: dict[Place, None] = {}

    def look_after(self, topic: Topic, partition: LogPartition) -> None:
        """What may have to go is looked at: in this step, for bytes, and when it is old enough."""
        if topic.settings.retained_bytes:
            self._grown[topic.number, partition.number] = None
        self._plan(topic, partition)

    def changed(self, topic: Topic) -> None:
        """The topic has new settings: what was planned is void."""
        self.forget(topic)
        for partition in log_of(topic).partitions.made():
            self.look_after(topic, partition)

    def forget(self, topic: Topic) -> None:
        """The topic goes."""
        for partition in log_of(topic).partitions.made():
            self._agenda.drop((topic.number, partition.number))
            self._grown.pop((topic.number, partition.number), None)

    def _plan(self, topic: Topic, partition: LogPartition) -> None:
        place = topic.number, partition.number
        if place not in self._agenda:
            due_us = partition.segments.next_age_us(topic.settings)
            if due_us is not None:
                self._agenda.plan(place, due_us)

    def drop(self, work: Work) -> bool:
        """Drops what is too old or too much; True if there may be more."""
        looked = 0
        while self._grown and looked < _TRIMMED_PER_STEP:
            place, _ = self._grown.popitem()
            self._retain(work, place)
            looked += 1
        while looked < _TRIMMED_PER_STEP and (old := self._agenda.pop(work.now_us)) is not None:
            self._retain(work, old)
            looked += 1
        return looked == _TRIMMED_PER_STEP

    def _retain(self, work: Work, place: Place) -> None:
        topic = self._state.topics[place[0]]
        partition = log_of(topic).partitions[place[1]]
        settings = topic.settings
        if settings.segment_age_us:
            first = partition.too_old(work.now_us, settings)
            if first > partition.earliest:
                work.emit(LogTrimmed(work.now_us, *place, first, "age"))
        if settings.retained_bytes:
            first = partition.too_large(settings)
            if first > partition.earliest:
                work.emit(LogTrimmed(work.now_us, *place, first, "bytes"))
        self._plan(topic, partition)

    def next_us(self) -> int:
        """When the next segment may be too old."""
        return self._agenda.next_us()
