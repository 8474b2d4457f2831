"""One snapshot for all tasks of a query, whichever of them comes first.

Spark plans a DataFrame once and runs it as often as it is used, so a snapshot that was taken when it
was planned would be an old one, or gone. And nothing tells the source that a query begins or ends.
So the tasks agree on a name: that of the plan, and the number of the query, which Spark gives to all
of its tasks and to those that are tried again. The first takes the snapshot, the others find it.

Where a broker has several shards each has a snapshot of its own: the rows of a shard are of one moment,
and those of different shards of moments that lie close together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fasti.client.client import Client
from fasti.client.transport import LOCATION
from fasti.errors import FastiError, Gone
from fasti.spark.patience import patiently
from fasti.spark.tickets import Task

# Of a snapshot that this process has read from: its position. Bounded, the oldest go.
_seen: dict[str, int] = {}
_SEEN_MAX = 1_000


@dataclass(frozen=True)
class SnapshotTask(Task):
    """A part of a topic as it was at one moment."""

    # A name that no other plan has, and in which life of the broker it was made.
    plan: str = ""
    life: str = ""
    keep_us: int = 0
    # Of how many parts this is which; when all were read the snapshot is kept for a while only.
    part: int = 0
    parts: int = 1
    linger_us: int = 60_000_000

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows of the ticket. Raises `gone` if the snapshot is."""
        name, again = _query(self.plan)
        snapshot = patiently(lambda: self._snapshot(self.client(), name, again), self.timeout_s)
        _check_same(f"{name}/{self.shard}", snapshot["position"])
        place = {
            "snapshot": snapshot["snapshot"],
            "position": snapshot["position"],
            "part": self.part,
        }
        ticket = {**self.ticket, **place}
        constants = {"shard": snapshot["shard"], "snapshot_position": snapshot["position"]}
        try:
            yield from self._read(ticket, constants)
        except Gone as error:
            raise _explained(error) from None

    def _snapshot(self, client: Client, name: str, again: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "name": name,
            "keep_us": self.keep_us,
            "readers": self.parts,
            "linger_us": self.linger_us,
        }
        if again:
            fields["life"] = self.life
        try:
            # From the broker that is read: a snapshot is its own.
            transport = client.transport.shard(self.shard).at(self.ticket.get(LOCATION))
            reply, _ = transport.call("take_snapshot", fields)
        except Gone as error:
            raise _explained(error) from None
        return reply


def _query(plan: str) -> tuple[str, bool]:
    """The name of a query's snapshot, and whether it may have been read before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return plan, False
    number = context.getLocalProperty("spark.sql.execution.id")
    if number is None:
        # A job below DataFrames: its stage is all that tells it from others.
        number = f"stage {context.stageId()}"
    again = context.attemptNumber() > 0 or _stage_attempt(context) > 0
    return f"{plan}/{number}", again


def _stage_attempt(context: Any) -> int:
    attempt = getattr(context, "stageAttemptNumber", None)
    return int(attempt()) if attempt is not None else 0


def _check_same(name: str, position: int) -> None:
    """A process that has seen a query's snapshot doesn't take another one for it."""
    first = _seen.setdefault(name, position)
    if first != position:
        raise _explained(Gone(f"the snapshot at position {first} is gone, here is {position}"))
    if len(_seen) > _SEEN_MAX:
        del _seen[next(iter(_seen))]


def _explained(error: FastiError) -> Gone:
    return Gone(
        f"{error.message}. The rows of one query must be of one moment: run it again, and if it "
        "stops for long between two reads, set snapshotTimeout",
        details=error.details,
    )
