"""Logs: immutable rows by offset, in partitions.

A row's place is its partition and offset; its id is `partition << 51 | offset + 1`, so that 0 stays
"no id". The bytes stay in the journal's frame until a checkpoint writes them into blocks.

Appending is decided in append.py, retention in retention.py; what can be read is answered by
reading.py. Events of consumer groups are made so in groups.py; who waits for rows stands in turns.py.

The sequencer's thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core import traits
from fasti.core.commands import Count, Get, Lease, Produce
from fasti.core.delivery.turns import Line
from fasti.core.events import Event
from fasti.core.keys import Keys, Rows
from fasti.core.kind import Apply, Columns, Handler, Kind
from fasti.core.log import append, group_capsule, reading
from fasti.core.log.backlog import read_backlog
from fasti.core.log.body import Log, log_of
from fasti.core.log.commands import (
    DescribeLog,
    FindOffset,
    KeysLoaded,
    LogsInstalled,
    ReadBacklog,
    ReadLog,
    SumLog,
    Truncate,
)
from fasti.core.log.events import LogAppended, LogTrimmed
from fasti.core.log.group import GROUP_SHIFT
from fasti.core.log.groups import LogGroups
from fasti.core.log.judging import GroupPiece, find_group
from fasti.core.log.leasing import LeasableGroup, leased_at
from fasti.core.log.partition import LOG_PARTITION_BYTES, NO_ROWS, LogPartition
from fasti.core.log.retention import Retention, truncate
from fasti.core.log.turns import LogTurns
from fasti.core.replies import Done, Reply
from fasti.core.state import Topic
from fasti.core.traits import Traits
from fasti.core.work import Work

Int64s = NDArray[np.int64]


class LogKind(Kind):
    """Everything that can be asked of a log, but what its groups are asked."""

    traits: ClassVar[Traits] = traits.LOG
    in_transactions: ClassVar[tuple[type, ...]] = (Produce,)

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.turns = LogTurns(self.state)
        self._groups = LogGroups(self.state, self.turns)
        self._retention = Retention(self.state)

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on logs."""
        return {
            Produce: append.produce,
            Get: reading.get,
            Count: reading.count,
            Truncate: truncate,
            ReadLog: reading.read,
            FindOffset: reading.find,
            DescribeLog: reading.describe,
            SumLog: reading.sum_up,
            ReadBacklog: read_backlog,
            **self._groups.handlers(),
        }

    def commands(self) -> dict[type, Handler]:
        """Completions of storage."""
        return {LogsInstalled: self.installed, KeysLoaded: self.turns.keys_loaded}

    def events(self) -> dict[type[Event], Apply]:
        """Events of rows and of groups."""
        return {
            LogAppended: self._appended,
            LogTrimmed: self._trimmed,
            **self._groups.events(),
        }

    # Deciding

    def prepare_keys(self, topic: Topic, keys: Keys) -> None:
        """A key's partition in a log is chosen by rank."""
        keys.ranked(topic.settings.partitions)

    def check_produce(self, work: Work, topic: Topic, command: Produce) -> None:
        """A relay keeps nothing."""
        if not topic.settings.relay:
            append.check_produce(work, topic, command)

    def put_rows(
        self,
        work: Work,
        topic: Topic,
        command: Produce,
        piece: Rows,
        begin: int,
        due: Int64s,
        rows: Int64s,
        reply: Reply,
    ) -> None:
        """Appends them."""
        append.put_rows(work, topic, command, piece, begin, rows, reply)

    # Making it so

    def _appended(self, event: LogAppended, frame: int) -> None:
        topic = self.state.topics[event.topic]
        partition = log_of(topic).partitions[event.partition]
        assert event.first_offset == partition.next_offset, "offsets have no holes"
        undo = self.state.memory.undo
        if undo.active:
            mark = partition.mark()

            def take_back() -> None:
                partition.restore_mark(mark)
                self._changed(topic, partition)

            undo.note(take_back)
        partition.append(frame, event.row, event.at_us, event.size_bytes, topic.settings)
        self._changed(topic, partition)
        # Not taken back with a transaction: who looks finds nothing to do.
        self._retention.look_after(topic, partition)
        self.turns.grown(topic, event.partition)

    def _trimmed(self, event: LogTrimmed, _: int) -> None:
        topic = self.state.topics[event.topic]
        partition = log_of(topic).partitions[event.partition]
        log_of(topic).dropped[event.why] += event.first_offset - partition.earliest
        self.state.memory.trimmed_bytes += partition.trim(event.first_offset)
        self._changed(topic, partition)
        self._groups.trimmed(topic, event.partition, event.first_offset)

    def _changed(self, topic: Topic, partition: LogPartition) -> None:
        """Counts what the partition takes, and what it adds to the log's sums, anew."""
        log_of(topic).count(partition)
        size_bytes = partition.size_bytes
        self.state.memory.logs_bytes += size_bytes - partition.counted_bytes
        partition.counted_bytes = size_bytes

    # A topic's life

    def make(self, topic: Topic) -> None:
        """Empty partitions."""
        memory = self.state.memory

        def note(count: int) -> None:
            memory.topics_bytes += count * LOG_PARTITION_BYTES

        topic.body = Log(topic.settings.partitions, note)

    def changed(self, topic: Topic) -> None:
        """Retention may begin, or be shorter."""
        self._retention.changed(topic)

    def drop(self, topic: Topic) -> None:
        """The topic is being deleted."""
        self._retention.forget(topic)
        partitions = log_of(topic).partitions
        self.state.memory.trimmed_bytes += sum(p.segments.size_bytes for p in partitions.made())
        self._groups.drop(topic)
        self.state.memory.logs_bytes -= sum(p.counted_bytes for p in partitions.made())
        partitions.clear()

    def forget(self, topic: Topic) -> None:
        """Session state of groups."""
        self.turns.forget_topic(topic)

    # Steps

    def after(self, work: Work) -> bool:
        """Drops what is too old or too much; then groups hand out."""
        more = self._retention.drop(work)
        return self.turns.serve(work) or more

    def next_us(self) -> int:
        """When the next segment may be too old, or groups have something to do."""
        return min(self._retention.next_us(), self.turns.next_us())

    def detach(self, session: int) -> None:
        """A session is gone."""
        self.turns.detach(session)

    def withdraw(self, session: int) -> None:
        """A session waits for nothing for now."""
        self.turns.withdraw(session)

    # Leases

    def lines(self, topic: Topic) -> Iterator[tuple[int, Line]]:
        """Who waits for the rows of each group."""
        return self.turns.lines(topic)

    def group_name(self, topic: Topic, number: int) -> str:
        """The name of a group."""
        return log_of(topic).groups.by_number[number].name

    def groups_of(self, places: NDArray[np.int32]) -> Int64s:
        """The group of leases: it stands above the partition."""
        return places.astype(np.int64) >> GROUP_SHIFT

    def resumed(self, topic: Topic) -> None:
        """Groups go on where they were."""
        self.turns.resume(topic)

    def is_credit(self, topic: Topic, command: Lease) -> bool:
        """Whether a `Lease` does no more than add to its session's credit."""
        return self.turns.is_credit(topic, command)

    def leasable(self, topic: Topic, group: str) -> LeasableGroup:
        """One of its groups."""
        return LeasableGroup(topic, find_group(topic, group))

    def leased_at(self, topic: Topic, place: int, sequences: Int64s) -> GroupPiece:
        """Rows that a group has leased."""
        return leased_at(topic, place, sequences)

    def restore_leases(self, topic: Topic, place: int, sequences: Int64s, held: Int64s) -> None:
        """Leases of groups, from a checkpoint."""
        self._groups.restore_leases(topic, place, sequences, held)

    # Checkpoints

    def installed(self, _: Work | None, command: LogsInstalled) -> Done:
        """Rows lie in blocks now: one's own checkpoint's, or a leader's that this engine follows."""
        topic = self.state.topics.get(command.topic)
        if topic is not None:
            partition = log_of(topic).partitions[command.partition]
            partition.install(command.from_offset, command.upto_offset, command.blocks)
            self._changed(topic, partition)
        return Done()

    def capture(self, topic: Topic, columns: Columns) -> dict[str, Any]:
        """Where each partition begins and ends, its segments, and its groups."""
        partitions = log_of(topic).partitions
        described = [NO_ROWS] * len(partitions)
        for partition in partitions.made():
            described[partition.number] = partition.capture()
        return {
            "partitions": described,
            "groups": group_capsule.capture(topic.number, log_of(topic).groups, columns),
        }

    def restore(self, topic: Topic, described: dict[str, Any], columns: Columns) -> None:
        """Back from `capture`; where rows lie is told by the manifest."""
        partitions = log_of(topic).partitions
        for number, values in enumerate(described["partitions"]):
            if values != NO_ROWS:
                partitions[number].restore(values)
                self._retention.look_after(topic, partitions[number])
        self._groups.restore(topic, described["groups"], columns)

    def start(self, tick: int) -> None:
        """Replay is over."""
        for topic in self.all_topics.values():
            log_of(topic).dropped.clear()
            for partition in log_of(topic).partitions.made():
                self._changed(topic, partition)
