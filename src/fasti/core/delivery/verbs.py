"""Deciding what is done under a lease: ack, nack, release, reject, extend, heartbeat, and its end.

Written once for everything that can be leased (leasable.py). What a failure leads to, a retry after a
delay or death after the last attempt, is decided by the topic's settings.

The acks of a step are decided together. A hundred consumers that ack a few messages each are a hundred
small commands, and each would cost an event and a frame of its own, more than its rows are worth. As
long as all of them come out ok, which nearly always is so, they are one event. If a single row would
not be, each command is decided by itself, as if nothing had been tried.

Credits don't change messages and are looked at when the step ends, so acks on both sides of a
credit are still side by side. Any other command, and a credit that takes a consumer's name (its
leases get new tokens), keeps what came before it from what comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns import codes
from fasti.core.columns.reductions import rows_where, some
from fasti.core.commands import Ack, Extend, Heartbeat, Lease, Nack, Reject, Release, ReleaseLeases
from fasti.core.delivery.leasable import LeasedRows
from fasti.core.delivery.leases import SILENT
from fasti.core.delivery.retry import retry_delays
from fasti.core.delivery.silence import doubt, holders_of
from fasti.core.replies import Done, Reply, blank
from fasti.core.state import Topic
from fasti.core.work import Work, column
from fasti.errors import FastiError, InvalidArgument
from fasti.model import DUE_MAX_US, PARTITIONS_MAX, SEQUENCE_BITS

Int64s = NDArray[np.int64]

# The reason of an attempt whose lease ran out.
LEASE_EXPIRED = "the lease expired"
_EXPIRED_PER_STEP = 5_000
RELEASED_PER_CALL = 5_000


def ack(work: Work, command: Ack) -> Reply:
    """Done."""
    started = column(command.started_us, len(command.ids), "started")
    return _under_lease(work, command, lambda _, leased: leased.ack(work, started[leased.rows]))


def extend(work: Work, command: Extend) -> Reply:
    """Longer leases."""
    limits = work.limits
    if not limits.lease_us_min <= command.length_us <= limits.lease_us_max:
        raise InvalidArgument(
            f"a lease must last {limits.lease_us_min} to {limits.lease_us_max} microseconds",
            field="length",
            limit=limits.lease_us_max,
        )
    return _under_lease(work, command, lambda _, leased: leased.extend(work, command.length_us))


def release(work: Work, command: Release) -> Reply:
    """Given back to any time, the attempt not counted."""
    count = len(command.ids)
    due = work.moments(command.when, count)
    started = column(command.started_us, count, "started")

    def decide(_: Topic, leased: LeasedRows) -> None:
        leased = leased.without_lapsed(work, count)
        if len(leased):
            leased.release(work, due[leased.rows], started[leased.rows])

    return _under_lease(work, command, decide)


def nack(work: Work, command: Nack) -> Reply:
    """Failed: again after the retry delay or when it says, or dead."""
    count = len(command.ids)
    started = column(command.started_us, count, "started")
    given = None if command.when is None else work.moments(command.when, count)
    _check_reason(work, command.reason)

    def decide(topic: Topic, leased: LeasedRows) -> None:
        leased = leased.without_lapsed(work, count)
        attempts = leased.attempts()
        spent = _spent(topic, attempts)
        if some(spent):
            last = leased.only(spent, count)
            last.die(work, command.reason, started[last.rows], exhausted=True)
            leased, attempts = leased.only(~spent, count), attempts[~spent]
        if len(leased):
            if given is None:
                delays = retry_delays(topic.settings.retry, leased.ids(), attempts)
                due = np.minimum(work.now_us + delays, DUE_MAX_US)
            else:
                due = given[leased.rows]
            leased.nack(work, command.reason, due, started[leased.rows])

    return _under_lease(work, command, decide)


def reject(work: Work, command: Reject) -> Reply:
    """Failed for good."""
    started = column(command.started_us, len(command.ids), "started")
    _check_reason(work, command.reason)

    def decide(_: Topic, leased: LeasedRows) -> None:
        leased.die(work, command.reason, started[leased.rows], exhausted=False)

    return _under_lease(work, command, decide)


def heartbeat(work: Work, command: Heartbeat) -> Done:
    """Renews a consumer's leases, by one event."""
    topic = work.topic(command.topic)
    place = topic.kind.leasable(topic, command.group)
    held = len(place.held(work, command.consumer))
    if held:
        place.renew(work, command.consumer)
    return Done(held)


def check_release(command: ReleaseLeases) -> None:
    """It names a consumer or messages. Raises `invalid_argument`."""
    if (command.ids is None) == (not command.consumer):
        raise InvalidArgument("name a consumer, or messages by id", field="consumer")


def release_leases(work: Work, command: ReleaseLeases) -> Reply:
    """Gives leased messages back without their token, to the due time that they had.

    It is for operators: those of a consumer, some thousand a call, or named ones. The attempt doesn't
    count, and the old token is stale from then on, as after every release.
    """
    check_release(command)
    topic = work.topic(command.topic)
    place = topic.kind.leasable(topic, command.group)
    ids = command.ids
    if ids is None:
        leases = work.state.memory.leases
        held = place.held(work, command.consumer)[:RELEASED_PER_CALL]
        numbers = leases.partition[held].astype(np.int64) & (PARTITIONS_MAX - 1)
        ids = leases.sequence[held] | numbers << SEQUENCE_BITS
    reply = blank(len(ids))
    for leased in place.locate(ids, reply):
        status = leased.judge_held(work)
        reply.status[leased.rows] = status
        leased.explain(work, reply)
        free = leased.only(rows_where(status == codes.OK), len(ids))
        free = free.without_lapsed(work, len(ids))
        if len(free):
            never = np.zeros(len(free), dtype=np.int64)
            free.release(work, free.due_again(work), never)
            free.note_versions(reply)
    return reply


def expire(work: Work) -> bool:
    """Leases that ran out: ready again, or dead after the last attempt. True if more remain."""
    leases = work.state.memory.leases
    held = leases.expired(work.tick, _EXPIRED_PER_STEP)
    if not len(held):
        return False
    holders = holders_of(work, held)
    places = np.stack([leases.topic[held], leases.partition[held]])
    for number, place in np.unique(places, axis=1).T.tolist():
        mine = held[(places[0] == number) & (places[1] == place)]
        mine = mine[np.argsort(leases.sequence[mine])]
        topic = work.state.topics[number]
        _expire_in(work, topic, topic.kind.leased_at(topic, place, leases.sequence[mine]), mine)
    for holder in holders:
        doubt(work, holder)
    return len(held) == _EXPIRED_PER_STEP


def _expire_in(work: Work, topic: Topic, leased: LeasedRows, held: Int64s) -> None:
    """Leases of one partition ran out, in the order of their messages."""
    leases, count = work.state.memory.leases, len(held)
    leased = leased.without_lapsed(work, count)
    silent = leases.sign[held[leased.rows]] == SILENT
    if some(silent):
        unopened = leased.only(silent, count)
        unopened.give_back_unopened(work, leases.reason[held[unopened.rows]])
        topic.unopened += len(unopened)
        leased = leased.only(~silent, count)
    if not len(leased):
        return
    spent = _spent(topic, leased.attempts())
    if some(spent):
        last = leased.only(spent, count)
        never = np.zeros(len(last), dtype=np.int64)
        last.die(work, LEASE_EXPIRED, never, exhausted=True)
        leased = leased.only(~spent, count)
    if len(leased):
        leased.expire(work)


def _under_lease(
    work: Work,
    command: Extend | Ack | Release | Nack | Reject,
    decide: Callable[[Topic, LeasedRows], None],
) -> Reply:
    """Judges the rows of a command; `decide` gets those, by partition, that may be used."""
    topic = work.topic(command.topic)
    place = topic.kind.leasable(topic, command.group)
    count = len(command.ids)
    tokens = column(command.tokens, count, "token")
    reply = blank(count)
    for leased in place.locate(command.ids, reply):
        status = leased.judge(work, tokens[leased.rows])
        if some(status):
            reply.status[leased.rows] = status
            leased.explain(work, reply)
            leased = leased.only(rows_where(status == codes.OK), count)
        if len(leased):
            decide(topic, leased)
            leased.note_versions(reply)
    return reply


VERBS: dict[type, Callable[[Work, Any], Any]] = {
    Ack: ack,
    Nack: nack,
    Release: release,
    Reject: reject,
    Extend: extend,
    Heartbeat: heartbeat,
    ReleaseLeases: release_leases,
}


def _spent(topic: Topic, attempts: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """Which had their last attempt. `max_attempts` of 0 means that there is no last one."""
    limit = topic.settings.max_attempts
    return attempts >= limit if limit else np.zeros(len(attempts), dtype=np.bool_)


def _check_reason(work: Work, reason: str) -> None:
    limit = work.limits.reason_bytes_max
    if len(reason.encode()) > limit:
        raise InvalidArgument(f"a reason has at most {limit} bytes", field="reason", limit=limit)


def find_acks(inputs: Sequence[Any], is_credit: Callable[[Lease], bool]) -> dict[int, list[int]]:
    """Acks that can be decided together: the places of each such set, by the first of them."""
    sets: dict[int, list[int]] = {}
    first: dict[tuple[str, str], int] = {}
    for place, command in enumerate(inputs):
        if type(command) is Ack:
            whose = command.topic, command.group
            sets.setdefault(first.setdefault(whose, place), []).append(place)
        elif type(command) is not Lease or not is_credit(command):
            first.clear()
    return {place: places for place, places in sets.items() if len(places) > 1}


def ack_together(work: Work, acks: Sequence[Ack]) -> list[Reply] | None:
    """The replies of several acks on one topic, or in one group of a log.

    None, and nothing done, if a row is not ok, or if there is none: no event is about nothing.
    """
    if not any(len(ack.ids) for ack in acks):
        return None
    try:
        topic = work.topic(acks[0].topic)
        tokens = np.concatenate([column(ack.tokens, len(ack.ids), "token") for ack in acks])
        ids = np.concatenate([ack.ids for ack in acks])
        started = np.concatenate([column(ack.started_us, len(ack.ids), "started") for ack in acks])
        place = topic.kind.leasable(topic, acks[0].group)
    except FastiError:
        return None
    reply = blank(len(ids))
    pieces = list(place.locate(ids, reply))
    for piece in pieces:
        if some(piece.judge(work, tokens[piece.rows])):
            return None
    if some(reply.status):
        return None
    for piece in pieces:
        ordered = piece.in_order(len(ids))
        ordered.ack(work, started[ordered.rows])
        ordered.note_versions(reply)
    return _split(reply, acks)


def _split(reply: Reply, acks: Sequence[Ack]) -> list[Reply]:
    replies, begin = [], 0
    for ack in acks:
        end = begin + len(ack.ids)
        rows = slice(begin, end)
        replies.append(Reply(reply.status[rows], reply.ids[rows], reply.versions[rows]))
        begin = end
    return replies
