"""What a consumer gives back to the broker: acks, nacks, releases, extensions, as requests.

Values only. A `Return` is what user code asked for, on rows of runs.
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
