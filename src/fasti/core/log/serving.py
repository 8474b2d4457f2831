"""What a group's partition gives to a session: rows that go out again, and fresh ones.

When there are both, each gets half, and the odd row goes by turns. Each is one event under one
token, so that fresh rows are journaled as a range.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.core.delivery.turns import Waiting
from fasti.core.log import group_events as ge
from fasti.core.log.group import Group, GroupPartition
from fasti.core.log.order import KEYS_AHEAD, LoadKeys, Order
from fasti.core.log.partition import LogPartition
from fasti.core.log.window import WINDOW_ROWS
from fasti.core.replies import Deliver
from fasti.core.state import Topic
from fasti.core.work import Work
from fasti.model import SEQUENCE_BITS

Int64s = NDArray[np.int64]


def lease_from(
    work: Work, topic: Topic, group: Group, number: int, waiting: Waiting, wanted: int
) -> int:
    """Leases up to `wanted` rows of a partition to who waits: how many."""
    place, log = group.partitions[number], topic.body.partitions[number]
    fresh = _fresh_left(work, topic, place, log)
    taken = 0
    if has_again(place, work.now_us):
        offsets = place.take_again(_again_share(place, wanted, fresh), work.now_us)
        taken = _lease(work, topic, group, number, waiting, offsets)
    count = min(wanted - taken, fresh)
    if count:
        if place.order is None:
            offsets = np.arange(place.next, place.next + count, dtype=np.int64)
        else:
            offsets = place.order.take(count, _end(place, log))
            _ask_for_keys(work, topic, place, place.order, log)
        taken += _lease(work, topic, group, number, waiting, offsets)
    if taken < wanted and has_again(place, work.now_us):
        # Fresh rows were fewer than it seemed: their keys are busy.
        offsets = place.take_again(wanted - taken, work.now_us)
        taken += _lease(work, topic, group, number, waiting, offsets)
    return taken


def has_more(place: GroupPartition, log: LogPartition, now_us: int) -> bool:
    """Whether another look may find more, although the last one found too little."""
    order = place.order
    if (
        order is not None
        and order.ready
        and order.scanned < min(_end(place, log), order.known_until)
    ):
        return True
    return has_again(place, now_us)


def has_again(place: GroupPartition, now_us: int) -> bool:
    """Whether rows may go out again now."""
    due_us = place.again.first_due()
    return due_us is not None and due_us <= now_us


def _again_share(place: GroupPartition, wanted: int, fresh: int) -> int:
    if not fresh:
        return wanted
    half = wanted // 2
    if wanted % 2:
        half += place.odd_turn
        place.odd_turn = not place.odd_turn
    return max(half, wanted - fresh)


def _end(place: GroupPartition, log: LogPartition) -> int:
    """Where fresh rows end: with the log, or with the window."""
    return min(log.next_offset, place.committed + WINDOW_ROWS)


def _fresh_left(work: Work, topic: Topic, place: GroupPartition, log: LogPartition) -> int:
    if place.order is None:
        return _end(place, log) - place.next
    return _ordered_left(work, topic, place, place.order, log)


def _ordered_left(
    work: Work, topic: Topic, place: GroupPartition, order: Order, log: LogPartition
) -> int:
    """How many fresh rows could go, if none of them is blocked; asks for keys where they end."""
    if not order.ready and order.known_until >= place.next:
        order.rebuild(*place.open_rows(), place.next)
    _ask_for_keys(work, topic, place, order, log)
    if not order.ready:
        return 0
    return order.freed + max(0, min(_end(place, log), order.known_until) - order.scanned)


def _ask_for_keys(
    work: Work, topic: Topic, place: GroupPartition, order: Order, log: LogPartition
) -> None:
    first = order.wants_from(place.committed, log.next_offset)
    if first is not None:
        order.asked_from = first
        pieces = log.locate(first, KEYS_AHEAD)
        work.effects.append(LoadKeys(topic.number, log.number, first, pieces))


def _lease(
    work: Work, topic: Topic, group: Group, number: int, waiting: Waiting, offsets: Int64s
) -> int:
    if len(offsets):
        token = work.state.memory.leases.next_token
        work.emit(
            ge.GroupLeased(
                work.now_us,
                topic.number,
                number,
                group.number,
                token,
                waiting.consumer,
                topic.settings.lease_us,
                offsets,
            )
        )
        deliver(work, topic, group, number, waiting.session, token, offsets)
    return len(offsets)


def deliver(
    work: Work, topic: Topic, group: Group, number: int, session: int, token: int, offsets: Int64s
) -> None:
    """Leased rows leave, once their lease is durable."""
    place, log = group.partitions[number], topic.body.partitions[number]
    work.effects.append(
        Deliver(
            session,
            topic.name,
            token,
            offsets + 1 | number << SEQUENCE_BITS,
            log.times_of(offsets),
            np.ones(len(offsets), dtype=np.uint32),
            place.attempts[place.slots(offsets)].copy(),
            log.locations_of(offsets),
            work.now_us,
            group=group.name,
        )
    )
