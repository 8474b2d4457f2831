"""What a consumer gives back to the broker: acks, nacks, releases, extensions, as requests.

A `Return` is what user code asked for, on rows of runs. `Gathering` has the acks of single messages
until they are sent together: user threads put them in and count without a lock, because there are
hundreds of thousands a second; what they read may be a little old, and then one more or one fewer
travels with the others. `Requests` are the returns that wait to be written, and those that have no
reply yet. Everything but putting an ack in is a step of the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.client.durations import (
    Duration,
    aware_us,
    check_one_moment,
    moment_us,
    optional_duration_us,
)
from fasti.client.machines.run import Run
from fasti.client.outcomes import Outcomes
from fasti.errors import FastiError
from fasti.model import Outcome as Code
from fasti.protocol.schemas import RETURNED

Header = dict[str, Any]
Segment = tuple[Run, NDArray[np.intp]]

# What may have become of a message since it went back, by the first try or because its lease ended.
_WENT_BACK = (
    Code.STALE_LEASE,
    Code.LEASED,
    Code.DONE,
    Code.DEAD,
    Code.CANCELLED,
    Code.GONE,
)
# Of a request that was sent again because its answer was lost: what shows that it had happened.
_HAD_HAPPENED = {
    # A message that was leased and is forgotten was finished before.
    "ack": (Code.DONE, Code.GONE),
    "reject": (Code.DEAD,),
    "nack": _WENT_BACK,
    "release": _WENT_BACK,
    "extend": (),
}


@dataclass(frozen=True, slots=True)
class DueAt:
    """When rows that go back are due, where that is no delay."""

    due_us: int


def release_argument(delay: Duration | None, at: Any, due: Any) -> int | DueAt:
    """When released rows are due, checked: at once if nothing is given."""
    return due_again(delay, at, due) or 0


def due_again(delay: Duration | None, at: Any, due: Any) -> int | DueAt | None:
    """When rows that go back are due, checked: a delay or a moment, None if nothing is given."""
    check_one_moment(at, delay, due)
    if at is not None or due is not None:
        return DueAt(aware_us(at) if due is None else moment_us(due, "due"))
    return optional_duration_us(delay, "delay")


class Listener(Protocol):
    """Is told the outcomes of a return, or the error that refused it: by any thread, maybe twice."""

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None: ...


class _Pieces:
    """The outcomes of a return that travels in pieces, for the one who waits for all of them."""

    def __init__(self, listener: Listener, count: int) -> None:
        self._listener, self._count = listener, count
        self._answers: list[tuple[int, Outcomes | None, FastiError | None]] = []

    def settle(self, place: int, outcomes: Outcomes | None, error: FastiError | None) -> None:
        """A piece was answered. If one was refused, that is the answer.

        Two threads may bring the last two at once: then both see all of them, and both tell.
        """
        self._answers.append((place, outcomes, error))
        if len(self._answers) < self._count:
            return
        errors = [error for _, _, error in self._answers if error is not None]
        if errors:
            self._listener.settle(None, errors[0])
            return
        ordered = sorted(self._answers, key=lambda answer: answer[0])
        self._listener.settle(Outcomes.joined([part for _, part, _ in ordered if part is not None]))


@dataclass(slots=True)
class _Piece:
    """The listener of one of them."""

    pieces: _Pieces
    place: int

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None:
        self.pieces.settle(self.place, outcomes, error)


@dataclass(slots=True)
class Return:
    """What is to be told about rows."""

    op: str
    argument: Any
    segments: list[Segment]
    waiter: Listener | None = None
    # The client's own, such as renewals: their failures are only logged.
    quiet: bool = False
    again: bool = False
    # Of a nack: when it is due again, if not after the topic's retry delay.
    when: int | DueAt | None = None
    # How many there were with it: of several that travel as one, that of the first.
    place: int = 0

    @property
    def of_one_session(self) -> bool:
        """Whether all of its rows came by the same session."""
        session = self.segments[0][0].session
        return all(run.session is session for run, _ in self.segments)

    def by_session(self) -> tuple[list[Return], NDArray[np.intp]]:
        """The same for each session by itself, and which rows of the whole theirs are, one after the
        other.
        """
        parts: dict[int, Return] = {}
        places: dict[int, list[NDArray[np.intp]]] = {}
        begin = 0
        for run, rows in self.segments:
            name = id(run.session)
            if name not in parts:
                parts[name], places[name] = replace(self, segments=[]), []
            parts[name].segments.append((run, rows))
            places[name].append(np.arange(begin, begin + len(rows)))
            begin += len(rows)
        joined = [piece for pieces in places.values() for piece in pieces]
        return list(parts.values()), np.concatenate(joined)

    @property
    def renews(self) -> bool:
        """Whether it takes the place of a heartbeat."""
        return self.quiet and self.op == "extend"

    @property
    def rows(self) -> int:
        """How many rows it is about."""
        return sum(len(rows) for _, rows in self.segments)

    def pieces(self, rows_max: int) -> list[Return]:
        """The same as returns of at most so many rows: no request has more."""
        if self.rows <= rows_max:
            return [self]
        cut: list[list[Segment]] = [[]]
        room = rows_max
        for run, rows in self.segments:
            while len(rows):
                if not room:
                    cut.append([])
                    room = rows_max
                cut[-1].append((run, rows[:room]))
                rows, room = rows[room:], max(0, room - len(rows))
        pieces = None if self.waiter is None else _Pieces(self.waiter, len(cut))
        return [
            replace(self, segments=segments, waiter=_Piece(pieces, place) if pieces else None)
            for place, segments in enumerate(cut)
        ]

    def fields(self) -> Header:
        """The request's header, but for its number."""
        if self.op in ("nack", "reject"):
            after = {"delay_us": self.when} if isinstance(self.when, int) else {}
            return {"op": self.op, "reason": self.argument, **after}
        if self.op == "extend":
            return {"op": self.op, "length_us": self.argument}
        if self.op == "release" and isinstance(self.argument, int):
            return {"op": self.op, "delay_us": self.argument}
        return {"op": self.op}

    def batch(self) -> pa.RecordBatch:
        """The request's rows."""
        arrays = [
            pa.array(_joined([run.ids[rows] for run, rows in self.segments])),
            pa.array(_joined([run.tokens_of(rows) for run, rows in self.segments])),
            pa.array(_joined([run.started_of(rows) for run, rows in self.segments])),
            self._due(),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=RETURNED)

    def _due(self) -> pa.Array:
        """When each row is due, if it says so itself."""
        if self.op == "release" and self.argument is None:
            return pa.array(_joined([run.due_us[rows] for run, rows in self.segments]))
        for given in (self.argument, self.when):
            if isinstance(given, DueAt):
                return pa.array(np.full(self.rows, given.due_us))
        return pa.nulls(self.rows, pa.int64())

    def outcomes(self, header: Header) -> Outcomes:
        """The answer, with the ids that the broker left out."""
        ids = _joined([run.ids[rows] for run, rows in self.segments])
        outcomes = Outcomes.of_reply({**header, "ids": [[0, len(ids)]] if len(ids) else []})
        outcomes.ids = ids
        if self.again and not outcomes.all_ok:
            for code in _HAD_HAPPENED[self.op]:
                outcomes.codes[outcomes.codes == code] = Code.OK
        return outcomes

    def keys(self) -> list[str | None]:
        """The keys of the rows, in order."""
        return [run.key(row) for run, rows in self.segments for row in rows.tolist()]

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None:
        """Tells the one who waits, if there is one."""
        if self.waiter is not None:
            self.waiter.settle(outcomes, error)


def merged(returns: list[Return]) -> list[Return]:
    """Equal returns as one, so that single nacks travel together. Those waited for stay alone."""
    result: list[Return] = []
    alike: dict[tuple[str, Any, Any, bool, bool], Return] = {}
    for returned in returns:
        if returned.waiter is not None:
            result.append(returned)
            continue
        name = (returned.op, returned.argument, returned.when, returned.quiet, returned.again)
        known = alike.get(name)
        if known is None:
            alike[name] = replace(returned, segments=list(returned.segments))
            result.append(alike[name])
        else:
            known.segments.extend(returned.segments)
            known.place = min(known.place, returned.place)
    return result


def _joined(pieces: list[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


# So many requests are under way at once.
_REQUESTS_MAX = 8


@dataclass(slots=True)
class Request:
    """A return that was written and has no reply yet."""

    number: int
    returned: Return
    # When it was written, on the broker's clock.
    sent_us: int
    # How many messages were asked for with it.
    credit: int = 0


class Requests:
    """The requests of one consumer. Numbers go on over connections."""

    def __init__(self) -> None:
        self.waiting: list[Return] = []
        # How many returns there were.
        self.added = 0
        self._open: dict[int, Request] = {}
        self._number = 0

    def add(self, returned: Return) -> None:
        """A return waits to be written."""
        self.added += 1
        returned.place = self.added
        self.waiting.append(returned)

    def next_number(self) -> int:
        """For a request that is not about rows, too."""
        self._number += 1
        return self._number

    @property
    def idle(self) -> bool:
        """Whether none is under way."""
        return not self._open

    @property
    def has_room(self) -> bool:
        """Whether another one may be under way."""
        return len(self._open) < _REQUESTS_MAX

    @property
    def all_answered(self) -> bool:
        """Whether nothing waits, and all that is under way is the client's own."""
        return not self.waiting and all(request.returned.quiet for request in self._open.values())

    def answered_to(self, mark: int) -> bool:
        """The same for those that were added up to then."""
        return all(returned.place > mark for returned in self.waiting) and all(
            request.returned.quiet or request.returned.place > mark
            for request in self._open.values()
        )

    def take_waiting(self) -> list[Return]:
        """What is to be written, the alike as one."""
        returns, self.waiting = merged(self.waiting), []
        return returns

    def begin(self, returned: Return, now_us: int) -> Request:
        """A return is written."""
        if not returned.place:
            self.added += 1
            returned.place = self.added
        request = Request(self.next_number(), returned, now_us)
        self._open[request.number] = request
        return request

    def answer(self, number: int) -> Request | None:
        """A reply came; None if it is to nothing that is under way."""
        return self._open.pop(number, None)

    def retry(self, returned: Return) -> None:
        """It is sent again: it may have been carried out."""
        returned.again = True
        self.waiting.append(returned)

    def retry_all(self) -> list[Return]:
        """The connection is lost: what user code waits for is sent again. All that waits now."""
        for request in self._open.values():
            if not request.returned.quiet:
                self.retry(request.returned)
        self._open.clear()
        return self.waiting

    def take_unanswered(self) -> list[Return]:
        """At the end: what was written, and then what was not."""
        unsent, self.waiting = self.waiting, []
        unanswered, self.waiting = [*self.retry_all(), *unsent], []
        return unanswered


# They wait this long for others, unless the consumer has nothing left or needs the credit.
_LINGER_S = 0.025
_NEVER = -(1 << 62)


class Gathering:
    """The gathered acks of one consumer."""

    __slots__ = ("_linger_until", "eager", "hurry", "runs", "unsent", "urged")

    def __init__(self, prefetch: int) -> None:
        # Runs that have some.
        self.runs: list[Run] = []
        # The session's thread sleeps and no ack waits: the next one should wake the thread.
        self.eager = False
        # Acks since the last were sent, about. At `hurry` they are sent at once, for their credit
        # is a good part of what the consumer has.
        self.unsent, self.hurry = 0, 1
        self.urged = False
        self._linger_until = 0.0
        self.fit(prefetch)

    def fit(self, prefetch: int) -> None:
        """So many messages may be here."""
        self.hurry = max(1, prefetch // 4)

    # User threads

    def put(self, run: Run) -> bool:
        """The run has acks. True if the session's thread should be woken."""
        if not run.listed:
            run.listed = True
            self.runs.append(run)
        return self.eager or self.unsent >= self.hurry

    # Steps of the machine

    def wake(self) -> None:
        """The session's thread is being woken."""
        self.eager = False
        if self.unsent >= self.hurry:
            self.urged = True
            self.unsent = _NEVER  # Once is enough, until they are sent.

    def urge(self) -> bool:
        """They are to wait no longer. False if there are none, or they were urged before."""
        urged, self.urged = self.urged, self.urged or bool(self.runs)
        return self.urged and not urged

    def due(self, now: float, at_once: bool) -> bool:
        """Whether they have waited for others long enough; `at_once` if none will come."""
        if not self.runs:
            return False
        if not self._linger_until:
            self._linger_until = now + _LINGER_S
        return self.urged or at_once or now >= self._linger_until

    def wait_s(self, now: float) -> float:
        """How long they may wait on, once `due` was asked."""
        return self._linger_until - now

    def take(self) -> list[Return]:
        """All of them, as one return."""
        self.unsent, self._linger_until, self.urged = 0, 0.0, False
        count = len(self.runs)
        runs = self.runs[:count]
        del self.runs[:count]
        segments = []
        for run in runs:
            # An ack after this lists the run anew.
            run.listed = False
            size = len(run.acks)
            rows = run.acks[:size]
            del run.acks[:size]
            if rows:
                segments.append((run, np.array(rows)))
        return [Return("ack", None, segments)] if segments else []
