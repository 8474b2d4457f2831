"""Deciding stages: publish, landing in bounded steps, and dropping what nobody publishes."""

from __future__ import annotations

import numpy as np

from fasti.core import events as ev
from fasti.core.commands import DropStage, Publish
from fasti.core.replies import Done
from fasti.core.timeline.partition import FOREVER
from fasti.core.timeline.stages import Stage
from fasti.core.work import Work, repeated
from fasti.errors import AlreadyExists, InvalidArgument, NotFound
from fasti.model import SEQUENCE_BITS

LANDED_PER_STEP = 16_384


def publish(work: Work, command: Publish) -> Done:
    """One event makes a stage's messages live. The value is (rows, ids whose key was taken)."""
    stage = _stage(work, command.stage)
    taken = _taken(work, stage)
    if len(taken) and not command.skip_conflicts:
        raise AlreadyExists(
            f"{len(taken)} of the stage's keys are taken by live messages",
            details={"stage": command.stage, "conflicts": len(taken)},
        )
    rows = stage.rows
    work.emit(ev.Published(work.now_us, command.stage, taken))
    return Done((rows - len(taken), taken))


def drop_stage(work: Work, command: DropStage) -> Done:
    """The stage's messages are dropped, unpublished."""
    stage = _stage(work, command.stage)
    rows = stage.rows
    work.emit(ev.StageDropped(work.now_us, command.stage, rows))
    return Done(rows)


def land(work: Work) -> bool:
    """Lets published rows land, and drops old stages; True if there is more to do."""
    budget = LANDED_PER_STEP
    for name, stage in list(work.state.publishing.items()):
        count = min(budget, stage.rows)
        work.emit(ev.Landed(work.now_us, name, count))
        budget -= count
        if budget <= 0:
            return True
    for name, stage in list(work.state.stages.items()):
        if not stage.published and (stage.dropping or _expiry_us(work, stage) <= work.now_us):
            work.emit(ev.StageDropped(work.now_us, name, min(budget, stage.rows)))
            return True
    return False


def next_expiry_us(work: Work) -> int:
    """When the next unpublished stage is too old."""
    moments = [
        _expiry_us(work, stage) for stage in work.state.stages.values() if not stage.published
    ]
    return min(moments, default=FOREVER)


def _expiry_us(work: Work, stage: Stage) -> int:
    return stage.opened_at_us + work.state.topics[stage.topic].settings.stage_age_us


def _stage(work: Work, name: str) -> Stage:
    stage = work.state.stages.get(name)
    if stage is None or stage.dropping:
        raise NotFound(f"there is no stage {name!r}: it expired, or never was", details={})
    if stage.published:
        raise InvalidArgument("the stage is published already", field="stage")
    return stage


def _taken(work: Work, stage: Stage) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ids of staged rows whose key is taken, or stood earlier in the same stage."""
    taken = []
    partitions = work.state.topics[stage.topic].partitions
    for partition in partitions:
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
