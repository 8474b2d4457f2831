"""Deciding stages: publish, landing in bounded steps, and dropping what nobody publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.agenda import FOREVER
from fasti.core.commands import DropStage, Publish
from fasti.core.replies import Done
from fasti.core.sinks import claims
from fasti.core.sinks.commands import SinkChanged
from fasti.core.sinks.events import StageLanded, StageRowsDropped
from fasti.core.timeline.stages import Stage
from fasti.core.work import Work, repeated
from fasti.errors import AlreadyExists, InvalidArgument, NotFound
from fasti.model import SEQUENCE_BITS

if TYPE_CHECKING:
    from fasti.core.state import ShardState

Int64s = NDArray[np.int64]

LANDED_PER_STEP = 16_384
# Rows that claim their keys when they land cost about four times as much.
_CLAIMING_COST = 4
_NONE = np.zeros(0, dtype=np.int64)


def publish(work: Work, command: Publish) -> Done:
    """One event makes a stage's messages live. The value is (rows, ids whose key was taken)."""
    claim = claims.find(work.state, command.claim)
    stage = _stage(work, command.stage, claim)
    if claim is None:
        taken = _taken(work, stage)
    else:
        claim.check({command.stage: stage})
        taken = np.concatenate([*claim.taken, _NONE])
    if len(taken) and not command.skip_conflicts:
        raise AlreadyExists(
            f"{len(taken)} of the stage's keys are taken by live messages",
            details={"stage": command.stage, "conflicts": len(taken)},
        )
    rows = stage.rows
    work.emit(ev.Published(work.now_us, command.stage, taken, claim is not None))
    if claim is not None:
        claims.settle(claim)
    return Done((rows - len(taken), taken))


def drop_stage(work: Work, command: DropStage) -> Done:
    """The stage's messages are dropped, unpublished."""
    stage = _stage(work, command.stage)
    rows = stage.rows
    work.emit(ev.StageDropped(work.now_us, command.stage))
    return Done(rows)


def land(work: Work) -> bool:
    """Lets published rows land, and drops old stages; True if there is more to do."""
    state = work.state
    budget = LANDED_PER_STEP
    for name, stage in list(state.publishing.items()):
        if not stage.is_parcels:
            budget = _land(work, name, stage, budget)
            if budget <= 0:
                return True
    if next_expiry_us(state) <= work.now_us:
        for name, stage in list(state.stages.items()):
            if _expiry_us(state, stage) <= work.now_us:
                work.emit(ev.StageDropped(work.now_us, name))
    if state.dropping:
        # In the order in which they were opened, which a restart doesn't change.
        for name, stage in list(state.stages.items()):
            if stage.dropping:
                budget = _drop(work, name, stage, budget)
                if budget <= 0:
                    return True
    return False


def _land(work: Work, name: str, stage: Stage, budget: int) -> int:
    """The next rows of a stage go live; what is left of the budget."""
    partitions = work.state.topics[stage.topic].partitions
    while stage.batches and budget > 0:
        batch = stage.batches[0]
        keyed = stage.skip and batch.hashes is not None
        cost = _CLAIMING_COST if keyed else 1
        count = min(max(1, budget // cost), len(batch.sequences))
        sequences, skipped = batch.sequences[:count], _NONE
        if keyed:
            assert batch.hashes is not None
            _, taken = claims.look_up(partitions[batch.partition], batch.hashes[:count])
            sequences, skipped = sequences[~taken], sequences[taken]
        elif stage.skipped:
            ids = sequences | batch.partition << SEQUENCE_BITS
            left_out = np.isin(ids, list(stage.skipped))
            sequences, skipped = sequences[~left_out], sequences[left_out]
        place = (stage.topic, batch.partition)
        work.emit(StageLanded(work.now_us, name, *place, sequences, skipped))
        budget -= count * cost
    sink = work.state.sinks.all.get(stage.sink)
    if not stage.batches and sink is not None and sink.done:
        work.effects.append(SinkChanged(sink.name, sink.batch))
    return budget


def _drop(work: Work, name: str, stage: Stage, budget: int) -> int:
    """The next rows of a stage go away; what is left of the budget."""
    while stage.batches and budget > 0:
        batch = stage.batches[0]
        sequences = batch.sequences[:budget]
        place = (stage.topic, batch.partition)
        work.emit(StageRowsDropped(work.now_us, name, *place, sequences))
        budget -= len(sequences)
    return budget


def next_expiry_us(state: ShardState) -> int:
    """When the next unpublished stage is too old."""
    if state.stage_expiry_us is None:
        moments = [_expiry_us(state, stage) for stage in state.stages.values()]
        state.stage_expiry_us = min(moments, default=FOREVER)
    return state.stage_expiry_us


def _expiry_us(state: ShardState, stage: Stage) -> int:
    if stage.published or stage.dropping or stage.claimed:
        return FOREVER
    topic = state.topics.get(stage.target or stage.topic, state.topics[stage.topic])
    return stage.opened_at_us + topic.settings.stage_age_us


def _stage(work: Work, name: str, claim: claims.Claim | None = None) -> Stage:
    stage = work.state.stages.get(name)
    if stage is None or stage.dropping:
        raise NotFound(f"there is no stage {name!r}: it expired, or never was", details={})
    if stage.published or (stage.claimed and claim is None):
        raise InvalidArgument("the stage is published already", field="stage")
    if stage.sink:
        raise InvalidArgument("the stage is a sink's: its batch is published", field="stage")
    return stage


def _taken(work: Work, stage: Stage) -> Int64s:
    """Ids of staged rows whose key is taken, or stood earlier in the same stage."""
    taken = []
    partitions = work.state.topics[stage.topic].partitions
    for partition in partitions.made():
        mine = [b for b in stage.batches if b.partition == partition.number]
        keyed = [b for b in mine if b.hashes is not None]
        if not keyed:
            continue
        hashes = np.concatenate([b.hashes for b in keyed if b.hashes is not None])
        sequences = np.concatenate([b.sequences for b in keyed])
        given = hashes[:, 0] != 0
        hashes, sequences = hashes[given], sequences[given]
        found = partition.find_keys(hashes)
        conflict = (found > 0) & partition.is_live(found)
        again = repeated(hashes[:, 0])
        if again is not None:
            conflict |= again
        taken.append(sequences[conflict] | partition.number << SEQUENCE_BITS)
    return np.concatenate(taken) if taken else np.zeros(0, dtype=np.int64)
