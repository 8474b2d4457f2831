"""What a shard remembers of sinks, and how their events, and those of stages, are made so.

Of each sink the last batch is kept for ever, with what became of its rows: whoever publishes a batch
again is told the same. `left` are the stages of that batch that are not carried out whole; when none
is left the batch is done. Changed only by events; replay arrives at the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.events import Event
from fasti.core.lifecycle import Verb
from fasti.core.sinks.events import (
    SinkCarried,
    SinkForgotten,
    SinkPublished,
    SinkStageOpened,
    StageLanded,
    StageRowsDropped,
)
from fasti.core.timeline.stages import Stage, StagedRows

if TYPE_CHECKING:
    from fasti.core.state import ShardState

Int64s = NDArray[np.int64]
Apply = Callable[[Any, int], None]

# What rows are counted as that go with their topic before they land.
GONE = "gone"


@dataclass(slots=True)
class Sink:
    """The last batch of one sink."""

    name: str
    batch: int
    operation: str
    published_us: int
    outcomes: dict[str, int] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    @property
    def done(self) -> bool:
        """Whether the batch is carried out whole."""
        return not self.left

    def count(self, outcomes: dict[str, int]) -> None:
        """Some rows came out so."""
        for word, rows in outcomes.items():
            if rows:
                self.outcomes[word] = self.outcomes.get(word, 0) + rows


class SinkBook:
    """All sinks of a shard. The sequencer's thread only."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.all: dict[str, Sink] = {}

    def events(self) -> dict[type[Event], Apply]:
        """Who makes which event so."""
        return {
            SinkPublished: self._published,
            SinkStageOpened: self._opened,
            StageLanded: self._landed,
            StageRowsDropped: self._dropped,
            SinkCarried: self._carried,
            SinkForgotten: self._forgotten,
        }

    def stages_of(self, sink: str) -> dict[str, Stage]:
        """The stages of a sink, published or not."""
        return {name: each for name, each in self._state.stages.items() if each.sink == sink}

    # Events

    def _opened(self, event: SinkStageOpened, _: int) -> None:
        stage = Stage(event.topic, event.at_us)
        stage.sink, stage.batch, stage.operation = event.sink, event.batch, event.operation
        stage.target, stage.owner = event.target, event.owner
        self._state.open_stage(event.stage, stage)

    def _published(self, event: SinkPublished, _: int) -> None:
        state = self._state
        place = (event.sink, event.batch, event.operation, event.at_us)
        self.all[event.sink] = Sink(*place, left=set(event.stages))
        for name in event.stages:
            stage = state.stages[name]
            stage.published, stage.skip = True, bool(event.skip)
            stage.claimed = False
            state.publishing[name] = stage
            if not event.skip and not event.claimed:
                self._claim(stage)
        for name, stage in self.stages_of(event.sink).items():
            if not stage.published and stage.batch <= event.batch:
                state.begin_drop(name)

    def _claim(self, stage: Stage) -> None:
        """All keys of a stage, at once: in replay, or of a small one."""
        for batch in stage.batches:
            if batch.hashes is not None:
                partition = self._state.topics[stage.topic].partitions[batch.partition]
                partition.claim_keys(batch.hashes, batch.sequences)

    def _landed(self, event: StageLanded, _: int) -> None:
        stage = self._state.stages[event.stage]
        (rows,) = self._take(stage, event, len(event.sequence) + len(event.skipped))
        partition = self._state.partition(event)
        if len(event.skipped):
            slots = partition.ledger.slots(event.skipped)
            partition.finish(event.skipped, slots, Verb.DROP, event.at_us)
        if len(event.sequence):
            slots = partition.ledger.slots(event.sequence)
            partition.turn(slots, Verb.PUBLISH)
            due = partition.arena.due.take(slots, mode="clip")
            partition.times.schedule(event.sequence, due)
            if partition.times.expiries is not None:
                partition.times.expiries.plan(event.sequence, slots, event.at_us)
            if stage.skip and rows.hashes is not None:
                kept = event.sequence - rows.sequences[0]
                partition.claim_keys(rows.hashes[kept], event.sequence)
        if stage.sink:
            counts = {"ok": len(event.sequence), "conflict": len(event.skipped)}
            self.all[stage.sink].count(counts)
        self._end_if_empty(event.stage, stage)

    def _dropped(self, event: StageRowsDropped, _: int) -> None:
        stage = self._state.stages[event.stage]
        self._take(stage, event, len(event.sequence))
        partition = self._state.partition(event)
        slots = partition.ledger.slots(event.sequence)
        partition.finish(event.sequence, slots, Verb.DROP, event.at_us)
        self._state.begin_drop(event.stage)
        self._end_if_empty(event.stage, stage)

    def _take(self, stage: Stage, event: Any, count: int) -> list[StagedRows]:
        taken = stage.take(count)
        self._state.count_stage(stage)
        assert len(taken) == 1, "rows of one batch"
        assert taken[0].partition == event.partition, "the stage's next rows"
        return taken

    def _carried(self, event: SinkCarried, _: int) -> None:
        stage = self._state.stages[event.stage]
        stage.take(1)
        self._state.count_stage(stage)
        partition = self._state.partition(event)
        sequence = np.array([event.sequence], dtype=np.int64)
        partition.finish(sequence, partition.ledger.slots(sequence), Verb.DROP, event.at_us)
        self.all[event.sink].count(event.outcomes)
        self._end_if_empty(event.stage, stage)

    def _forgotten(self, event: SinkForgotten, _: int) -> None:
        self.all.pop(event.sink, None)
        for name in self.stages_of(event.sink):
            self._state.begin_drop(name)

    def _end_if_empty(self, name: str, stage: Stage) -> None:
        if not stage.batches:
            self._state.close_stage(name)
            self._leave(name, stage)

    def _leave(self, name: str, stage: Stage) -> None:
        sink = self.all.get(stage.sink) if stage.published else None
        if sink is not None:
            sink.left.discard(name)

    def topic_gone(self, topic: int) -> None:
        """A topic was deleted: what was staged there is gone, also what was published."""
        state = self._state
        for name, stage in list(state.stages.items()):
            if stage.topic == topic:
                state.close_stage(name)
                if stage.published and stage.sink in self.all:
                    self.all[stage.sink].count({GONE: stage.rows})
                self._leave(name, stage)
            elif stage.target == topic and not stage.published:
                state.begin_drop(name)

    # Checkpoints

    def capture(self) -> list[Any]:
        """As plain values."""
        return [
            [s.name, s.batch, s.operation, s.published_us, dict(s.outcomes), sorted(s.left)]
            for s in self.all.values()
        ]

    def restore(self, described: list[Any]) -> None:
        """Back from `capture`."""
        for name, batch, operation, published_us, outcomes, left in described:
            place = (name, batch, operation, published_us)
            self.all[name] = Sink(*place, dict(outcomes), set(left))
