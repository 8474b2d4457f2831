"""Deciding what is done under a lease: ack, nack, release, reject, extend, heartbeat, and its end.

Written once for everything that can be leased (leasable.py). What a failure leads to, a retry after a
delay or death after the last attempt, is decided by the topic's settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns import codes
from fasti.core.columns.reductions import rows_where, some
from fasti.core.commands import Ack, Extend, Heartbeat, Nack, Reject, Release, ReleaseLeases
from fasti.core.delivery.leasable import LeasedRows
from fasti.core.delivery.leases import SILENT
from fasti.core.delivery.retry import retry_delays
from fasti.core.delivery.silence import doubt, holders_of
from fasti.core.replies import Done, Reply, blank
from fasti.core.state import Topic
from fasti.core.work import Work, column
from fasti.errors import InvalidArgument
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
