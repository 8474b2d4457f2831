"""How a call is carried out on several shards: cut into pieces, one for each shard, and merged.

A route says for one action how it is cut and how the answers become one. Pieces run in parallel. What
a piece's shard refuses or doesn't answer is an answer too: the merge decides what it means.

- Reads, and calls about a whole topic, need an answer of every shard: without one they raise its error,
  which names the shard.
- Of a mutation by rows the other shards have carried out theirs. The error says how many rows are done
  and which are not (`details`: `shard`, `rows_done`, and in `rows_left` the first thousand that are not):
  no row looks as if it had happened when it may not have.

A piece that was sent by a layout that isn't the topic's any more is refused as `wrong_shard` and has
changed nothing: the layout is asked for again and the rows of that piece go where they belong, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.client.shards import parallel
from fasti.client.transport import Header
from fasti.core.layout import Layout
from fasti.errors import FastiError, NotFound, TimedOut, WrongShard, error_from_code
from fasti.protocol.schemas import AS_OF, STALE

if TYPE_CHECKING:
    from fasti.client.shards.transport import ShardedTransport

Int64s = NDArray[np.int64]
Answer = tuple[Header, list[pa.Table]]

_ROWS_NAMED_MAX = 1000
# What says something about a shard and not about the request.
_OF_A_SHARD = frozenset(
    (
        *("unavailable", "timed_out", "unknown", "overloaded", "internal", "closed"),
        *("storage_full", "storage_failed", "no_quorum", "corruption"),
    )
)


@dataclass(slots=True)
class Request:
    """A call as the SDK makes it."""

    transport: ShardedTransport
    action: str
    header: Header
    parts: Sequence[pa.RecordBatch]
    # By the runtime's monotonic clock.
    until: float
    timeout: float | None = None

    @property
    def topic(self) -> str:
        """The topic that it is about; empty if it is about none."""
        return str(self.header.get("topic") or "")

    @property
    def is_stale(self) -> bool:
        """Whether its answer may be out of date."""
        return self.header.get(STALE) is True

    def layout(self, fresh: bool = False) -> Layout:
        """Where the topic's partitions are. Raises `not_found`."""
        return self.transport.layouts.of(self.topic, fresh, self.is_stale)

    def left_s(self) -> float:
        """How long it may still take. Raises `timed_out`."""
        left_s = self.until - self.transport.runtime.monotonic()
        if left_s <= 0:
            raise TimedOut(f"{self.action} took too long", details={"action": self.action})
        return left_s


@dataclass(slots=True)
class Piece:
    """What one shard is asked."""

    shard: int
    header: Header
    parts: Sequence[pa.RecordBatch] = ()
    # The rows of the request's part that it has; None: it isn't cut by rows.
    rows: Int64s | None = None
    # It is waited for so long at most, if the request allows more.
    patience_s: float = math.inf


# Topics that a shard makes for itself begin like this.
OWN = "_"
P = TypeVar("P")
A = TypeVar("A")
Answers = list[Answer | FastiError]
Cut = Callable[[Request], list[Piece]]
Merge = Callable[[Request, list[Piece], Answers], Answer]


@dataclass(frozen=True, slots=True)
class Route:
    """Where an action goes, and how its answers become one."""

    cut: Cut
    merge: Merge
    # The layout of its topic may be another one afterwards.
    changes_topic: bool = field(default=False)
    # About no shard, and all processes say the same: the first that answers will do.
    any_process: bool = field(default=False)


def carry_out(route: Route, request: Request) -> Answer:
    """The answer of all shards that a request is for."""
    try:
        pieces = route.cut(request)
        answers = run(request, pieces)
        if any(isinstance(answer, WrongShard) for answer in answers):
            pieces, answers = _again(route, request, pieces, answers)
        if request.topic.startswith(OWN):
            pieces, answers = drop_absent(pieces, answers)
        merged, parts = route.merge(request, pieces, answers)
        if request.is_stale:
            # All of it is as of then at least.
            told = [answer[0] for answer in answers if not isinstance(answer, FastiError)]
            merged = {**merged, AS_OF: min(int(header[AS_OF]) for header in told)}
        return merged, parts
    except (WrongShard, NotFound):
        request.transport.layouts.forget(request.topic)
        raise
    finally:
        if route.changes_topic:
            request.transport.layouts.forget(request.topic)


def drop_absent(pieces: list[P], answers: Sequence[A]) -> tuple[list[P], list[A]]:
    """Without the shards that have no topic of that name: one that a shard makes for itself is on those
    that had need of it. All of them, if none has.
    """
    both = [pair for pair in zip(pieces, answers, strict=True) if not isinstance(pair[1], NotFound)]
    if not both:
        return pieces, list(answers)
    return [piece for piece, _ in both], [answer for _, answer in both]


def run(request: Request, pieces: Sequence[Piece]) -> Answers:
    """Each piece at its shard, in parallel; the answers in their order."""

    def ask(piece: Piece) -> Answer:
        shard = request.transport.shard(piece.shard)
        # Without a time of the caller's own the error says how to give more.
        timeout = request.timeout if request.timeout is None else request.left_s()
        if piece.patience_s < math.inf:
            timeout = min(piece.patience_s, request.left_s())
        return shard.call(request.action, piece.header, piece.parts, timeout)

    return parallel.each(request.transport.runtime, ask, pieces)


def _again(
    route: Route, request: Request, pieces: list[Piece], answers: Answers
) -> tuple[list[Piece], Answers]:
    """What went to the wrong shard is cut anew, by the layout of now."""
    before = request.layout()
    request.transport.layouts.forget(request.topic)
    if request.layout() == before:
        return pieces, answers
    both = list(zip(pieces, answers, strict=True))
    kept = [(piece, answer) for piece, answer in both if not isinstance(answer, WrongShard)]
    wrong = [piece for piece, answer in both if isinstance(answer, WrongShard)]
    if not kept or any(piece.rows is None for piece, _ in both):
        if kept:
            # About a whole topic, of which a part was asked at the right place: nothing was done twice.
            return pieces, answers
        pieces = route.cut(request)
        return pieces, run(request, pieces)
    again: list[Piece] = []
    for piece in wrong:
        assert piece.rows is not None
        rest = Request(request.transport, request.action, piece.header, piece.parts, request.until)
        for smaller in route.cut(rest):
            assert smaller.rows is not None
            smaller.rows = piece.rows[smaller.rows]
            again.append(smaller)
    return [piece for piece, _ in kept] + again, [a for _, a in kept] + run(request, again)


# Errors


def all_answers(request: Request, pieces: Sequence[Piece], answers: Answers) -> list[Answer]:
    """The answers, if there is one of every shard; else raises what stands in the way."""
    failed = [
        (piece, answer)
        for piece, answer in zip(pieces, answers, strict=True)
        if isinstance(answer, FastiError)
    ]
    if failed:
        piece, error = _worst(failed)
        raise at_shard(error, piece.shard)
    return [answer for answer in answers if not isinstance(answer, FastiError)]


def _worst(failed: list[tuple[Piece, Any]]) -> tuple[Piece, FastiError]:
    """What says something about the request comes first: to ask again is no use then."""
    return min(failed, key=lambda each: each[1].code in _OF_A_SHARD)


def at_shard(error: FastiError, shard: int) -> FastiError:
    """An error that names the shard, if it is about one."""
    if error.code not in _OF_A_SHARD:
        return error
    return _rebuilt(error, f"shard {shard}: {error.message}", {"shard": shard})


def rows_left(
    request: Request, pieces: Sequence[Piece], answers: Answers, total: int
) -> FastiError:
    """What is raised when some shards have carried out their rows and others have not, for all one knows."""
    both = list(zip(pieces, answers, strict=True))
    failed = [(piece, answer) for piece, answer in both if isinstance(answer, FastiError)]
    piece, error = _worst(failed)
    open_rows = np.sort(np.concatenate([_rows(piece) for piece, _ in failed]))
    done = total - len(open_rows)
    if not done:
        return at_shard(error, piece.shard)
    shards = sorted({piece.shard for piece, _ in failed})
    named = " and ".join(map(str, shards)) if len(shards) < 3 else f"{len(shards)} shards"
    message = (
        f"{request.action}: {done} of {total} rows were carried out; those on shard {named} "
        f"were not, or it is not known: {error.message}"
    )
    details = {"shard": shards[0], "shards": shards, "rows_done": done}
    return _rebuilt(error, message, details | {"rows_left": open_rows[:_ROWS_NAMED_MAX].tolist()})


def _rows(piece: Piece) -> Int64s:
    return np.zeros(0, dtype=np.int64) if piece.rows is None else piece.rows


def _rebuilt(error: FastiError, message: str, details: dict[str, Any]) -> FastiError:
    told = {**error.details, **details}
    rebuilt = error_from_code(
        error.code, message, retry_after_us=error.retry_after_us, details=told
    )
    rebuilt.__cause__ = error
    return rebuilt
