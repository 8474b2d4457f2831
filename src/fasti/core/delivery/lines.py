"""Who waits for a topic's messages: first come, first served.

A session stands in the line once, with its credit, and goes to the end of it after each turn. Every
operation takes the same time whether ten wait or a hundred thousand. Session state: never journaled.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from fasti.core.timeline.partition import FOREVER


@dataclass(slots=True)
class Waiting:
    """A session in the line, and how many messages it can still take."""

    session: int
    consumer: str
    credit: int


class Line:
    """The sessions that wait for one topic, and which session each consumer's name belongs to."""

    __slots__ = ("_names", "_sessions", "_waiting", "share", "wake_us")

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, Waiting] = OrderedDict()
        self._sessions: dict[str, int] = {}
        self._names: dict[int, list[str]] = {}
        # Nothing has to go out before, as far as it is known.
        self.wake_us = FOREVER
        # What each got in a turn that was broken off, to go on with.
        self.share = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def find(self, session: int) -> Waiting | None:
        """The session's place, if it waits."""
        return self._waiting.get(session)

    def first(self) -> Waiting:
        """Whose turn it is. Only while somebody waits."""
        return next(iter(self._waiting.values()))

    def names(self) -> Iterator[tuple[str, int, int]]:
        """Every consumer with a session: its name, its session, and its credit."""
        for consumer, session in self._sessions.items():
            waiting = self._waiting.get(session)
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
        waiting = self._waiting.get(session)
        if waiting is None:
            self._waiting[session] = Waiting(session, consumer, credit)
        else:
            waiting.credit += credit

    def end_turn(self, taken: int) -> None:
        """The first one took so many: with credit left it goes to the end, else it waits no more."""
        session, waiting = next(iter(self._waiting.items()))
        waiting.credit -= taken
        if waiting.credit:
            self._waiting.move_to_end(session)
        else:
            del self._waiting[session]

    def limit(self, session: int, credit: int) -> None:
        """The session waits for at most so many."""
        waiting = self._waiting.get(session)
        if waiting is not None:
            waiting.credit = min(waiting.credit, credit)
            if not waiting.credit:
                del self._waiting[session]

    def leave(self, session: int) -> None:
        """The session waits no more, and its names are free."""
        self._waiting.pop(session, None)
        for consumer in self._names.pop(session, ()):
            del self._sessions[consumer]
