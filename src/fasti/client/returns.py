"""What a consumer gives back to the broker: acks, nacks, releases, extensions, as requests.

Values only. A `Return` is what user code asked for, on rows of runs; a `Request` is what was
written and waits for its answer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

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
from fasti.client.outcomes import Outcomes
from fasti.client.run import Run
from fasti.client.transport import Header
from fasti.errors import FastiError, TimedOut
from fasti.model import Outcome as Code
from fasti.protocol.schemas import RETURNED

Segment = tuple[Run, NDArray[np.intp]]

# What may have become of a message since it went back. That it did, by the first try or because its
# lease ended, is the same for everybody.
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


class Waiter:
    """Somebody who waits for the outcomes of a return."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._outcomes: Outcomes | None = None
        self._error: FastiError | None = None

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None:
        """The answer is here."""
        self._outcomes, self._error = outcomes, error
        self._answered.set()

    def wait(self, timeout: float | None = None) -> Outcomes | None:
        """The outcomes; None if they did not come in time. Raises the error that refused them."""
        if not self._answered.wait(timeout):
            return None
        if self._error is not None:
            raise self._error
        return self._outcomes


def no_answer(op: str, timeout_s: float) -> TimedOut:
    """For who has waited so long."""
    return TimedOut(
        f"no answer to {op} within {timeout_s:g} s; it is still under way, and timeout=... or "
        "connect(timeout=...) waits longer"
    )


class Shares:
    """The outcomes of a return that travels in pieces, for the one who waits for all of them."""

    def __init__(self, waiter: Waiter, count: int) -> None:
        self._waiter = waiter
        self._lock = threading.Lock()
        self._found: dict[int, Outcomes] = {}
        self._error: FastiError | None = None
        self._left = count

    def settle(self, place: int, outcomes: Outcomes | None, error: FastiError | None) -> None:
        """A piece was answered. If one was refused, that is the answer."""
        with self._lock:
            if outcomes is not None:
                self._found[place] = outcomes
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        if self._error is not None:
            self._waiter.settle(None, self._error)
        else:
            self._waiter.settle(
                Outcomes.joined([self._found[each] for each in sorted(self._found)])
            )


class Share(Waiter):
    """One of them."""

    def __init__(self, shares: Shares, place: int) -> None:
        super().__init__()
        self._shares, self._place = shares, place

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None:
        """The answer is here."""
        self._shares.settle(self._place, outcomes, error)


@dataclass(slots=True)
class Return:
    """What is to be told about rows."""

    op: str
    argument: Any
    segments: list[Segment]
    waiter: Waiter | None = None
    # The client's own, such as renewals: nobody is told when they fail.
    quiet: bool = False
    again: bool = False
    # Of a nack: when it is due again, if not after the topic's retry delay.
    when: int | DueAt | None = None

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
        shares = None if self.waiter is None else Shares(self.waiter, len(cut))
        return [
            Return(
                self.op,
                self.argument,
                segments,
                None if shares is None else Share(shares, place),
                self.quiet,
                self.again,
                self.when,
            )
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
        found = Outcomes.of_reply({**header, "ids": [[0, len(ids)]] if len(ids) else []})
        found.ids = ids
        if self.again and not found.all_ok:
            for code in _HAD_HAPPENED[self.op]:
                found.codes[found.codes == code] = Code.OK
        return found

    def keys(self) -> list[str | None]:
        """The keys of the rows, in order."""
        return [run.key(row) for run, rows in self.segments for row in rows.tolist()]

    def settle(self, outcomes: Outcomes | None, error: FastiError | None = None) -> None:
        """Tells whoever waits."""
        if self.waiter is not None:
            self.waiter.settle(outcomes, error)


@dataclass(slots=True)
class Request:
    """A return that was written and has no answer yet."""

    number: int
    returned: Return
    # On the broker's clock, if it renews leases.
    sent_us: int = 0
    # What was asked for with it.
    credit: int = 0


def merged(returns: list[Return]) -> list[Return]:
    """Equal returns as one, so that single nacks travel together. Those waited for stay alone."""
    found: list[Return] = []
    alike: dict[tuple[str, Any, Any, bool, bool], Return] = {}
    for each in returns:
        if each.waiter is not None:
            found.append(each)
            continue
        name = (each.op, each.argument, each.when, each.quiet, each.again)
        known = alike.get(name)
        if known is None:
            alike[name] = Return(
                each.op,
                each.argument,
                list(each.segments),
                None,
                each.quiet,
                each.again,
                each.when,
            )
            found.append(alike[name])
        else:
            known.segments.extend(each.segments)
    return found


def _joined(pieces: list[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
