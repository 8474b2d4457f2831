"""The lines in which sessions wait, and whose turn it is.

There is a line for each topic, or for each group of a log. Sessions are served first come, first
served. A step serves a bounded number of messages, shared evenly between the lines whose turn it is;
what remains goes on in the next step, and the line that was served comes last then. What a turn hands
out, and when the next one is, is said by those who extend this (timeline/turns.py, log/turns.py).

A session stands in a line once, with its credit, and goes to the end of it after each turn. Every
operation takes the same time whether ten wait or a hundred thousand. Sessions that let leases run out
are in *doubt*: they are served when no other session waits, and hold at most half of what they held,
then a quarter, down to one message at a time, until they finish a message. Sessions whose peer is
silent are *held back*: they get nothing until it is heard again.

All of this is session state: never journaled, gone with the process. The sequencer's thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from fasti.core.agenda import FOREVER, Agenda
from fasti.core.commands import Heard, Lease, Unheard
from fasti.core.delivery import silence
from fasti.core.replies import ConsumerReplaced, Done
from fasti.core.state import ShardState, Topic
from fasti.core.work import Work
from fasti.errors import Fenced, InvalidArgument, Overloaded


@dataclass(slots=True)
class Waiting:
    """A session in the line, and how many messages it can still take."""

    session: int
    consumer: str
    credit: int


@dataclass(slots=True)
class Doubt:
    """A session that let leases run out: how many it may hold, and how many more it may take."""

    limit: int
    left: int


class Line:
    """The sessions that wait for one topic, and which session each consumer's name belongs to."""

    __slots__ = (
        *("_aside", "_doubtful", "_doubts", "_held_back", "_names", "_sessions", "_waiting"),
        "share",
    )

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Waiting] = OrderedDict()
        # Those in doubt that may take something, and those with credit that may not.
        self._doubtful: OrderedDict[int, Waiting] = OrderedDict()
        self._aside: OrderedDict[int, Waiting] = OrderedDict()
        self._doubts: dict[int, Doubt] = {}
        self._held_back: set[int] = set()
        self._sessions: dict[str, int] = {}
        self._names: dict[int, list[str]] = {}
        # What each got in a turn that was broken off, to go on with.
        self.share = 0

    def __len__(self) -> int:
        """How many can be served."""
        return len(self._waiting) + len(self._doubtful)

    @property
    def sessions_waiting(self) -> int:
        """How many stand here, those that can't be served included."""
        return len(self) + len(self._aside)

    def find(self, session: int) -> Waiting | None:
        """The session's place, if it waits."""
        waiting = self._waiting.get(session)
        if waiting is None and (self._doubtful or self._aside):
            waiting = self._doubtful.get(session) or self._aside.get(session)
        return waiting

    def first(self) -> Waiting:
        """Whose turn it is. Only while a session can be served."""
        return next(iter((self._waiting or self._doubtful).values()))

    def can_take(self, waiting: Waiting) -> int:
        """How many messages a session may be given: its credit, or less while it is in doubt."""
        doubt = self._doubts.get(waiting.session) if self._doubts else None
        return waiting.credit if doubt is None else min(waiting.credit, doubt.left)

    def everyone(self) -> list[Waiting]:
        """All that wait, those that can't be served included."""
        return [*self._waiting.values(), *self._doubtful.values(), *self._aside.values()]

    def names(self) -> Iterator[tuple[str, int, int]]:
        """Every consumer with a session: its name, its session, and its credit."""
        for consumer, session in self._sessions.items():
            waiting = self.find(session)
            yield consumer, session, 0 if waiting is None else waiting.credit

    def session_of(self, consumer: str) -> int | None:
        """The session that has the consumer's name, waiting or not."""
        return self._sessions.get(consumer)

    def give_name(self, consumer: str, session: int) -> None:
        """The name is this session's from now on. A session that had it has left."""
        self._sessions[consumer] = session
        self._names.setdefault(session, []).append(consumer)

    def join(self, session: int, consumer: str, credit: int) -> None:
        """More credit for a session; one that doesn't wait yet goes to the end."""
        waiting = self.find(session)
        if waiting is not None:
            waiting.credit += credit
        elif credit:
            self._room_of(session)[session] = Waiting(session, consumer, credit)

    def end_turn(self, taken: int) -> None:
        """The first one took so many: with credit left it goes to the end, else it waits no more."""
        room = self._waiting or self._doubtful
        session, waiting = next(iter(room.items()))
        waiting.credit -= taken
        if room is self._doubtful:
            self._doubts[session].left -= taken
        if waiting.credit:
            self._move(session)
        else:
            del room[session]

    def limit(self, session: int, credit: int) -> None:
        """The session waits for at most so many."""
        waiting = self.find(session)
        if waiting is not None:
            waiting.credit = min(waiting.credit, credit)
            if not waiting.credit:
                self._remove(session)

    def leave(self, session: int) -> None:
        """The session waits no more, and its names are free."""
        self._remove(session)
        self._doubts.pop(session, None)
        self._held_back.discard(session)
        for consumer in self._names.pop(session, ()):
            del self._sessions[consumer]

    # Sessions that are not to be trusted

    def doubt(self, session: int, ended: int, held: int) -> None:
        """So many leases of the session ran out, and it holds so many still."""
        before = self._doubts.get(session)
        limit = max(1, (held + ended if before is None else before.limit) // 2)
        self._doubts[session] = Doubt(limit, max(0, limit - held))
        self._move(session)

    def is_doubted(self, session: int) -> bool:
        """Whether it let leases run out and has finished nothing since."""
        return session in self._doubts

    def count_held(self, session: int, held: int) -> None:
        """A session in doubt holds so many now."""
        doubt = self._doubts[session]
        doubt.left = max(0, doubt.limit - held)
        self._move(session)

    def hold_back(self, session: int) -> None:
        """The session gets nothing until its peer is heard."""
        self._held_back.add(session)
        self._move(session)

    def heard(self, session: int, finished: bool) -> None:
        """The session's peer said something; with `finished`, it finished messages."""
        self._held_back.discard(session)
        if finished:
            self._doubts.pop(session, None)
        self._move(session)

    def _room_of(self, session: int) -> OrderedDict[int, Waiting]:
        if session in self._held_back:
            return self._aside
        doubt = self._doubts.get(session)
        if doubt is None:
            return self._waiting
        return self._doubtful if doubt.left else self._aside

    def _move(self, session: int) -> None:
        """To the end of where it belongs now."""
        waiting = self._remove(session)
        if waiting is not None:
            self._room_of(session)[session] = waiting

    def _remove(self, session: int) -> Waiting | None:
        waiting = self._waiting.pop(session, None)
        if waiting is None and (self._doubtful or self._aside):
            waiting = self._doubtful.pop(session, None) or self._aside.pop(session, None)
        return waiting


# A topic's number and a group's; 0 where there are no groups.
Key = tuple[int, int]

SERVED_PER_STEP = 10_000
# However many lines have their turn, one of them takes so many before the next.
_SHARE_MIN = 500


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
        # Its credit is one number: it would not be clear to which of the names a message should go.
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
        # When lines have their next turn, of those in which a session waits.
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
        was_empty = not line
        comes_new = join(work, topic, command, line)
        self._open(work, topic, command, key)
        self._lines[key] = line
        self._lines_of.setdefault(command.session, set()).add(key)
        if line.is_doubted(command.session):
            held = silence.count_held(work, topic, command.consumer, key[1])
            line.count_held(command.session, held)
        if comes_new:
            self._resume(work, topic, command)
        if not command.wait:
            if not topic.paused:
                self._serve_at_once(work, topic, key, command.session)
            # What it waited for before, it still waits for.
            line.limit(command.session, before)
        elif was_empty:
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
        """No session waits there any more: the topic or the group is gone."""
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
