"""Whose turn it is: the lines of all topics, and when each of them is served next.

A topic has a turn when something may go out: its first message comes near, something became
scheduled that is near already, or somebody came who waits. A turn leases everything that is due
within the topic's lookahead L. The next one is planned for two thirds of L before the first
message that is left, not for L: so messages leave in batches of about a third of L worth of time,
however they trickle in, and each still has two thirds of L for its sync and its way. Without a
lookahead a turn comes at the due time itself.

Between turns a topic costs nothing: planned moments stand in a heap, and partitions tell what
became scheduled (`Memory.note_due`). A step serves a bounded number of messages, shared evenly
between the topics whose turn it is; what remains goes on in the next step, and who was served
comes last then.

All of this is session state: never journaled, gone with the process. The sequencer's thread only.
"""

from __future__ import annotations

from fasti.core.agenda import FOREVER, Agenda
from fasti.core.commands import Heard, Lease, Unheard
from fasti.core.delivery import leasing, silence
from fasti.core.delivery.lines import Line
from fasti.core.replies import Done
from fasti.core.state import ShardState, Topic
from fasti.core.work import Work

SERVED_PER_STEP = 10_000
# However many topics have their turn, one of them takes so many before the next.
_SHARE_MIN = 500


def planned_ahead_us(lookahead_us: int) -> int:
    """How long before a message is due the turn is planned that hands it out."""
    return lookahead_us * 2 // 3


def _next_turn_us(topic: Topic) -> int:
    first_us = min((p.next_us() for p in topic.partitions.made()), default=FOREVER)
    if first_us == FOREVER:
        return FOREVER
    return first_us - planned_ahead_us(topic.settings.lookahead_us)


class Turns:
    """The lines of a shard's topics."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._lines: dict[int, Line] = {}
        self._topics_of: dict[int, set[int]] = {}
        # Topics whose turn has come, in order.
        self._due: dict[int, None] = {}
        # When topics have their next turn, of those for which somebody waits.
        self._agenda: Agenda[int] = Agenda()

    def lease(self, work: Work, command: Lease) -> Done:
        """A session waits for more messages."""
        topic = work.topic(command.topic)
        line = self._lines.setdefault(topic.number, Line())
        waiting = line.find(command.session)
        before = waiting.credit if waiting is not None else 0
        nobody_waited = not line
        done = leasing.lease(work, command, line)
        self._topics_of.setdefault(command.session, set()).add(topic.number)
        if line.is_doubted(command.session):
            line.count_held(command.session, topic.kind.count_held(topic, command.consumer, 0))
        if not command.wait:
            self._serve_at_once(work, topic, line, command.session)
            # What it waited for before, it still waits for.
            line.limit(command.session, before)
        elif nobody_waited:
            self._due[topic.number] = None
        return done

    def is_credit(self, command: Lease) -> bool:
        """Whether the command does no more than add to its session's credit."""
        topic = self._state.by_name.get(command.topic)
        line = self._lines.get(topic.number) if topic is not None else None
        if line is None or not command.wait:
            return False
        return line.session_of(command.consumer) == command.session

    def _serve_at_once(self, work: Work, topic: Topic, line: Line, session: int) -> None:
        if topic.paused:
            return
        work.end_group()
        work.begin_group()
        more = True
        while more and line.find(session):
            _, more = leasing.serve(work, topic, line, SERVED_PER_STEP)

    def detach(self, session: int) -> set[int]:
        """The session is gone from all lines; returns the topics whose lines it was in."""
        numbers = self._topics_of.pop(session, set())
        for number in numbers:
            line = self._lines.get(number)
            if line is not None:
                line.leave(session)
        return numbers

    def withdraw(self, session: int) -> None:
        """The session waits for nothing, in any line; its names stay its own."""
        for number in self._topics_of.get(session, ()):
            line = self._lines.get(number)
            if line is not None:
                line.limit(session, 0)

    def unheard(self, work: Work, command: Unheard) -> Done:
        """A session's peer is silent."""
        topic = work.topic(command.topic)
        held = silence.held_on(work, topic, command.consumer)
        return silence.unheard(work, command, self._lines.get(topic.number), held)

    def heard(self, work: Work, command: Heard) -> Done:
        """A session's peer is there."""
        topic = work.topic(command.topic)
        held = silence.held_on(work, topic, command.consumer)
        if silence.heard(work, command, self._lines.get(topic.number), held):
            self._due[topic.number] = None
        return Done()

    def line(self, topic: Topic) -> Line | None:
        """Who waits for the topic's messages, or has a consumer's name there."""
        return self._lines.get(topic.number)

    def waits(self, topic: Topic) -> bool:
        """Whether somebody waits for the topic's messages."""
        line = self._lines.get(topic.number)
        return line is not None and line.sessions_waiting > 0

    def forget(self, topic: Topic) -> None:
        """The topic is deleted: nobody waits for it."""
        self._lines.pop(topic.number, None)
        self._due.pop(topic.number, None)
        self._agenda.drop(topic.number)

    def serve(self, work: Work) -> bool:
        """Hands out what is to go now; True if there is more to do at once."""
        self._look(work)
        if not self._due or not work.state.memory.leases.free:
            return False
        more, budget = False, SERVED_PER_STEP
        left = len(self._due)
        for number in list(self._due):
            if budget <= 0:
                return True
            share = min(budget, max(_SHARE_MIN, -(-budget // left)))
            left -= 1
            handed, busy = self._turn(work, number, share)
            budget -= handed
            more |= busy
        # A turn that ended for want of leases may have left some after all: it goes on at once.
        left = bool(self._due) and work.state.memory.leases.free > 0
        return more or (left and budget < SERVED_PER_STEP)

    def _turn(self, work: Work, number: int, budget: int) -> tuple[int, bool]:
        line, topic = self._lines[number], self._state.topics[number]
        handed, busy = 0, False
        if topic.paused:
            # Whoever waits goes on waiting: the turn comes when the topic is resumed.
            del self._due[number]
            return handed, busy
        if line:
            work.serving = topic.name
            work.begin_group()
            handed, busy = leasing.serve(work, topic, line, budget)
            work.end_group()
            work.serving = ""
        wake_us = _next_turn_us(topic) if line else FOREVER
        if busy or wake_us <= work.now_us:
            if handed:
                # Whoever got something comes last next time, so that no topic starves another.
                self._due[number] = self._due.pop(number)
        else:
            del self._due[number]
            self._agenda.plan(number, wake_us)
        return handed, busy

    def next_us(self) -> int:
        """When the next turn is, if nothing happens before."""
        # Without room for a lease there is nothing to wake up for: one must end first.
        if not self._state.memory.leases.free:
            return FOREVER
        if self._due:
            return 0
        return self._agenda.next_us()

    def _look(self, work: Work) -> None:
        """Finds the topics whose turn has come."""
        now_us, news = work.now_us, self._state.memory.news
        if news:
            for number, due_us in news.items():
                line = self._lines.get(number)
                if line:
                    lookahead_us = self._state.topics[number].settings.lookahead_us
                    if due_us <= now_us + lookahead_us:
                        self._due[number] = None
                    else:
                        self._agenda.plan_by(number, due_us - planned_ahead_us(lookahead_us))
            news.clear()
        if self._agenda.first_us <= now_us:
            while (turn := self._agenda.pop(now_us)) is not None:
                self._due[turn] = None
