"""Deciding what is done under a lease of a group: ack, nack, release, reject, extend, heartbeat.

The twin of delivery/leasing.py. What a row's failure leads to (a retry after a delay, or death after the
last attempt) is decided by the topic's settings, for each group by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns import codes
from fasti.core.columns.reductions import rows_where, some
from fasti.core.commands import Ack, Extend, Heartbeat, Nack, Reject, Release, ReleaseLeases
from fasti.core.delivery import consumers
from fasti.core.delivery.retry import retry_delays
from fasti.core.delivery.silence import UNOPENED
from fasti.core.lifecycle import Verb
from fasti.core.log import group_events as ge
from fasti.core.log.group import GROUP_SHIFT, Group, GroupPartition
from fasti.core.log.judging import (
    GroupPiece,
    explain,
    find_group,
    judge_lease,
    locate,
    mark_repeated,
    why_not,
)
from fasti.core.replies import Done, Reply
from fasti.core.rows.memory import Memory
from fasti.core.state import Topic
from fasti.core.timeline.corrupt import CORRUPT, GiveUp
from fasti.core.timeline.judging import blank
from fasti.core.work import Work, column
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, PARTITIONS_MAX, SEQUENCE_BITS, Outcome

Int64s = NDArray[np.int64]
UInt16s = NDArray[np.uint16]
Decide = Callable[[Topic, Group, GroupPiece], None]


def ack(work: Work, command: Ack) -> Reply:
    """Done, for this group."""
    started = column(command.started_us, len(command.ids), "started")

    def decide(topic: Topic, group: Group, piece: GroupPiece) -> None:
        where = topic.number, piece.number, group.number
        work.emit(ge.GroupAcked(work.now_us, *where, piece.offsets, started[piece.rows]))

    return _under_lease(work, command, decide)


def release(work: Work, command: Release) -> Reply:
    """Given back to any time, the attempt not counted."""
    due = work.moments(command.when, len(command.ids))
    started = column(command.started_us, len(command.ids), "started")

    def decide(topic: Topic, group: Group, piece: GroupPiece) -> None:
        begun = started[piece.rows]
        _give_back(work, topic, group, piece, Verb.RELEASE, "", due[piece.rows], begun)

    return _under_lease(work, command, decide)


def release_leases(work: Work, command: ReleaseLeases) -> Reply:
    """Gives leased rows back without their token: those of a consumer, or named ones."""
    consumers.check(command)
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    leases, ids = work.state.memory.leases, command.ids
    if ids is None:
        held = held_in_group(work.state.memory, topic.number, group, command.consumer)
        held = held[: consumers.RELEASED_PER_CALL]
        numbers = leases.partition[held].astype(np.int64) & (PARTITIONS_MAX - 1)
        ids = leases.sequence[held] | numbers << SEQUENCE_BITS
    reply = blank(len(ids))
    reply.versions[:] = 1
    for piece in locate(topic, group, ids, reply):
        status = why_not(piece, np.arange(len(piece.offsets)))
        leased = status == Outcome.LEASED
        # Nobody has it.
        status[status == Outcome.OK] = Outcome.CONFLICT
        status[leased] = Outcome.OK
        mark_repeated(piece, status)
        reply.status[piece.rows] = status
        explain(work, piece, reply)
        good = rows_where(status == codes.OK)
        if len(good):
            free = piece.only(good, len(ids))
            due = np.full(len(good), work.now_us, dtype=np.int64)
            never = np.zeros(len(good), dtype=np.int64)
            _give_back(work, topic, group, free, Verb.RELEASE, "", due, never)
    return reply


def nack(work: Work, command: Nack) -> Reply:
    """Failed: again after the retry delay or when it says, or dead."""
    _check_reason(work, command.reason)
    count = len(command.ids)
    started = column(command.started_us, count, "started")
    given = None if command.when is None else work.moments(command.when, count)

    def decide(topic: Topic, group: Group, piece: GroupPiece) -> None:
        begun = started[piece.rows]
        attempts = piece.place.attempts[piece.place.slots(piece.offsets)].copy()
        spent = _spent(topic, attempts)
        if spent.any():
            offsets, reason = piece.offsets[spent], command.reason
            _die(work, topic, group, piece.number, offsets, reason, begun[spent], True)
        left = ~spent
        if left.any():
            rest = piece.only(left, count)
            ids = rest.offsets + 1 | piece.number << SEQUENCE_BITS
            if given is None:
                delays = retry_delays(topic.settings.retry, ids, attempts[left])
                due = np.minimum(work.now_us + delays, DUE_MAX_US)
            else:
                due = given[rest.rows]
            _give_back(work, topic, group, rest, Verb.NACK, command.reason, due, begun[left])

    return _under_lease(work, command, decide)


def reject(work: Work, command: Reject) -> Reply:
    """Failed for good."""
    _check_reason(work, command.reason)
    started = column(command.started_us, len(command.ids), "started")

    def decide(topic: Topic, group: Group, piece: GroupPiece) -> None:
        begun = started[piece.rows]
        _die(work, topic, group, piece.number, piece.offsets, command.reason, begun, False)

    return _under_lease(work, command, decide)


def give_up(work: Work, command: GiveUp) -> Reply:
    """Rows that can't be read are dead for the group that has them; `conflict` for all others."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    reply = blank(len(command.ids))
    reply.versions[:] = 1
    for piece in locate(topic, group, command.ids, reply):
        lost = why_not(piece, np.arange(len(piece.offsets))) == Outcome.LEASED
        mine = command.locations[piece.rows]
        lost[lost] = piece.log.locations_of(piece.offsets[lost]) == mine[lost]
        status = np.where(lost, Outcome.OK, Outcome.CONFLICT).astype(np.uint8)
        mark_repeated(piece, status)
        reply.status[piece.rows] = status
        dead = piece.offsets[status == Outcome.OK]
        if len(dead):
            never = np.zeros(len(dead), dtype=np.int64)
            _die(work, topic, group, piece.number, dead, CORRUPT, never, False)
    return reply


def extend(work: Work, command: Extend) -> Reply:
    """Longer leases."""
    limits = work.limits
    if not limits.lease_us_min <= command.length_us <= limits.lease_us_max:
        raise InvalidArgument(
            f"a lease must last {limits.lease_us_min} to {limits.lease_us_max} microseconds",
            field="length",
            limit=limits.lease_us_max,
        )

    def decide(topic: Topic, group: Group, piece: GroupPiece) -> None:
        where = topic.number, piece.number, group.number
        work.emit(ge.GroupExtended(work.now_us, *where, command.length_us, piece.offsets))

    return _under_lease(work, command, decide)


def heartbeat(work: Work, command: Heartbeat) -> Done:
    """Renews a consumer's leases in the group, by one event."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    held = held_in_group(work.state.memory, topic.number, group, command.consumer)
    if len(held):
        work.emit(ge.GroupRenewed(work.now_us, topic.number, group.number, command.consumer))
    return Done(len(held))


def held_in_group(memory: Memory, topic: int, group: Group, consumer: str) -> Int64s:
    """Slots of the leases that a consumer has in a group."""
    number = memory.consumers.find(consumer)
    if number is None:
        return np.zeros(0, dtype=np.int64)
    held = memory.leases.held_by(number, topic)
    return held[memory.leases.partition[held] >> GROUP_SHIFT == group.number]


def expire(work: Work, topic: Topic, group: Group, number: int, offsets: Int64s) -> None:
    """Leases ran out: handed out again at once, or dead after the last attempt."""
    place: GroupPartition = group.partitions[number]
    spent = _spent(topic, place.attempts[place.slots(offsets)])
    if spent.any():
        never = np.zeros(int(spent.sum()), dtype=np.int64)
        _die(work, topic, group, number, offsets[spent], "the lease expired", never, True)
    if not spent.all():
        left = offsets[~spent]
        due = np.full(len(left), work.now_us, dtype=np.int64)
        where = topic.number, number, group.number
        never = np.zeros(len(left), dtype=np.int64)
        event = ge.GroupReturned(work.now_us, *where, int(Verb.EXPIRE), "", left, due, never)
        work.emit(event)


def give_back_unopened(
    work: Work, topic: Topic, group: Group, number: int, offsets: Int64s
) -> None:
    """Leases ended at a consumer that fell silent: handed out again, the attempt not counted."""
    due = np.full(len(offsets), work.now_us, dtype=np.int64)
    where, never = (topic.number, number, group.number), np.zeros(len(offsets), dtype=np.int64)
    verb = int(Verb.RELEASE)
    work.emit(ge.GroupReturned(work.now_us, *where, verb, UNOPENED, offsets, due, never))
    topic.unopened += len(offsets)


def ack_all(
    work: Work, topic: Topic, group: Group, ids: Int64s, tokens: Int64s, started: Int64s
) -> Reply | None:
    """The acks of several commands at once; None, and nothing done, if a row is not ok."""
    reply = blank(len(ids))
    reply.versions[:] = 1
    pieces = list(locate(topic, group, ids, reply))
    for piece in pieces:
        if some(judge_lease(work.state.memory.leases, piece, tokens[piece.rows])):
            return None
    if some(reply.status):
        return None
    for piece in pieces:
        where = topic.number, piece.number, group.number
        # What many consumers got one after another is a range again.
        order = np.argsort(piece.offsets, kind="stable")
        begun = started[piece.rows][order]
        work.emit(ge.GroupAcked(work.now_us, *where, piece.offsets[order], begun))
    return reply


def _under_lease(
    work: Work, command: Extend | Ack | Release | Nack | Reject, decide: Decide
) -> Reply:
    """Judges the rows of a command; `decide` gets those, by partition, that may be used."""
    topic = work.topic(command.topic)
    group = find_group(topic, command.group)
    count = len(command.ids)
    tokens = column(command.tokens, count, "token")
    reply = blank(count)
    reply.versions[:] = 1
    for piece in locate(topic, group, command.ids, reply):
        status = judge_lease(work.state.memory.leases, piece, tokens[piece.rows])
        if some(status):
            reply.status[piece.rows] = status
            explain(work, piece, reply)
            piece = piece.only(rows_where(status == codes.OK), count)
        if len(piece.offsets):
            decide(topic, group, piece)
    return reply


def _give_back(
    work: Work,
    topic: Topic,
    group: Group,
    piece: GroupPiece,
    verb: Verb,
    reason: str,
    due: Int64s,
    started: Int64s,
) -> None:
    where = topic.number, piece.number, group.number
    event = ge.GroupReturned(work.now_us, *where, int(verb), reason, piece.offsets, due, started)
    work.emit(event)


def _die(
    work: Work,
    topic: Topic,
    group: Group,
    partition: int,
    offsets: Int64s,
    reason: str,
    started: Int64s,
    exhausted: bool,
) -> None:
    where = topic.number, partition, group.number
    work.emit(ge.GroupDied(work.now_us, *where, reason, int(exhausted), offsets, started))


def _spent(topic: Topic, attempts: UInt16s) -> NDArray[np.bool_]:
    """Which had their last attempt. `max_attempts` of 0 means that there is no last one."""
    limit = topic.settings.max_attempts
    return attempts >= limit if limit else np.zeros(len(attempts), dtype=np.bool_)


def _check_reason(work: Work, reason: str) -> None:
    limit = work.limits.reason_bytes_max
    if len(reason.encode()) > limit:
        raise InvalidArgument(f"a reason has at most {limit} bytes", field="reason", limit=limit)
