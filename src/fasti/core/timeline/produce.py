"""Deciding produce: new messages, and what happens to those whose key is taken.

The common case, a batch without keys, is one event and no look-up at all. With keys, each
partition's rows are looked up at once; rows of one batch that share a key are treated as if they
had come one after another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.columns.hashing import UInt64s, repeated_keys
from fasti.core.commands import EndProducer, Expires, Produce, Staging
from fasti.core.priority.events import PriorityProduced, PriorityReplaced
from fasti.core.producers import PRODUCER_BYTES, Producer
from fasti.core.replies import Done, Reply, blank
from fasti.core.sinks.deciding import check_room
from fasti.core.sinks.events import SinkStageOpened
from fasti.core.state import Topic
from fasti.core.timeline.judging import Piece, explain
from fasti.core.timeline.partition import Partition
from fasti.core.traits import hint
from fasti.core.work import Work
from fasti.errors import InvalidArgument, NotFound, Overloaded, UnknownProducer
from fasti.model import MINUTE_US, SEQUENCE_BITS, OnConflict, Outcome, State

Int64s = NDArray[np.int64]
UInt16s = NDArray[np.uint16]
Rows = NDArray[np.intp]


def produce(work: Work, command: Produce) -> Reply:
    """Decides a produce command."""
    topic = work.topic(command.topic)
    count = len(command.rows)
    due = work.moments(command.when, count)
    expires = None if command.expires is None else work.expiry(command.expires, due)
    if command.staging is not None and _staged_before(work, command.staging, command.stage):
        again = blank(count)
        again.sent_before = True
        return again
    _check(work, topic, command)
    if command.producer:
        known = known_batch(work, command)
        if known is not None:
            return known
    reply = blank(count)
    reply.versions[:] = 1
    if command.stage and command.stage not in work.state.stages:
        work.emit(_stage_opened(work, topic, command))
    begin = 0
    for piece in command.rows.split():
        work.bring(piece)
        rows = slice(begin, begin + len(piece))
        part = _Part(work, topic, command, begin, due[rows], reply)
        part.expires = None if expires is None else expires[rows]
        hashes = None if command.keys is None else command.keys.hashes[rows]
        part.decide(hashes, np.arange(len(piece)))
        begin += len(piece)
    if command.producer:
        advance_producer(work, topic, command, reply)
    return reply


def put_rows(
    work: Work, topic: Topic, command: Produce, begin: int, due: Int64s, rows: Rows, reply: Reply
) -> None:
    """Some rows of the frame that is open, whose first one is the command's `begin`: fan-out."""
    _check(work, topic, command)
    part = _Part(work, topic, command, begin, due, reply)
    end = begin + len(due)
    if command.expires is not None:
        part.expires = work.expiry(_rows_of(command.expires, begin, end), due)
    part.decide(None if command.keys is None else command.keys.hashes[begin:end], rows)


def _rows_of(expires: Expires, begin: int, end: int) -> Expires:
    at, after = expires.at_us, expires.after_us
    return Expires(
        None if at is None else at[begin:end], None if after is None else after[begin:end]
    )


def _check(work: Work, topic: Topic, command: Produce) -> None:
    check_priorities(topic, command.priorities, len(command.rows))
    if command.partition is not None:
        if command.keys is not None:
            raise InvalidArgument("a key decides the partition itself", field="partition")
        if not 0 <= command.partition < len(topic.partitions):
            raise InvalidArgument("there is no such partition", field="partition")
    if len(command.owner.encode()) > work.limits.name_bytes_max:
        raise InvalidArgument("the owner's name is too long", field="owner")
    # Half a batch must not be refused: there is room for all of it, on any partition, or none.
    work.state.memory.require_rows(len(command.rows), len(topic.partitions))
    if command.stage:
        _check_stage(work, topic, command)


def _check_stage(work: Work, topic: Topic, command: Produce) -> None:
    stage = work.state.stages.get(command.stage)
    if stage is None:
        if len(work.state.stages) >= work.limits.stages_max:
            raise Overloaded(f"{work.limits.stages_max:,} stages are open, and no more may be")
        if command.staging is not None:
            check_room(work, command.staging.sink)
            work.topic(command.staging.target)
    elif stage.published or stage.claimed:
        raise InvalidArgument("the stage is published already", field="stage")
    elif stage.sink != ("" if command.staging is None else command.staging.sink):
        raise InvalidArgument("the stage belongs to another owner", field="stage")
    elif stage.dropping:
        raise InvalidArgument("the stage has expired", field="stage")
    elif stage.topic != topic.number:
        raise InvalidArgument("the stage belongs to another topic", field="stage")


def _staged_before(work: Work, staging: Staging, name: str) -> bool:
    """Whether a sink's stage has these rows already. Raises where rows are missing before them."""
    stage = work.state.stages.get(name)
    total = 0 if stage is None else stage.total
    if staging.offset > total:
        raise NotFound(
            f"the stage {name!r} has {total} rows, not {staging.offset}: it expired, was dropped, or "
            "rows are missing",
            details={"stage": name, "rows": total},
        )
    return staging.offset < total


def _stage_opened(work: Work, topic: Topic, command: Produce) -> ev.Event:
    staging = command.staging
    if staging is None:
        return ev.StageOpened(work.now_us, command.stage, topic.number)
    target = topic if staging.target == topic.name else work.topic(staging.target)
    return SinkStageOpened(
        work.now_us,
        command.stage,
        topic.number,
        target.number,
        staging.sink,
        staging.batch,
        staging.operation,
        command.owner,
    )


def known_batch(work: Work, command: Produce) -> Reply | None:
    """The answer to a batch that was sent before; None if it is the next one."""
    producer = work.state.producers.find(command.producer, work.now_us)
    number = command.producer_sequence
    if number < 1:
        raise InvalidArgument("batches are numbered from 1", field="producer_sequence", limit=1)
    if producer is None:
        if number != 1:
            raise UnknownProducer(
                f"producer {command.producer!r} is not known (any more): batch {number} can't be "
                "told from one that was sent before",
                details={"producer": command.producer},
            )
        _check_producers(work, command)
        return None
    if number == producer.last_sequence + 1:
        return None
    if number > producer.last_sequence:
        raise InvalidArgument(
            f"batch {number} follows {producer.last_sequence}: one in between is missing",
            field="producer_sequence",
        )
    return _duplicate(producer, number, len(command.rows))


def _duplicate(producer: Producer, number: int, count: int) -> Reply:
    reply = blank(count)
    reply.sent_before = True
    receipt = producer.find(number)
    if receipt is None or receipt.rows != count:
        reply.status[:] = Outcome.DUPLICATE
        return reply
    reply.status[:], reply.ids[:], reply.versions[:] = receipt.answers()
    return reply


def _check_producers(work: Work, command: Produce) -> None:
    """One more can be remembered."""
    producers = work.state.producers
    if not producers.has_room(work.now_us):
        raise Overloaded(
            f"{producers.count_max} producers sent batches within the last hour, and no more are "
            "remembered (limits.producers_max); use one producer for many batches",
            retry_after_us=MINUTE_US,
            details={"producers": len(producers)},
        )
    work.state.memory.require(PRODUCER_BYTES + len(command.producer), "one more producer")


def end_producer(work: Work, command: EndProducer) -> Done:
    """Forgets a producer that is over; the value is whether it was known."""
    known = work.state.producers.find(command.producer, 0) is not None
    if known:
        work.emit(ev.ProducerEnded(work.now_us, command.producer))
    return Done(known)


def note_aborted(work: Work, command: Produce, reply: Reply) -> None:
    """A batch that was to happen whole did not, and its number is used up all the same."""
    if command.producer and not reply.sent_before:
        advance_producer(work, work.topic(command.topic), command, reply)


def advance_producer(work: Work, topic: Topic, command: Produce, reply: Reply) -> None:
    """Notes what a numbered batch was answered."""
    work.emit(
        ev.ProducerAdvanced(
            work.now_us,
            command.producer,
            command.producer_sequence,
            topic.number,
            reply.status.copy(),
            reply.ids.copy(),
            reply.versions.copy(),
        )
    )


@dataclass(slots=True)
class _Part:
    """The rows of one frame: decides them and fills in their part of the reply."""

    work: Work
    topic: Topic
    command: Produce
    begin: int
    due: Int64s
    reply: Reply
    # When each of these rows expires, 0: never; None: none does.
    expires: Int64s | None = None

    def decide(self, hashes: UInt64s | None, rows: Rows) -> None:
        if hashes is None or self.command.stage:
            # Staged rows claim their keys when they are published.
            for number, mine in self._routes(hashes, rows):
                self._create(number, mine, None if hashes is None else hashes[mine])
            return
        for number, mine in self._routes(hashes, rows):
            self._decide_keyed(number, mine, hashes)

    def _routes(self, hashes: UInt64s | None, rows: Rows) -> list[tuple[int, Rows]]:
        """Which rows go to which partition: by key, as told, or in turn."""
        partitions = len(self.topic.partitions)
        own = self.topic.own
        if partitions == 1 and own is None:
            return [(0, rows)]
        turn = self.command.partition
        if turn is None:
            turn = self.topic.take_turn()
        keys = self.command.keys
        if hashes is None or keys is None:
            return [(turn, rows)]
        numbers = keys.partitions(partitions)[self.begin + rows]
        numbers = np.where(hashes[rows, 0] != 0, numbers, turn)
        if own is not None:
            # Rows that a topic passes on come here unchecked.
            own.check_numbers(self.topic.name, numbers)
        return [(number, rows[numbers == number]) for number in np.unique(numbers).tolist()]

    def _decide_keyed(self, number: int, rows: Rows, hashes: UInt64s) -> None:
        partition = self.topic.partitions[number]
        first, later = _first_of_keys(hashes, rows)
        found = partition.find_keys(hashes[first])
        taken = np.flatnonzero((found > 0) & partition.is_live(found))
        free = np.ones(len(first), dtype=np.bool_)
        free[taken] = False
        if len(taken):
            self._conflict(partition, first[taken], found[taken])
        if free.any():
            self._create(number, first[free], hashes[first[free]], new_keys=not found.any())
        if len(later):
            self._conflict_again(partition, later, hashes)

    def _create(
        self, number: int, rows: Rows, hashes: UInt64s | None, new_keys: bool = False
    ) -> None:
        partition = self.topic.partitions[number]
        sequence = partition.ledger.next_sequence
        if len(rows) == 1:
            self.reply.ids[self.begin + int(rows[0])] = sequence | number << SEQUENCE_BITS
        else:
            ids = np.arange(sequence, sequence + len(rows)) | number << SEQUENCE_BITS
            self.reply.ids[self.begin + rows] = ids
        owner, stage = self.command.owner, self.command.stage
        place = (self.work.now_us, self.topic.number, number, sequence, owner, stage)
        columns = (self.due[rows], rows.astype(np.int64), hashes, new_keys)
        if self.topic.kind.traits.has_priorities:
            self.work.emit(PriorityProduced(*place, *columns, self._priorities(rows)))
        else:
            self.work.emit(ev.Produced(*place, *columns))
        if self.expires is not None:
            sequences = np.arange(sequence, sequence + len(rows), dtype=np.int64)
            self._expire(partition, sequences, self.expires[rows])

    def _conflict(self, partition: Partition, rows: Rows, sequences: Int64s) -> None:
        """Rows whose key a live message has; no message stands here twice."""
        slots = partition.ledger.slots(sequences)
        places = self.begin + rows
        status = self._judge(partition, places, sequences, slots)
        self.reply.ids[places] = sequences | partition.number << SEQUENCE_BITS
        self.reply.versions[places] = partition.arena.version.take(slots)
        good = status == Outcome.OK
        if good.any():
            self._replace(partition, rows[good], sequences[good], slots[good], bump=1)

    def _judge(
        self, partition: Partition, places: Rows, sequences: Int64s, slots: Int64s
    ) -> NDArray[np.uint8]:
        """What becomes of rows whose key a live message has, and who has it if it is out."""
        status = self._statuses(partition, slots)
        self.reply.status[places] = status
        if (status == Outcome.LEASED).any():
            piece = Piece(self.topic, partition, places, sequences, slots, partition.states(slots))
            explain(self.work, piece, self.reply)
        return status

    def _statuses(self, partition: Partition, slots: Int64s) -> NDArray[np.uint8]:
        if self.command.on_conflict == OnConflict.REJECT:
            return np.full(len(slots), Outcome.CONFLICT, dtype=np.uint8)
        if self.command.on_conflict == OnConflict.KEEP:
            return np.full(len(slots), Outcome.DUPLICATE, dtype=np.uint8)
        status = np.zeros(len(slots), dtype=np.uint8)
        owners = partition.arena.owner.take(slots)
        mine = self.work.state.memory.owners.find(self.command.owner)
        status[(owners != 0) & (owners != (-1 if mine is None else mine))] = Outcome.NOT_OWNER
        status[partition.states(slots) != State.SCHEDULED] = Outcome.LEASED
        return status

    def _replace(
        self,
        partition: Partition,
        rows: Rows,
        sequences: Int64s,
        slots: Int64s,
        bump: Int64s | int,
    ) -> None:
        versions = partition.arena.version.take(slots).astype(np.int64) + bump
        self.reply.versions[self.begin + rows] = versions
        place = (self.work.now_us, self.topic.number, partition.number)
        columns = (sequences, versions, self.due[rows], rows.astype(np.int64))
        if self.topic.kind.traits.has_priorities:
            self.work.emit(PriorityReplaced(*place, *columns, self._priorities(rows)))
        else:
            self.work.emit(ev.Replaced(*place, *columns))
        if self.expires is not None:
            self._expire(partition, sequences, self.expires[rows])

    def _expire(self, partition: Partition, sequences: Int64s, moments: Int64s) -> None:
        given = moments != 0
        if given.any():
            place = (self.work.now_us, self.topic.number, partition.number)
            self.work.emit(ev.ExpirySet(*place, sequences[given], moments[given]))

    def _priorities(self, rows: Rows) -> UInt16s:
        given = self.command.priorities
        if given is None:
            return np.zeros(len(rows), dtype=np.uint16)
        return given[self.begin + rows]

    def _conflict_again(self, partition: Partition, rows: Rows, hashes: UInt64s) -> None:
        """Rows whose key stood earlier in the batch. Of those that replace, the last one wins."""
        sequences = partition.find_keys(hashes[rows])
        slots = partition.ledger.slots(sequences)
        places = self.begin + rows
        status = self._judge(partition, places, sequences, slots)
        self.reply.ids[places] = sequences | partition.number << SEQUENCE_BITS
        versions = partition.arena.version.take(slots).astype(np.int64)
        self.reply.versions[places] = versions
        good = np.flatnonzero(status == Outcome.OK)
        if not len(good):
            return
        order = good[np.argsort(sequences[good], kind="stable")]
        ordered = sequences[order]
        starts = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
        sizes = np.diff([*starts, len(ordered)])
        nth = np.arange(len(ordered)) - np.repeat(starts, sizes) + 1
        self.reply.versions[places[order]] = versions[order] + nth
        last = order[starts + sizes - 1]
        self._replace(partition, rows[last], sequences[last], slots[last], bump=sizes)


def _first_of_keys(hashes: UInt64s, rows: Rows) -> tuple[Rows, Rows]:
    """Rows that bring a key for the first time in this batch (or none), and the others."""
    later = repeated_keys(hashes[rows])
    if later is None:
        return rows, rows[:0]
    return rows[~later], rows[later]


def check_priorities(topic: Topic, priorities: UInt16s | None, count: int) -> None:
    """Only messages of priority topics have one, and each its own."""
    if priorities is None:
        return
    if not topic.kind.traits.has_priorities:
        raise InvalidArgument(
            f"{topic.name!r} is a {topic.settings.kind} topic: its messages have no priority",
            field="priority",
        )
    if len(priorities) != count:
        raise InvalidArgument("priorities and messages differ in number", field="priority")


def check_expires(topic: Topic) -> None:
    """Only what is handed out once can come too late."""
    kind = topic.settings.kind
    if not topic.kind.traits.is_queue:
        raise InvalidArgument(
            f"{topic.name!r} is a {kind} topic: its messages don't expire{hint(kind, 'expires')}",
            field="expires",
        )


def check_rows(command: Produce) -> None:
    """A command's columns fit its rows."""
    count = len(command.rows)
    if command.keys is not None and len(command.keys) != count:
        raise InvalidArgument("keys and payloads differ in number", field="key")
    if not count:
        raise InvalidArgument("a batch has at least one row", field="payload")
