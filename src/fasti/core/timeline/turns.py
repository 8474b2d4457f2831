"""When the messages of timelines and priority topics are handed out.

A topic has a turn when something may go out: its first message comes near, something became
scheduled that is near already, or somebody came who waits. A turn leases everything that is due
within the topic's lookahead L. The next one is planned for two thirds of L before the first
message that is left, not for L: so messages leave in batches of about a third of L worth of time,
however they trickle in, and each still has two thirds of L for its sync and its way. Without a
lookahead a turn comes at the due time itself.

Between turns a topic costs nothing: moments are planned, and partitions tell what became scheduled
(`Memory.note_due`). Session state; the sequencer's thread only.
"""

from __future__ import annotations

from fasti.core.agenda import FOREVER
from fasti.core.commands import Lease
from fasti.core.delivery import leasing, turns
from fasti.core.delivery.lines import Line
from fasti.core.delivery.turns import Key, Turns
from fasti.core.state import Topic
from fasti.core.work import Work


def planned_ahead_us(lookahead_us: int) -> int:
    """How long before a message is due the turn is planned that hands it out."""
    return lookahead_us * 2 // 3


def _next_turn_us(topic: Topic) -> int:
    first_us = min((p.next_us() for p in topic.partitions.made()), default=FOREVER)
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
        leasing.resume(work, topic, command)

    def _serve_at_once(self, work: Work, topic: Topic, key: Key, session: int) -> None:
        line = self._lines[key]
        work.end_group()
        work.begin_group()
        more = True
        while more and line.find(session):
            _, more = leasing.serve(work, topic, line, turns.SERVED_PER_STEP)

    def line(self, topic: Topic) -> Line | None:
        """Who waits for the topic's messages, or has a consumer's name there."""
        return self._lines.get((topic.number, 0))

    def waits(self, topic: Topic) -> bool:
        """Whether somebody waits for the topic's messages."""
        line = self.line(topic)
        return line is not None and line.sessions_waiting > 0

    def forget(self, topic: Topic) -> None:
        """The topic is deleted: nobody waits for it."""
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
            # Whoever waits goes on waiting: the turn comes when the topic is resumed.
            del self._due[key]
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
