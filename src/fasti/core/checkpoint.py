"""The engine's part of a checkpoint: its begin, and what it is told when one is written.

`BeginCheckpoint` takes a snapshot of the rows and a capsule of the rest, and closes an epoch: what
changes from here on is left to the next checkpoint. Storage writes the plan beside the traffic, and
tells the engine where things lie now: `BlocksAdded`, then `RowsInstalled` and the like, then
`RunsInstalled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fasti.core.agenda import FOREVER
from fasti.core.capsule import Capsule, capture
from fasti.core.command import Command
from fasti.core.log.body import tails
from fasti.core.log.partition import LogTail
from fasti.core.replies import Done
from fasti.core.rows.snapshot import Snapshot
from fasti.core.work import Work
from fasti.model import MINUTE_US, State

if TYPE_CHECKING:
    from fasti.core.engine import Engine


# Partitions whose messages are counted in one step: no more, because every other command waits for it.
_COUNTED_MAX = 256
_STORED = [State.SCHEDULED, State.LEASED, State.DEAD, State.STAGED]


@dataclass(frozen=True, slots=True)
class ReadUnwritten(Command):
    """What a checkpoint would write if it began now: an `Unwritten`."""


class Unwritten(NamedTuple):
    """Rows that lie in the journal only, and how many of them will not for long.

    Those are under lease, or due within a minute or two. Of very many partitions nothing is told.
    """

    rows: int
    short_lived: int


@dataclass(frozen=True, slots=True)
class BeginCheckpoint(Command):
    """Done(value=`Plan`). The journal begins at `first_frame`; these epochs' checkpoints failed."""

    first_frame: int
    unwritten: list[int]


@dataclass(frozen=True, slots=True)
class BlocksAdded(Command):
    """A checkpoint wrote blocks: the number of each, and its rows.

    It gave back `trimmed_bytes` of what retention of logs had dropped.
    """

    blocks: list[tuple[int, int]]
    trimmed_bytes: int


@dataclass(slots=True)
class Plan:
    """A checkpoint that has begun: the state at one position."""

    snapshot: Snapshot
    capsule: Capsule
    epoch: int
    # Epochs whose changes are not in any run or delta yet: this one, and those that failed.
    unwritten: list[int]
    # Rows of logs that lie in the journal only, and what retention dropped since the last one.
    logs: dict[tuple[int, int], LogTail]
    trimmed_bytes: int


def read_unwritten(work: Work, query: ReadUnwritten) -> Done:
    """Counts without looking at the rows; where there are very many partitions, not at all."""
    state = work.state
    rows = soon = partitions = 0
    for topic in state.topics.values():
        for partition in topic.partitions.made():
            partitions += 1
            if partitions > _COUNTED_MAX:
                return Done(Unwritten(0, 0))
            rows += int(partition.counts[_STORED].sum())
            if not topic.paused:
                _, due = partition.times.histogram.between(0, work.now_us + MINUTE_US, MINUTE_US)
                soon += int(due.sum()) + int(partition.counts[State.LEASED])
    marks = state.memory.marks
    # Some of them have what is due soon too: where that can't be told, it counts as theirs.
    in_runs = sum(marks.rows(number) - marks.dead(number) for number in marks.blocks())
    in_logs = sum(tail.next_offset - tail.first_offset for tail in tails(state).values())
    return Done(Unwritten(rows - in_runs + in_logs, max(0, soon - in_runs)))


def begin(engine: Engine, command: BeginCheckpoint, now_us: int) -> Plan:
    """Closes an epoch. Called by the engine in a step, and by tools that have an engine at rest."""
    state, memory = engine.state, engine.memory
    state.directory.prune(command.first_frame)
    epoch = memory.epoch
    capsule = capture(state)
    snapshot = engine.snapshots.pin(now_us, FOREVER)
    memory.epoch = epoch + 1
    for topic in state.topics.values():
        for partition in topic.partitions.made():
            partition.times.calendar.generation = epoch + 1
    unwritten = [*command.unwritten, epoch]
    return Plan(snapshot, capsule, epoch, unwritten, tails(state), memory.trimmed_bytes)


def add_blocks(work: Work, command: BlocksAdded) -> Done:
    """Rows of the new blocks may be told to be dead from here on."""
    memory = work.state.memory
    for number, rows in command.blocks:
        memory.marks.add_block(number, rows)
    memory.trimmed_bytes -= command.trimmed_bytes
    return Done()
