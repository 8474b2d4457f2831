"""Deciding leases: handing messages of timelines and priority topics out.

Consumers wait in a line per topic (lines.py), first come first served; one whose credit outlasts
its turn goes to the end of the line. Messages leave in (due, sequence) order of their partition. A
lease is journaled before the message leaves, so there is never a second live one.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.columns.reductions import some
from fasti.core.commands import Lease
from fasti.core.delivery.lines import Line, Waiting
from fasti.core.replies import ConsumerReplaced, Deliver
from fasti.core.state import Topic
from fasti.core.timeline.partition import Partition
from fasti.core.work import Work
from fasti.errors import Fenced, InvalidArgument, Overloaded
from fasti.model import SEQUENCE_BITS

Int64s = NDArray[np.int64]

# What a session gets at a time if it has the credit: at most, and if it is there at least.
TURN_ROWS = 5_000
TURN_ROWS_MIN = 1_000


def join(work: Work, topic: Topic, command: Lease, line: Line) -> bool:
    """The session waits in the line. True if the consumer's name is new to it."""
    if not command.consumer or len(command.consumer.encode()) > work.limits.name_bytes_max:
        raise InvalidArgument("a consumer needs a name", field="consumer")
    if command.count < 0:
        raise InvalidArgument("count must be at least 0", field="count", limit=0)
    waiting = line.find(command.session)
    if waiting is None and line.sessions_waiting >= work.limits.consumers_waiting_max:
        raise Overloaded("too many consumers are waiting")
    if waiting is not None and waiting.consumer != command.consumer:
        # Its credit is one: nobody could tell to which of the names a message should go.
        raise InvalidArgument(
            f"the session waits as {waiting.consumer!r} already", field="consumer"
        )
    if command.count + (waiting.credit if waiting is not None else 0) > work.limits.credit_max:
        limit = work.limits.credit_max
        raise InvalidArgument(
            f"a session asks for at most {limit} messages ahead", field="count", limit=limit
        )
    before = line.session_of(command.consumer)
    if before is not None and before > command.session:
        # Written before it could hear that a newer one has the name: it doesn't take it back.
        raise Fenced(f"another session took the name {command.consumer!r}")
    # From here on sessions have changed, which no undo note takes back.
    work.touched = True
    if before != command.session:
        if before is not None:
            line.leave(before)
            work.effects.append(ConsumerReplaced(before, topic.name, command.consumer))
        line.give_name(command.consumer, command.session)
    line.join(command.session, command.consumer, command.count)
    return before != command.session


def resume(work: Work, topic: Topic, command: Lease) -> None:
    """A consumer that comes back gets its live leases again, under a new token."""
    memory = work.state.memory
    number = memory.consumers.find(command.consumer)
    if number is None:
        return
    held = memory.leases.held_by(number, topic.number)
    for partition in topic.partitions.made():
        mine = np.sort(
            memory.leases.sequence[held[memory.leases.partition[held] == partition.number]]
        )
        if len(mine):
            partition.now_us = work.now_us
            mine = partition.in_order(mine)
            token = memory.leases.next_token
            work.emit(ev.Resumed(work.now_us, topic.number, partition.number, token, mine))
            slots = partition.ledger.slots(mine)
            due = partition.arena.due.take(slots, mode="clip")
            _deliver(work, topic, partition, command.session, token, mine, slots, due)


def serve(work: Work, topic: Topic, line: Line, budget: int) -> tuple[int, bool]:
    """Hands due messages to those who wait: (how many, whether more could be done)."""
    limit_us = work.now_us + topic.settings.lookahead_us
    busy = False
    for partition in topic.partitions.made():
        partition.now_us = work.now_us
        busy |= partition.advance(limit_us)
    heads = _heads(topic, limit_us)
    most = _turn_rows(topic, line)
    handed = line.share = 0
    while line and handed < budget:
        waiting = line.first()
        room = work.state.memory.leases.free
        count = min(line.can_take(waiting), most, budget, room)
        if handed + count > budget:
            break  # Not a part of its share: it comes first in the next step.
        taken = _take(work, topic, heads, waiting, count, limit_us)
        if not taken:
            return handed, busy
        handed += taken
        line.end_turn(taken)
    line.share = most
    return handed, busy or bool(line)


def _turn_rows(topic: Topic, line: Line) -> int:
    """How many messages a session gets at a time: an even share of what is there.

    It doesn't shrink while a burst goes out over several steps. Few messages are not divided: a
    delivery of its own costs more than they are worth.
    """
    near = sum(partition.near for partition in topic.partitions.made())
    even = -(-near // max(1, len(line)))
    return min(TURN_ROWS, max(TURN_ROWS_MIN, even, line.share))


def _heads(topic: Topic, limit_us: int) -> list[tuple[int, int]]:
    """A heap of (first due time, partition) of the partitions that have something to go."""
    heads = [
        (head_us, partition.number)
        for partition in topic.partitions.made()
        if (head_us := partition.head_us(limit_us)) is not None
    ]
    heapq.heapify(heads)
    return heads


def _take(
    work: Work,
    topic: Topic,
    heads: list[tuple[int, int]],
    waiting: Waiting,
    count: int,
    limit_us: int,
) -> int:
    """Leases up to `count`: from the partition that has the earliest, then from the next.

    Order is a partition's, not the topic's: to take turns by the message would make a lease of
    each.
    """
    share = max(TURN_ROWS_MIN, -(-count // max(1, len(heads))))
    taken = 0
    while heads and taken < count:
        partition = topic.partitions[heads[0][1]]
        wanted = min(share, count - taken)
        got = _lease_from(work, topic, partition, waiting, wanted, limit_us)
        taken += got
        head_us = partition.head_us(limit_us) if got == wanted else None
        if head_us is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (head_us, partition.number))
    return taken


def _lease_from(
    work: Work, topic: Topic, partition: Partition, waiting: Waiting, count: int, limit_us: int
) -> int:
    sequences, slots, due = partition.hand_out(count, limit_us)
    if not len(sequences):
        return 0
    token = work.state.memory.leases.next_token
    work.emit(
        ev.Leased(
            work.now_us,
            topic.number,
            partition.number,
            token,
            waiting.consumer,
            topic.settings.lease_us,
            sequences,
        ),
        slots,
    )
    _deliver(work, topic, partition, waiting.session, token, sequences, slots, due)
    return len(sequences)


def _deliver(
    work: Work,
    topic: Topic,
    partition: Partition,
    session: int,
    token: int,
    sequences: Int64s,
    slots: Int64s,
    due: Int64s,
) -> None:
    arena = partition.arena
    ranked = topic.kind.traits.has_priorities
    work.effects.append(
        Deliver(
            session,
            topic.name,
            token,
            sequences | partition.number << SEQUENCE_BITS,
            due,
            arena.version.take(slots, mode="clip"),
            arena.attempts.take(slots, mode="clip"),
            arena.location.take(slots, mode="clip"),
            work.now_us,
            arena.priority.take(slots, mode="clip") if ranked else None,
            _last_reasons(work, partition, slots),
            partition.expiry_of(slots),
        )
    )


def _last_reasons(work: Work, partition: Partition, slots: Int64s) -> NDArray[np.object_] | None:
    """Why messages that are leased now came back before; None if none did, which is usual."""
    names, leases = work.state.memory.reasons, work.state.memory.leases
    if not names:
        return None
    numbers = leases.reason.take(partition.arena.lease.take(slots, mode="clip"))
    return names.look_up(numbers) if some(numbers) else None
