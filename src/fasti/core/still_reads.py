"""Reads of an engine outside of its steps: of one that follows, or of a leader's that stands still.

Nothing happens because of them, nor because time goes on. An engine that only follows keeps nothing in line that
falls due (`slices.start` has not read it back), so it can't tell what is ready without looking at the rows:
`CountRows` is for that. The thread that has the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fasti.core.command import Command
from fasti.core.commands import Count, DropSnapshot, Get, TakeSnapshot
from fasti.core.engine import Engine
from fasti.core.kv.commands import KvDescribe, KvGet
from fasti.core.queries import ReadTopics
from fasti.core.replies import Done, Reply
from fasti.core.rows.snapshot import Snapshot
from fasti.core.work import Work
from fasti.errors import FastiError


@dataclass(frozen=True, slots=True)
class CountRows(Command):
    """How many messages of a topic each state has: Done(value=`RowCounts`). Not for logs."""

    topic: str
    deadline_us: int


class RowCounts(NamedTuple):
    """By `State`; which of those that are scheduled are due, the rows of the snapshot tell."""

    topic: int
    totals: NDArray[np.int64]
    snapshot: Snapshot


_READS = frozenset((Get, Count, KvGet, KvDescribe, ReadTopics, TakeSnapshot, DropSnapshot))


def read(engine: Engine, command: Any, now_us: int) -> Any:
    """The reply to a command that changes nothing. Refusals are replies, as in a step."""
    work = Work(engine.state, engine.limits, max(now_us, engine.state.last_at_us), 0)
    try:
        if isinstance(command, CountRows):
            return _count_rows(engine, work, command)
        assert type(command) in _READS, "it only reads"
        reply = engine.handler(work, command)(work, command)
    except FastiError as error:
        return Reply.refused(error)
    assert not [*work.frames, *work.effects], "a read has no consequences"
    return reply


def _count_rows(engine: Engine, work: Work, command: CountRows) -> Done:
    """Raises what a count is refused with."""
    engine.handler(work, Count(command.topic))
    topic = work.topic(command.topic)
    snapshot = engine.snapshots.pin(work.now_us, command.deadline_us, command.topic)
    totals = sum((part.counts for part in topic.partitions.made()), np.zeros(8, dtype=np.int64))
    return Done(RowCounts(topic.number, totals, snapshot))
