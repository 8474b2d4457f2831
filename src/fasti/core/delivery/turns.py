"""The lines in which sessions wait, and whose turn it is.

There is a line for each topic, or for each group of a log. Sessions are served first come, first
served. A step serves a bounded number of messages, shared evenly between the lines whose turn it is;
what remains goes on in the next step, and the line that was served comes last then. What a turn hands
out, and when the next one is, is said by those who extend this (timeline/turns.py, log/turns.py).

All of this is session state: never journaled, gone with the process. The sequencer's thread only.
"""

from __future__ import annotations

from fasti.core.agenda import FOREVER, Agenda
from fasti.core.commands import Heard, Lease, Unheard
from fasti.core.delivery import silence
from fasti.core.delivery.leasing import join
from fasti.core.delivery.lines import Line
from fasti.core.replies import Done
from fasti.core.state import ShardState, Topic
from fasti.core.work import Work

# A topic's number and a group's; 0 where there are no groups.
Key = tuple[int, int]

SERVED_PER_STEP = 10_000
# However many lines have their turn, one of them takes so many before the next.
_SHARE_MIN = 500


class Turns:
    """The lines of a shard's topics, or of the groups of its logs."""

    # A turn takes as long as so many messages do, however few it hands out.
    turn_cost = 0

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._lines: dict[Key, Line] = {}
        self._lines_of: dict[int, set[Key]] = {}
        # Lines whose turn has come, in order.
        self._due: dict[Key, None] = {}
        # When lines have their next turn, of those in which somebody waits.
        self._agenda: Agenda[Key] = Agenda()

    # What a kind does by itself

    def _find(self, topic: Topic, group: str) -> Key | None:
        """The key of a topic, or of a group that there is."""
        raise NotImplementedError

    def _admit(self, work: Work, topic: Topic, command: Lease) -> Key:
        """The line that a session is about to wait in. Raises if it can't."""
        raise NotImplementedError

    def _open(self, work: Work, topic: Topic, command: Lease, key: Key) -> None:
        """The session waits: what a line needs besides is made, if it is new."""

    def _resume(self, work: Work, topic: Topic, command: Lease) -> None:
        """A consumer that comes back gets its live leases again, under a new token."""
        raise NotImplementedError

    def _serve_at_once(self, work: Work, topic: Topic, key: Key, session: int) -> None:
        """Hands the session all that it can have now."""
        raise NotImplementedError

    def _turn(self, work: Work, key: Key, budget: int) -> tuple[int, bool]:
        """Serves a line: how many messages went out, and whether more could go at once."""
        raise NotImplementedError

    # Sessions

    def lease(self, work: Work, command: Lease) -> Done:
        """A session waits for more messages."""
        topic = work.topic(command.topic)
        key = self._admit(work, topic, command)
        line = self._lines[key] if key in self._lines else Line()
        waiting = line.find(command.session)
        before = waiting.credit if waiting is not None else 0
        nobody_waited = not line
        comes_new = join(work, topic, command, line)
        self._open(work, topic, command, key)
        self._lines[key] = line
        self._lines_of.setdefault(command.session, set()).add(key)
        if line.is_doubted(command.session):
            held = topic.kind.count_held(topic, command.consumer, key[1])
            line.count_held(command.session, held)
        if comes_new:
            self._resume(work, topic, command)
        if not command.wait:
            if not topic.paused:
                self._serve_at_once(work, topic, key, command.session)
            # What it waited for before, it still waits for.
            line.limit(command.session, before)
        elif nobody_waited:
            self._due[key] = None
        return Done()

    def is_credit(self, topic: Topic, command: Lease) -> bool:
        """Whether the command does no more than add to its session's credit."""
        key = self._find(topic, command.group) if command.wait else None
        line = self._lines.get(key) if key is not None else None
        return line is not None and line.session_of(command.consumer) == command.session

    def detach(self, session: int) -> set[Key]:
        """The session is gone from all lines; returns those that it was in."""
        keys = self._lines_of.pop(session, set())
        for key in keys:
            if key in self._lines:
                self._lines[key].leave(session)
        return keys

    def withdraw(self, session: int) -> None:
        """The session waits for nothing, in any line; its names stay its own."""
        for key in self._lines_of.get(session, ()):
            if key in self._lines:
                self._lines[key].limit(session, 0)

    def unheard(self, work: Work, command: Unheard) -> Done:
        """A session's peer is silent."""
        topic = work.topic(command.topic)
        key = self._find(topic, command.group)
        if key is None:
            return Done(0)
        held = topic.kind.leasable(topic, command.group).held(work, command.consumer)
        return silence.unheard(work, command, self._lines.get(key), held)

    def heard(self, work: Work, command: Heard) -> Done:
        """A session's peer is there."""
        topic = work.topic(command.topic)
        key = self._find(topic, command.group)
        if key is not None:
            held = topic.kind.leasable(topic, command.group).held(work, command.consumer)
            if silence.heard(work, command, self._lines.get(key), held):
                self._due[key] = None
        return Done()

    def _drop(self, key: Key) -> None:
        """Nobody waits there any more: the topic or the group is gone."""
        self._lines.pop(key, None)
        self._due.pop(key, None)
        self._agenda.drop(key)

    # Serving

    def _serve_due(self, work: Work) -> tuple[bool, int]:
        """Serves lines whose turn it is: whether there is more, and what is left of the budget."""
        more, budget, left = False, SERVED_PER_STEP, len(self._due)
        for key in list(self._due):
            if budget <= 0:
                return True, 0
            share = min(budget, max(_SHARE_MIN, -(-budget // left)))
            left -= 1
            handed, busy = self._turn(work, key, share)
            budget -= max(handed, self.turn_cost)
            more |= busy
        return more, budget

    def next_us(self) -> int:
        """When the next turn is, if nothing happens before."""
        # Without room for a lease there is nothing to wake up for: one must end first.
        if not self._state.memory.leases.free:
            return FOREVER
        return 0 if self._due else self._agenda.next_us()
