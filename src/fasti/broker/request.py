"""Commands of one caller on their way to a step: how large they are, and which share one.

Sizes are worked out, and payloads encoded, by the caller's thread, so that the sequencer and the committer
find them done.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fasti.broker.futures import uncancellable
from fasti.core import commands
from fasti.core.cron.commands import Fire, RunSchedule
from fasti.core.engine import Engine
from fasti.core.kv.commands import KvDelete, KvExpire, KvPut
from fasti.core.sinks.commands import Carry
from fasti.core.timeline.bury import Bury
from fasti.errors import InvalidArgument

_STEP_ROWS = 5_000
_BULK = (commands.Produce, KvPut, Carry)
_WITH_PAYLOADS = (commands.Produce, commands.Update, KvPut, Fire, RunSchedule, Bury)


@dataclass(slots=True)
class Request:
    """Commands of one caller, answered together."""

    inputs: Sequence[Any]
    answer: Future[list[Any]]
    rows: int
    size_bytes: int
    # For inputs that mean something to one engine only: to be refused by the one after it.
    engine: Engine | None = None
    # How often its step was void; and whether it may be what raised: then it has a step of its own.
    reruns: int = 0
    suspect: bool = False

    @classmethod
    def of(cls, inputs: Sequence[Any], engine: Engine | None) -> Request:
        """In the caller's thread: payloads are encoded here. Raises `invalid_argument`."""
        rows = sum(rows_of(command) for command in inputs)
        size_bytes = sum(payload_bytes(command) for command in inputs)
        return cls(inputs, uncancellable(), rows, size_bytes, engine)

    @property
    def is_bulk(self) -> bool:
        """Whether it may wait for everything else."""
        return any(isinstance(command, _BULK) for command in self.inputs)


def fits(taken: list[Request], rows: int, request: Request) -> bool:
    """Whether a request may share the step with those that are taken."""
    if not taken:
        return True
    return not (request.suspect or taken[-1].suspect) and rows + request.rows <= _STEP_ROWS


def find_culprit(requests: list[Request], place: int | None) -> tuple[Request | None, Any]:
    """Whose command is the input at a place of the step, and which one."""
    if place is not None:
        for request in requests:
            if place < len(request.inputs):
                return request, request.inputs[place]
            place -= len(request.inputs)
    return None, None


def payload_bytes(command: Any) -> int:
    """Bytes that payloads of a command take in the journal, about."""
    if isinstance(command, _WITH_PAYLOADS):
        if isinstance(command, commands.Produce):
            _check_keys(command)
        # Encoded here, by the caller's thread, so that the committer only has to write.
        return len(command.rows.encoded) + 64 * len(command.rows)
    if isinstance(command, (commands.Transaction, Carry)):
        return sum(payload_bytes(part) for part in command.commands)
    if isinstance(command, (KvDelete, KvExpire)) and command.rows is not None:
        # Encoded here too, but they take space only for a while: they go when the disk is full.
        command.rows.encoded  # noqa: B018
    return 0


def _check_keys(command: commands.Produce) -> None:
    """Replay hashes the keys that lie beside the payloads: they must be the command's."""
    if (command.keys is not None) != ("key" in command.rows.batch.schema.names):
        raise InvalidArgument("keys stand in the command and beside its payloads", field="key")


def rows_of(command: Any) -> int:
    """Rows that a command counts for in the inbox and in a step."""
    for name in ("rows", "ids", "target", "keys"):
        rows = getattr(command, name, None)
        if rows is not None:
            return len(rows)
    if isinstance(command, (commands.Transaction, Carry)):
        return sum(rows_of(part) for part in command.commands)
    if isinstance(command, (commands.RowsInstalled, commands.SliceLoaded)):
        return len(command.sequences)
    return 1
