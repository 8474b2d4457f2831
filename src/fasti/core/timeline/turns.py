"""When the messages of timelines and priority topics are handed out, and to which session.

A topic has a turn when something may go out: its first message comes near, something became
scheduled that is near already, or a session came that waits. A turn leases everything that is due
within the topic's lookahead L. The next one is planned for two thirds of L before the first
message that is left, not for L: so messages leave in batches of about a third of L worth of time,
however they trickle in, and every one still has two thirds of L for its sync and its way. Without a
lookahead a turn comes at the due time itself.

Sessions wait in a line per topic (delivery/turns.py). Messages leave in (due, sequence) order of their
partition. A lease is journaled before the message leaves, so there is never a second live one.

Between turns a topic costs nothing: moments are planned, and partitions tell what became scheduled
(`Memory.note_due`). Session state; the sequencer's thread only.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.agenda import FOREVER
from fasti.core.columns.reductions import some
from fasti.core.commands import Lease
from fasti.core.delivery import turns
from fasti.core.delivery.turns import Key, Line, Turns, Waiting
from fasti.core.replies import Deliver
from fasti.core.state import Topic
from fasti.core.timeline.partition import Partition
from fasti.core.work import Work
from fasti.model import SEQUENCE_BITS


def planned_ahead_us(lookahead_us: int) -> int:
    """How long before a message is due the turn is planned that hands it out."""
    return lookahead_us * 2 // 3


def _next_turn_us(topic: Topic) -> int:
    first_us = min((p.times.next_us() for p in topic.partitions.made()), default=FOREVER)
    if first_us == FOREVER:
        return FOREVER
    return first_us - planned_ahead_us(topic.settings.lookahead_us)


class TimelineTurns(Turns):
    """The lines of a shard's timelines and priority topics."""

    def _find(self, topic: Topic, group: str) -> Key:
        return topic.number, 0

    def _admit(self, work: Work, topic: Topic, command: Lease) -> Key:
        return topic.number, 0

    def _resume(self, work: Work, topic: Topic, command: Lease) -> None:
        resume(work, topic, command)

    def _serve_at_once(self, work: Work, topic: Topic, key: Key, session: int) -> None:
        line = self._lines[key]
        work.end_group()
        work.begin_group()
        more = True
        while more and line.find(session):
            _, more = serve_line(work, topic, line, turns.SERVED_PER_STEP)

    def line(self, topic: Topic) -> Line | None:
        """Who waits for the topic's messages, or has a consumer's name there."""
        return self._lines.get((topic.number, 0))

    def waits(self, topic: Topic) -> bool:
        """Whether a session waits for the topic's messages."""
        line = self.line(topic)
        return line is not None and line.sessions_waiting > 0

    def forget(self, topic: Topic) -> None:
        """The topic is deleted: no session waits for it."""
        self._drop((topic.number, 0))

    def serve(self, work: Work) -> bool:
        """Hands out what is to go now; True if there is more to do at once."""
        self._look(work)
        leases = work.state.memory.leases
        if not self._due or not leases.free:
            return False
        more, budget = self._serve_due(work)
        # A turn that ended for want of leases may have left some after all: it goes on at once.
        left = bool(self._due) and leases.free > 0
        return more or (left and budget < turns.SERVED_PER_STEP)

    def _turn(self, work: Work, key: Key, budget: int) -> tuple[int, bool]:
        line, topic = self._lines[key], self._state.topics[key[0]]
        handed, busy = 0, False
        if topic.paused:
            # Sessions go on waiting: the turn comes when the topic is resumed.
            del self._due[key]
            return handed, busy
        if line:
            work.serving = topic.name
            work.begin_group()
            handed, busy = serve_line(work, topic, line, budget)
            work.end_group()
            work.serving = ""
        wake_us = _next_turn_us(topic) if line else FOREVER
        if busy or wake_us <= work.now_us:
            if handed:
                # A topic that was served comes last next time, so that no topic starves another.
                self._due[key] = self._due.pop(key)
        else:
            del self._due[key]
            self._agenda.plan(key, wake_us)
        return handed, busy

    def _look(self, work: Work) -> None:
        """Finds the topics whose turn has come."""
        now_us, news = work.now_us, self._state.memory.news
        if news:
            for number, due_us in news.items():
                key = (number, 0)
                if self._lines.get(key):
                    lookahead_us = self._state.topics[number].settings.lookahead_us
                    if due_us <= now_us + lookahead_us:
                        self._due[key] = None
                    else:
                        self._agenda.plan_by(key, due_us - planned_ahead_us(lookahead_us))
            news.clear()
        if self._agenda.first_us <= now_us:
            while (turn := self._agenda.pop(now_us)) is not None:
                self._due[turn] = None


Int64s = NDArray[np.int64]


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
            partition.times.now_us = work.now_us
            mine = partition.times.in_order(mine)
            token = memory.leases.next_token
            work.emit(ev.Resumed(work.now_us, topic.number, partition.number, token, mine))
            slots = partition.ledger.slots(mine)
            due = partition.arena.due.take(slots, mode="clip")
            _deliver(work, topic, partition, command.session, token, mine, slots, due)


def serve_line(work: Work, topic: Topic, line: Line, budget: int) -> tuple[int, bool]:
    """Hands due messages to the sessions of a line: (how many, whether more could be done)."""
    limit_us = work.now_us + topic.settings.lookahead_us
    busy = False
    for partition in topic.partitions.made():
        partition.times.now_us = work.now_us
        busy |= partition.times.advance(limit_us)
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
    near = sum(partition.times.near for partition in topic.partitions.made())
    even = -(-near // max(1, len(line)))
    return min(turns.TURN_ROWS, max(turns.TURN_ROWS_MIN, even, line.share))


def _heads(topic: Topic, limit_us: int) -> list[tuple[int, int]]:
    """A heap of (first due time, partition) of the partitions that have something to go."""
    heads = [
        (head_us, partition.number)
        for partition in topic.partitions.made()
        if (head_us := partition.times.head_us(limit_us)) is not None
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
    every one.
    """
    share = max(turns.TURN_ROWS_MIN, -(-count // max(1, len(heads))))
    taken = 0
    while heads and taken < count:
        partition = topic.partitions[heads[0][1]]
        wanted = min(share, count - taken)
        got = _lease_from(work, topic, partition, waiting, wanted, limit_us)
        taken += got
        head_us = partition.times.head_us(limit_us) if got == wanted else None
        if head_us is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (head_us, partition.number))
    return taken


def _lease_from(
    work: Work, topic: Topic, partition: Partition, waiting: Waiting, count: int, limit_us: int
) -> int:
    sequences, slots, due = partition.times.hand_out(count, limit_us)
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
    expiries = partition.times.expiries
    work.effects.append(
        Deliver(
            session,
            topic.name,
            token,
            sequences | partition.number << SEQUENCE_BITS if partition.number else sequences,
            due,
            arena.version.take(slots, mode="clip"),
            arena.attempts.take(slots, mode="clip"),
            arena.location.take(slots, mode="clip"),
            work.now_us,
            arena.priority.take(slots, mode="clip") if ranked else None,
            _last_reasons(work, partition, slots),
            expiries.moments_of(slots) if expiries is not None else None,
        )
    )


def _last_reasons(work: Work, partition: Partition, slots: Int64s) -> NDArray[np.object_] | None:
    """Why messages that are leased now came back before; None if none did, which is usual."""
    names, leases = work.state.memory.reasons, work.state.memory.leases
    if not names:
        return None
    numbers = leases.reason.take(partition.arena.lease.take(slots, mode="clip"))
    return names.look_up(numbers) if some(numbers) else None
