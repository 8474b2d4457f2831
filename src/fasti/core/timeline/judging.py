"""What a command may do to a row: the definite outcome of each, before anything is changed.

A row that can't be changed is told why: it is leased (by whom, until when), finished (how, when),
dead, another consumer's, of another version, forgotten (`gone`), or was never there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.columns import codes
from fasti.core.columns.reductions import every, rows_where, some
from fasti.core.commands import Target
from fasti.core.delivery.expiry import lapse_over
from fasti.core.delivery.silence import again, held_on
from fasti.core.replies import Reply
from fasti.core.state import Topic
from fasti.core.timeline.partition import Partition
from fasti.core.work import Work, repeated, split_ids
from fasti.model import SEQUENCE_BITS, Outcome, State

Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]

# What a finished message answers, by the state it ended in.
_ENDED = np.full(8, Outcome.GONE, dtype=np.uint8)
_ENDED[State.DONE] = Outcome.DONE
_ENDED[State.CANCELLED] = Outcome.CANCELLED
_ENDED[State.DEAD] = Outcome.DEAD


@dataclass(slots=True)
class Piece:
    """The rows of a command that fall into one partition (a `LeasedRows`, where they are leased)."""

    topic: Topic
    partition: Partition
    rows: NDArray[np.intp] | slice
    sequences: Int64s
    slots: Int64s
    states: UInt8s

    def __len__(self) -> int:
        return len(self.sequences)

    def versions(self) -> Int64s:
        """The version of each message; 0 where there is none (a finished row may linger)."""
        versions = self.partition.arena.version.take(self.slots).astype(np.int64)
        if every(self.states != codes.NONE):
            return versions
        return np.where(self.states != codes.NONE, versions, 0)

    def only(self, good: NDArray[np.intp] | NDArray[np.bool_], count: int) -> Piece:
        """Of these rows some. `count` is how many the command has."""
        rows = np.arange(count)[self.rows][good]
        sequences, slots, states = self.sequences[good], self.slots[good], self.states[good]
        return Piece(self.topic, self.partition, rows, sequences, slots, states)

    def in_order(self, count: int) -> Piece:
        """As they are."""
        return self

    def ids(self) -> Int64s:
        """The id of each."""
        return self.sequences | self.partition.number << SEQUENCE_BITS

    def attempts(self) -> NDArray[np.uint16]:
        """How often each was handed out."""
        return self.partition.arena.attempts.take(self.slots)

    def due_again(self, work: Work) -> Int64s:
        """When each was due."""
        return self.partition.arena.due.take(self.slots)

    # Judging

    def judge(self, work: Work, tokens: Int64s) -> UInt8s:
        """Which rows are leased under the token that is shown."""
        leases = work.state.memory.leases
        status = np.zeros(len(self.sequences), dtype=np.uint8)
        held = self.partition.arena.lease.take(self.slots, mode="clip")
        leased = self.states == codes.LEASED
        if every(leased):
            status[leases.token.take(held, mode="clip") != tokens] = codes.STALE_LEASE
            if not leases.repeats(held):
                return status
        else:
            status[leases.token.take(np.where(leased, held, 0)) != tokens] = Outcome.STALE_LEASE
            others = np.flatnonzero(~leased)
            reasons = why_not(work, self, others, by_key=False)
            reasons[reasons == Outcome.OK] = Outcome.STALE_LEASE  # scheduled: the lease is over
            status[others] = reasons
        mark_repeated(self, status)
        return status

    def judge_held(self, work: Work) -> UInt8s:
        """Which rows are leased."""
        status = np.zeros(len(self.sequences), dtype=np.uint8)
        others = rows_where(self.states != codes.LEASED)
        if len(others):
            reasons = why_not(work, self, others, by_key=False)
            reasons[reasons == Outcome.OK] = Outcome.CONFLICT  # no consumer has it
            status[others] = reasons
        mark_repeated(self, status)
        return status

    def explain(self, work: Work, reply: Reply) -> None:
        """Adds versions, who has the leased ones until when, and when the others ended."""
        explain(work, self, reply)
        reply.versions[self.rows] = self.versions()

    def note_versions(self, reply: Reply) -> None:
        """Enters the versions that the messages have now."""
        reply.versions[self.rows] = self.partition.arena.version.take(self.slots)

    # Deciding

    def without_lapsed(self, work: Work, count: int) -> Piece:
        """Of rows that come back, those that do: the others are dead."""
        left = lapse_over(work, self.partition, self.sequences, self.slots)
        return self if left is None else self.only(left, count)

    def ack(self, work: Work, started: Int64s) -> None:
        """Done."""
        work.emit(ev.Acked(*self._place(work), self.sequences, started), self.slots)

    def extend(self, work: Work, length_us: int) -> None:
        """Longer leases."""
        work.emit(ev.Extended(*self._place(work), length_us, self.sequences), self.slots)

    def release(self, work: Work, due: Int64s, started: Int64s) -> None:
        """Scheduled again, the attempt not counted."""
        work.emit(ev.Released(*self._place(work), self.sequences, due, started), self.slots)

    def nack(self, work: Work, reason: str, due: Int64s, started: Int64s) -> None:
        """Scheduled again after a failure."""
        event = ev.Nacked(*self._place(work), reason, self.sequences, due, started)
        work.emit(event, self.slots)

    def die(self, work: Work, reason: str, started: Int64s, exhausted: bool) -> None:
        """Dead."""
        event = ev.Died(*self._place(work), reason, int(exhausted), self.sequences, started)
        work.emit(event, self.slots)

    def expire(self, work: Work) -> None:
        """Ready again, at the due time that they had."""
        work.emit(ev.Expired(*self._place(work), self.sequences), self.slots)

    def give_back_unopened(self, work: Work, reasons: NDArray[np.int32]) -> None:
        """Scheduled again, the attempt not counted; the reason says how often that was so."""
        names = work.state.memory.reasons
        for number in np.unique(reasons).tolist():
            mine = reasons == number
            reason, sequences, slots = (
                again(names.name(number)),
                self.sequences[mine],
                self.slots[mine],
            )
            due = self.partition.arena.due.take(slots)
            work.emit(ev.Unopened(*self._place(work), reason, sequences, due), slots)

    def _place(self, work: Work) -> tuple[int, int, int]:
        return work.now_us, self.partition.topic, self.partition.number


def locate(topic: Topic, target: Target, reply: Reply) -> list[Piece]:
    """Finds the rows that a target names, and fills in ids. Strangers are NOT_FOUND."""
    if target.ids is not None:
        reply.ids[:] = target.ids
        pieces = split_ids(target.ids, len(topic.partitions))
    else:
        assert target.keys is not None
        pieces = _find_keys(topic, target, reply)
    located: list[Piece] = []
    for number, rows, sequences in pieces:
        if not 0 <= number < len(topic.partitions):
            reply.status[rows] = Outcome.NOT_FOUND
            continue
        partition = topic.partitions.look(number)
        slots = partition.ledger.slots(sequences)
        states = partition.states(slots)
        located.append(Piece(topic, partition, rows, sequences, slots, states))
    return located


def _find_keys(
    topic: Topic, target: Target, reply: Reply
) -> list[tuple[int, NDArray[np.intp] | slice, Int64s]]:
    keys = target.keys
    assert keys is not None
    if len(topic.partitions) == 1:
        sequences = topic.partitions.look(0).find_keys(keys.hashes)
        reply.ids[:] = sequences
        return [(0, slice(None), sequences)]
    numbers = keys.partitions(len(topic.partitions))
    pieces: list[tuple[int, NDArray[np.intp] | slice, Int64s]] = []
    for number in np.unique(numbers).tolist():
        rows = np.flatnonzero(numbers == number)
        sequences = topic.partitions.look(number).find_keys(keys.hashes[rows])
        reply.ids[rows] = np.where(sequences > 0, sequences | number << SEQUENCE_BITS, 0)
        pieces.append((number, rows, sequences))
    return pieces


def judge_change(work: Work, piece: Piece, versions: Int64s, owner: str, by_key: bool) -> UInt8s:
    """Which rows the owner may update, move or cancel; why not, for the others."""
    arena = piece.partition.arena
    status = np.zeros(len(piece.sequences), dtype=np.uint8)
    if some(versions):
        current = arena.version.take(piece.slots, mode="clip")
        status[(versions != 0) & (versions != current)] = Outcome.CONFLICT
    owners = arena.owner.take(piece.slots, mode="clip")
    if some(owners):
        mine = work.state.memory.owners.find(owner) if owner else None
        status[(owners != 0) & (owners != (-1 if mine is None else mine))] = Outcome.NOT_OWNER
    others = rows_where(piece.states != codes.SCHEDULED)
    if len(others):
        status[others] = why_not(work, piece, others, by_key)
    mark_repeated(piece, status)
    return status


def mark_repeated(piece: Piece, status: UInt8s) -> None:
    """A message changes once a batch: of the rows that could change it, the first one does."""
    if repeated(piece.sequences) is None:
        return
    good = np.flatnonzero(status == Outcome.OK)
    again = repeated(piece.sequences[good])
    if again is not None:
        status[good[again]] = Outcome.DUPLICATE


def why_not(work: Work, piece: Piece, rows: NDArray[np.intp], by_key: bool) -> UInt8s:
    """Why rows can't be changed; OK for those that are scheduled after all."""
    states, sequences = piece.states[rows], piece.sequences[rows]
    status = np.zeros(len(rows), dtype=np.uint8)
    status[states == State.LEASED] = Outcome.LEASED
    status[states == State.DEAD] = Outcome.DEAD
    staged = np.flatnonzero(states == State.STAGED)
    if len(staged):
        landing = is_landing(work, piece.topic, piece.partition.number, sequences[staged])
        status[staged] = np.where(landing, Outcome.LEASED, Outcome.NOT_FOUND)
    missing = np.flatnonzero(states == State.NONE)
    if len(missing):
        since = work.now_us - piece.topic.settings.outcome_age_us
        ended, _ = piece.partition.outcomes.find(sequences[missing], since)
        answer = _ENDED[ended]
        never = sequences[missing] >= piece.partition.ledger.next_sequence
        if by_key:
            never = ended == State.NONE  # the key names nothing any more
        answer[never | (sequences[missing] <= 0)] = Outcome.NOT_FOUND
        status[missing] = answer
    return status


def unname_strangers(reply: Reply, by_key: bool) -> None:
    """A key that names nothing has no id, though the index may still know an old one."""
    if by_key and some(reply.status):
        reply.ids[reply.status == Outcome.NOT_FOUND] = 0


def is_landing(work: Work, topic: Topic, partition: int, sequences: Int64s) -> NDArray[np.bool_]:
    """Which staged rows belong to a stage that is published and about to land."""
    landing = np.zeros(len(sequences), dtype=np.bool_)
    for stage in work.state.publishing.values():
        if stage.topic == topic.number:
            for batch in stage.batches:
                if batch.partition == partition:
                    landing |= batch.has(sequences)
    return landing


_EXPLAINED = np.zeros(256, dtype=np.bool_)
_EXPLAINED[[Outcome.LEASED, Outcome.DONE, Outcome.CANCELLED, Outcome.DEAD]] = True


def explain(work: Work, piece: Piece, reply: Reply) -> None:
    """Adds who has the leased ones until when, and when the others ended."""
    status = reply.status[piece.rows]
    told = rows_where(_EXPLAINED[status])
    if not len(told):
        return
    if reply.at_us is None:
        reply.at_us = np.zeros(len(reply.status), dtype=np.int64)
        reply.by = {}
    assert reply.by is not None
    places = np.arange(len(reply.status))[piece.rows]
    since = work.now_us - piece.topic.settings.outcome_age_us
    _, ended = piece.partition.outcomes.find(piece.sequences[told], since)
    reply.at_us[places[told]] = ended
    leases, consumers = work.state.memory.leases, work.state.memory.consumers
    for row in told[status[told] == Outcome.LEASED].tolist():
        place = int(places[row])
        if piece.states[row] == State.STAGED:
            reply.by[place] = "publish"
            continue
        held = int(piece.partition.arena.lease[piece.slots[row]])
        reply.by[place] = consumers.name(int(leases.consumer[held]))
        reply.at_us[place] = work.now_us + int(leases.until[held]) - work.tick


@dataclass(frozen=True, slots=True)
class LeasableTopic:
    """All partitions of a timeline or priority topic, as the lease engine sees it: a `Leasable`."""

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
