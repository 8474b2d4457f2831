"""Who waits for a topic's messages: first come, first served.

A session stands in the line once, with its credit, and goes to the end of it after each turn. Every
operation takes the same time whether ten wait or a hundred thousand. Session state: never journaled.

Sessions that let leases run out are in *doubt*: they are served when no other session waits, and hold
at most half of what they held, then a quarter, down to one message at a time, until they finish a
message. Sessions whose peer is silent are *held back*: they get nothing until it is heard again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass


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
        found = self._waiting.get(session)
        if found is None and (self._doubtful or self._aside):
            found = self._doubtful.get(session) or self._aside.get(session)
        return found

    def first(self) -> Waiting:
        """Whose turn it is. Only while somebody can be served."""
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
        """The name is this session's from now on. Whoever had it has left."""
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
        found = self._waiting.pop(session, None)
        if found is None and (self._doubtful or self._aside):
            found = self._doubtful.pop(session, None) or self._aside.pop(session, None)
        return found
