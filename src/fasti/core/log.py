"""Logs: immutable rows by offset, in partitions; what is decided about them, and retention.

A row's place is its partition and offset; its id is `partition << 51 | offset + 1`, so that 0 stays
"no id". Rows go to the partition that is named, to their key's (rendezvous hashing), or, without
either, batch by batch to one partition after another. A batch is one event for each partition it
reaches. The bytes stay in the journal's frame until a checkpoint writes them into blocks.

Retention is decided here and journaled (`LogTrimmed`): what a segment's newest row says about its
age, and how many bytes a partition has. Both are looked at in the step in which they may have
changed, or at the moment for which they were planned, a bounded number of partitions a step. Since
times of rows are durable, ages go on over restarts.

Consumer groups are kept by `LogGroups` (log_groups.py): everything a group's state needs to know of
rows it is told by `grown` and `trimmed`, from apply.

The sequencer's thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fasti.core.commands import Count, Get, Produce
from fasti.core.events import Event
from fasti.core.judging import blank
from fasti.core.keys import Keys, Rows
from fasti.core.kind import Apply, Columns, Handler, Kind
from fasti.core.log_commands import (
    DescribeLog,
    FindOffset,
    LogPage,
    LogsInstalled,
    ReadLog,
    Truncate,
)
from fasti.core.log_events import LogAppended, LogTrimmed
from fasti.core.log_groups import LogGroups
from fasti.core.log_partition import LogPartition, LogTail
from fasti.core.partition import FOREVER
from fasti.core.produce import advance_producer, known_batch
from fasti.core.reads import READY
from fasti.core.replies import Counts, Done, Messages, Reply
from fasti.core.state import Topic
from fasti.core.work import Work
from fasti.errors import Gone, InvalidArgument
from fasti.model import SEQUENCE_BITS, SEQUENCE_MASK, OnConflict, Outcome

Int64s = NDArray[np.int64]

_TRIMMED_PER_STEP = 512
# As reads.py gives messages of other kinds.
_MESSAGE_COLUMNS = (
    *("due_us", "version", "state", "attempts", "location"),
    *("owner", "consumer", "reason"),
)
_READ_ROWS_MAX = 1 << 20


class Log:
    """The body of a log topic."""

    def __init__(self, partitions: int) -> None:
        self.partitions = [LogPartition(number) for number in range(partitions)]
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


# Producing


def choose_partitions(
    topic: Topic, keys: Keys | None, begin: int, count: int, partition: int | None = None
) -> Int64s:
    """Where rows go, `count` of them from `begin` of the keys on: as told, by key, or in turn."""
    partitions = len(log_of(topic).partitions)
    if partition is not None or partitions == 1:
        return np.full(count, partition or 0, dtype=np.int64)
    turn = topic.next_partition % partitions
    if keys is None:
        topic.next_partition = (turn + 1) % partitions
        return np.full(count, turn, dtype=np.int64)
    numbers = keys.ranked(partitions)[begin : begin + count]
    given = keys.given[begin : begin + count]
    if not given.all():
        topic.next_partition = (turn + 1) % partitions
        numbers = np.where(given, numbers, turn)
    return numbers


def append(work: Work, topic: Topic, rows: Rows, index: Int64s, numbers: Int64s) -> Int64s:
    """Rows of the frame that is open (`work.bring`) go to these partitions; returns their ids.

    `index` counts up. For produce, and for whoever routes or copies messages into a log.
    """
    ids = np.zeros(len(index), dtype=np.int64)
    row_bytes = len(rows.encoded) / max(1, len(rows))
    first = int(numbers[0])
    if (numbers == first).all():
        places: list[tuple[int, Any]] = [(first, slice(None))]
    else:
        places = list(_by_number(numbers))
    for number, mine in places:
        offset = log_of(topic).partitions[number].next_offset
        row = index[mine]
        size_bytes = int(row_bytes * len(row))
        ids[mine] = np.arange(offset + 1, offset + 1 + len(row)) | number << SEQUENCE_BITS
        work.emit(LogAppended(work.now_us, topic.number, number, offset, size_bytes, row))
    return ids


def _by_number(numbers: Int64s) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """The places of each number, in order."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    for begin, end in pairwise(bounds):
        yield int(ordered[begin]), order[begin:end]


def put_rows(
    work: Work, topic: Topic, command: Produce, piece: Rows, begin: int, rows: Int64s, reply: Reply
) -> None:
    """Rows of the open frame, which holds the command's rows from `begin` on, go to this log."""
    if not len(rows):
        return
    numbers = choose_partitions(topic, command.keys, begin, len(piece), command.partition)
    reply.ids[begin + rows] = append(work, topic, piece, rows, numbers[rows])


class LogKind(Kind):
    """Everything that can be asked of a log, but what its groups are asked."""

    name: ClassVar[str] = "log"
    in_transactions: ClassVar[tuple[type, ...]] = (Produce, *LogGroups.in_transactions)

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.groups = LogGroups(engine)
        # (moment, topic, partition) when a segment may be too old; `_planned` has the same.
        self._heap: list[tuple[int, int, int]] = []
        self._planned: dict[tuple[int, int], int] = {}
        # Partitions that grew: they may have too many bytes.
        self._grown: dict[tuple[int, int], None] = {}
        # What was trimmed since the last checkpoint, which gives the space back.
        self.trimmed_bytes = 0

    def handlers(self) -> dict[type, Handler]:
        """Who decides commands on logs."""
        return {
            Produce: self._produce,
            Get: self._get,
            Count: self._count,
            Truncate: self._truncate,
            ReadLog: self._read,
            FindOffset: self._find,
            DescribeLog: self._describe,
            **self.groups.handlers(),
        }

    def commands(self) -> dict[type, Handler]:
        """Completions of storage."""
        return {LogsInstalled: self._installed, **self.groups.commands()}

    def events(self) -> dict[type[Event], Apply]:
        """Events of rows and of groups."""
        return {
            LogAppended: self._appended,
            LogTrimmed: self._trimmed,
            **self.groups.events(),
        }

    # Deciding

    def _produce(self, work: Work, command: Produce) -> Reply:
        topic = work.topic(command.topic)
        check_produce(work, topic, command)
        if command.producer:
            known = known_batch(work, command)
            if known is not None:
                return known
        reply = blank(len(command.rows))
        reply.versions[:] = 1
        begin = 0
        for piece in command.rows.split():
            work.bring(piece)
            rows = np.arange(len(piece), dtype=np.int64)
            put_rows(work, topic, command, piece, begin, rows, reply)
            begin += len(piece)
        if command.producer:
            advance_producer(work, topic, command, reply)
        return reply

    def _truncate(self, work: Work, command: Truncate) -> Done:
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
            self._emit_trimmed(work, topic, partition, command.before, "truncated")
        return Done(_describe_partition(partition))

    def _emit_trimmed(
        self, work: Work, topic: Topic, partition: LogPartition, first: int, why: str
    ) -> None:
        work.emit(LogTrimmed(work.now_us, topic.number, partition.number, first, why))

    # Reading

    def _read(self, work: Work, command: ReadLog) -> LogPage:
        partition = partition_of(work.topic(command.topic), command.partition)
        offset, end = command.offset, partition.next_offset
        if not 0 <= offset <= end:
            raise InvalidArgument(
                f"partition {partition.number} ends at {end}: there is no offset {offset} yet",
                field="offset",
                limit=end,
            )
        if offset < partition.earliest:
            raise _gone(partition, offset)
        rows_max = min(max(1, command.rows_max), _READ_ROWS_MAX)
        return LogPage(partition.earliest, end, partition.locate(offset, rows_max))

    def _find(self, work: Work, command: FindOffset) -> LogPage:
        partition = partition_of(work.topic(command.topic), command.partition)
        piece = partition.find_time(command.time_us)
        pieces = [] if piece is None else [piece]
        return LogPage(partition.earliest, partition.next_offset, pieces)

    def _describe(self, work: Work, command: DescribeLog) -> Done:
        partitions = log_of(work.topic(command.topic)).partitions
        return Done([_describe_partition(partition) for partition in partitions])

    def _get(self, work: Work, command: Get) -> Messages:
        """Where rows lie now, by id: a delivery's may have moved."""
        topic = work.topic(command.topic)
        ids = command.target.ids
        if ids is None:
            raise InvalidArgument("in a log a key only routes: name rows by id", field="key")
        status = np.full(len(ids), Outcome.NOT_FOUND, dtype=np.uint8)
        columns: dict[str, NDArray[Any]] = {
            name: np.zeros(len(ids), dtype=np.int64) for name in _MESSAGE_COLUMNS
        }
        partitions = log_of(topic).partitions
        numbers, offsets = ids >> SEQUENCE_BITS, (ids & SEQUENCE_MASK) - 1
        for number in np.unique(numbers).tolist():
            if not 0 <= number < len(partitions):
                continue
            partition = partitions[number]
            mine = np.flatnonzero(numbers == number)
            wanted = offsets[mine]
            status[mine[(wanted >= 0) & (wanted < partition.earliest)]] = Outcome.GONE
            here = (wanted >= partition.earliest) & (wanted < partition.next_offset)
            mine, wanted = mine[here], wanted[here]
            if len(mine):
                status[mine] = Outcome.OK
                columns["due_us"][mine] = partition.times_of(wanted)
                columns["location"][mine] = partition.locations_of(wanted)
                columns["version"][mine] = 1
                columns["state"][mine] = READY
        return Messages(status, ids, columns, work.state.memory.names())

    def _count(self, work: Work, command: Count) -> Counts:
        topic = work.topic(command.topic)
        rows = sum(len(partition) for partition in log_of(topic).partitions)
        words = ("scheduled", "ready", "leased", "dead", "staged", "done", "cancelled")
        states = dict.fromkeys(words, 0) | {"ready": rows}
        return Counts(states | self.groups.counts(topic))

    # Making it so

    def _appended(self, event: LogAppended, frame: int) -> None:
        topic = self.state.topics[event.topic]
        partition = log_of(topic).partitions[event.partition]
        assert event.first_offset == partition.next_offset, "offsets have no holes"
        undo = self.state.memory.undo
        if undo.active:
            mark = partition.mark()
            undo.note(lambda: partition.restore_mark(mark))
        partition.append(frame, event.row, event.at_us, event.size_bytes, topic.settings)
        # Not taken back with a transaction: who looks finds nothing to do.
        self._look_after(topic, partition)
        self.groups.grown(topic, event.partition)

    def _trimmed(self, event: LogTrimmed, _: int) -> None:
        topic = self.state.topics[event.topic]
        partition = log_of(topic).partitions[event.partition]
        self.trimmed_bytes += partition.trim(event.first_offset)
        self.groups.trimmed(topic, event.partition, event.first_offset, event.at_us)

    # A topic's life

    def make(self, topic: Topic) -> None:
        """Empty partitions."""
        topic.body = Log(topic.settings.partitions)
        self.groups.make(topic)

    def changed(self, topic: Topic) -> None:
        """Retention may begin, or be shorter."""
        for partition in log_of(topic).partitions:
            self._planned.pop((topic.number, partition.number), None)
            self._look_after(topic, partition)
        self.groups.changed(topic)

    def drop(self, topic: Topic) -> None:
        """The topic is being deleted."""
        self.trimmed_bytes += sum(partition.size_bytes for partition in log_of(topic).partitions)
        self.groups.drop(topic)

    def forget(self, topic: Topic) -> None:
        """Session state of groups."""
        self.groups.forget(topic)

    # Retention

    def _look_after(self, topic: Topic, partition: LogPartition) -> None:
        """What may have to go is looked at: in this step, for bytes, and when it is old enough."""
        if topic.settings.retained_bytes:
            self._grown[topic.number, partition.number] = None
        self._plan(topic, partition)

    def _plan(self, topic: Topic, partition: LogPartition) -> None:
        place = topic.number, partition.number
        due_us = None if place in self._planned else partition.next_age_us(topic.settings)
        if due_us is not None:
            self._planned[place] = due_us
            heapq.heappush(self._heap, (due_us, *place))

    def before(self, work: Work) -> bool:
        """Groups only."""
        return self.groups.before(work)

    def after(self, work: Work) -> bool:
        """Drops what is too old or too much; then groups hand out."""
        looked = 0
        while self._grown and looked < _TRIMMED_PER_STEP:
            place, _ = self._grown.popitem()
            self._retain(work, *place)
            looked += 1
        while self._heap and self._heap[0][0] <= work.now_us and looked < _TRIMMED_PER_STEP:
            due_us, topic, partition = heapq.heappop(self._heap)
            # Otherwise it was planned anew, when the topic's settings changed.
            if self._planned.get((topic, partition)) == due_us:
                del self._planned[topic, partition]
                self._retain(work, topic, partition)
            looked += 1
        return self.groups.after(work) or looked == _TRIMMED_PER_STEP

    def _retain(self, work: Work, number: int, partition_number: int) -> None:
        topic = self.state.topics.get(number)
        if topic is None:
            return
        partition = log_of(topic).partitions[partition_number]
        settings = topic.settings
        if settings.segment_age_us:
            first = partition.too_old(work.now_us, settings)
            if first > partition.earliest:
                self._emit_trimmed(work, topic, partition, first, "age")
        if settings.retained_bytes:
            first = partition.too_large(settings)
            if first > partition.earliest:
                self._emit_trimmed(work, topic, partition, first, "bytes")
        self._plan(topic, partition)

    def next_us(self) -> int:
        """When the next segment may be too old, or groups have something to do."""
        first_us = self._heap[0][0] if self._heap else FOREVER
        return min(first_us, self.groups.next_us())

    def detach(self, session: int) -> None:
        """A session is gone."""
        self.groups.detach(session)

    # Leases

    def is_credit(self, command: Any) -> bool:
        """Whether a `Lease` does no more than add to its session's credit."""
        return self.groups.turns.is_credit(command)

    def expire(self, work: Work, topic: Topic, held: Int64s) -> None:
        """Leases of groups ran out."""
        self.groups.expire(work, topic, held)

    def arm(self, topic: Topic, held: Int64s, tick: int) -> None:
        """Leases of groups, after a start."""
        self.groups.arm(topic, held, tick)

    def restore_leases(self, topic: Topic, place: int, sequences: Int64s, held: Int64s) -> None:
        """Leases of groups, from a checkpoint."""
        self.groups.restore_leases(topic, place, sequences, held)

    # Checkpoints

    def tails(self) -> dict[tuple[int, int], LogTail]:
        """Rows that lie in the journal only, by topic and partition."""
        tails = {}
        for topic in self.state.topics.values():
            if topic.kind is self:
                for partition in log_of(topic).partitions:
                    tail = partition.tail()
                    if tail is not None:
                        tails[topic.number, partition.number] = tail
        return tails

    def _installed(self, work: Work, command: LogsInstalled) -> Done:
        topic = self.state.topics.get(command.topic)
        if topic is not None:
            partition = log_of(topic).partitions[command.partition]
            partition.install(command.from_offset, command.upto_offset, command.blocks)
        return Done()

    def capture(self, topic: Topic, columns: Columns) -> dict[str, Any]:
        """Where each partition begins and ends, its segments, and its groups."""
        return {
            "partitions": [partition.capture() for partition in log_of(topic).partitions],
            "groups": self.groups.capture(topic, columns),
        }

    def restore(self, topic: Topic, described: dict[str, Any], columns: Columns) -> None:
        """Back from `capture`; where rows lie is told by the manifest."""
        partitions = log_of(topic).partitions
        for partition, values in zip(partitions, described["partitions"], strict=True):
            partition.restore(values)
            self._look_after(topic, partition)
        self.groups.restore(topic, described["groups"], columns)

    def start(self, tick: int) -> None:
        """Replay is over."""
        self.groups.start(tick)


def check_produce(work: Work, topic: Topic, command: Produce) -> None:
    """Raises `invalid_argument` on what rows of a log can't have."""
    if command.partition is not None:
        partition_of(topic, command.partition)
    if command.stage:
        raise InvalidArgument("rows of a log can't be staged", field="stage")
    if command.priorities is not None:
        raise InvalidArgument("rows of a log have no priority", field="priority")
    if command.on_conflict != OnConflict.REJECT:
        raise InvalidArgument("in a log a key only routes: none is taken", field="on_conflict")
    when = command.when
    if when.due_us is None and when.delay_us is None:
        return
    if (work.moments(when, len(command.rows)) > work.now_us).any():
        raise InvalidArgument(
            "rows of a log are there at once: due can't lie in the future", field="due"
        )


def _gone(partition: LogPartition, offset: int) -> Gone:
    return Gone(
        f"partition {partition.number} begins at offset {partition.earliest} now: {offset} is gone",
        details={
            "partition": partition.number,
            "earliest": partition.earliest,
            "lost": partition.earliest - offset,
        },
    )


def _describe_partition(partition: LogPartition) -> dict[str, int]:
    segments = partition.segments
    return {
        "partition": partition.number,
        "earliest": partition.earliest,
        "end": partition.next_offset,
        "rows": len(partition),
        "bytes": partition.size_bytes,
        "segments": len(segments),
        "earliest_us": segments[0].from_us if segments else 0,
        "latest_us": segments[-1].to_us if segments else 0,
    }
