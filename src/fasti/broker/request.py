"""Commands of one caller on their way to a step, and which requests share one.

Sizes are worked out, and payloads encoded, by the caller's thread, so that the sequencer and the
committer don't have to.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fasti.core.command import Command
from fasti.core.engine import Engine

_STEP_ROWS = 5_000


@dataclass(slots=True)
class Request:
    """Commands of one caller, answered together."""

    inputs: Sequence[Command]
    # Of the replies; of a query, of its value.
    answer: Future[Any]
    rows: int
    size_bytes: int
    # For inputs that mean something to one engine only: to be refused by the one after it.
    engine: Engine | None = None
    # A query: its value is told when it is decided, durable or not.
    at_once: bool = False
    # Its answer may be out of date: nobody waits for a proof of it.
    stale: bool = False
    # How often its step was void; and whether it may be what raised: then it has a step of its own.
    reruns: int = 0
    suspect: bool = False

    @classmethod
    def of(
        cls,
        inputs: Sequence[Command],
        answer: Future[Any],
        engine: Engine | None,
        at_once: bool = False,
        stale: bool = False,
    ) -> Request:
        """In the caller's thread: payloads are encoded here. Raises `invalid_argument`."""
        rows = size_bytes = 0
        for command in inputs:
            rows += command.count_rows()
            size_bytes += command.encode()
        return cls(inputs, answer, rows, size_bytes, engine, at_once, stale)

    @property
    def needs_proof(self) -> bool:
        """Whether its answer may be out of date, unless no other process has taken the shard over."""
        return not self.stale and any(command.needs_proof for command in self.inputs)

    @property
    def waits_out(self) -> bool:
        """Whether it waits while nothing becomes durable: nobody could say it again later."""
        words = bool(self.inputs) and all(command.is_word for command in self.inputs)
        return self.engine is not None or words

    def tell(self, reply: Any) -> None:
        """Answers a query with the value of its reply, or with the error."""
        if reply.error is not None:
            self.answer.set_exception(reply.error)
        else:
            self.answer.set_result(reply.value)

    @property
    def is_bulk(self) -> bool:
        """Whether it may wait for everything else."""
        return any(command.is_bulk for command in self.inputs)

    @property
    def lane(self) -> tuple[str, str]:
        """Topic and producer, where it is one's: among these bulk keeps its order."""
        for command in self.inputs:
            for produce in command.produces():
                return produce.topic, produce.producer
        return "", ""


def fits(taken: list[Request], rows: int, request: Request) -> bool:
    """Whether a request may share the step with those that are taken.

    Queries keep no command waiting, however many follow one another: behind queries alone a command of
    any size goes, as it would by itself.
    """
    if not taken:
        return True
    if request.suspect or taken[-1].suspect:
        return False
    if rows + request.rows <= _STEP_ROWS:
        return True
    return not request.at_once and all(other.at_once for other in taken)


def find_culprit(requests: list[Request], place: int | None) -> tuple[Request | None, Any]:
    """Whose command is the input at a place of the step, and which one."""
    if place is not None:
        for request in requests:
            if place < len(request.inputs):
                return request, request.inputs[place].bare
            place -= len(request.inputs)
    return None, None
