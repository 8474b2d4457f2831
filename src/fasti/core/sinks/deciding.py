"""Deciding sinks: publication, dropping, forgetting, and carrying out parcels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fasti.core.events import StageDropped
from fasti.core.replies import Done, Reply
from fasti.core.sinks import claims
from fasti.core.sinks.book import Sink
from fasti.core.sinks.commands import (
    Carry,
    DescribeSinks,
    DropStages,
    ForgetSink,
    ParcelView,
    PublishBatch,
    ReadParcels,
    SinkAnswer,
    SinkChanged,
    SinkSums,
    SinkView,
    SumSinks,
)
from fasti.core.sinks.events import SinkCarried, SinkForgotten, SinkPublished
from fasti.core.timeline.stages import Stage
from fasti.core.work import Work
from fasti.errors import (
    FastiError,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    Overloaded,
)
from fasti.model import Outcome

Handle = Callable[[Work, Any], Reply]

_WORDS = [outcome.word for outcome in Outcome]
_BUSY_US = 20_000


def publish_batch(work: Work, command: PublishBatch) -> Done:
    """One event decides; the value is a `SinkAnswer`."""
    state = work.state
    known = state.sinks.all.get(command.sink)
    if known is not None and command.batch <= known.batch:
        if command.dry_run:
            return Done(_answer(known, command.batch, repeated=True))
        # Staged again by somebody who didn't know: it will never be published.
        for name, stage in state.sinks.stages_of(command.sink).items():
            if name in command.stages and not stage.published and not stage.dropping:
                work.emit(StageDropped(work.now_us, name))
        return Done(_answer(known, command.batch, repeated=True))
    check_room(work, command.sink)
    if known is not None and not known.done:
        raise Overloaded(
            f"batch {known.batch} of {command.sink!r} is still carried out", retry_after_us=_BUSY_US
        )
    claim = claims.find(state, command.claim)
    stages = _stages(work, command, claim)
    claimed = _claim(work, command, claim, stages)
    if command.dry_run:
        return Done(SinkAnswer(command.batch, False, True, {}))
    place = (work.now_us, command.sink, command.batch, command.operation)
    work.emit(SinkPublished(*place, int(command.skip), list(stages), claimed))
    if claim is not None:
        claims.settle(claim)
    return Done(_answer(state.sinks.all[command.sink], command.batch, repeated=False))


def check_room(work: Work, sink: str) -> None:
    """A sink that is new needs a place to be remembered in."""
    limit = work.limits.sinks_max
    if sink not in work.state.sinks.all and len(work.state.sinks.all) >= limit:
        raise InvalidArgument(
            f"{limit} sinks are remembered: forget one that is not used any more",
            field="sinks_max",
            limit=limit,
        )


def _answer(sink: Sink, batch: int, repeated: bool) -> SinkAnswer:
    if batch < sink.batch:
        return SinkAnswer(batch, repeated, True, {})
    return SinkAnswer(batch, repeated, sink.done, dict(sink.outcomes))


def _stages(work: Work, command: PublishBatch, claim: claims.Claim | None) -> dict[str, Stage]:
    """The stages that are named, each once. Raises unless all may be published."""
    found: dict[str, Stage] = {}
    missing = []
    for name in command.stages:
        stage = work.state.stages.get(name)
        if stage is None or stage.dropping:
            missing.append(name)
        elif (stage.sink, stage.batch) != (command.sink, command.batch):
            raise InvalidArgument(
                f"the stage {name!r} doesn't belong to batch {command.batch} of {command.sink!r}",
                field="stages",
            )
        elif stage.operation != command.operation:
            raise InvalidArgument(
                f"the stage {name!r} is for {stage.operation!r}, not {command.operation!r}",
                field="operation",
            )
        elif stage.claimed and (claim is None or name not in claim.stages):
            raise Overloaded(
                f"another call is publishing the stage {name!r}", retry_after_us=_BUSY_US
            )
        elif name in found:
            raise InvalidArgument(f"the stage {name!r} is named twice", field="stages")
        else:
            _check_bindings(work, stage)
            found[name] = stage
    if missing:
        raise NotFound(
            f"there is no stage {missing[0]!r}: it expired, was dropped, or never was",
            details={"stages": missing[:100]},
        )
    return found


def _check_bindings(work: Work, stage: Stage) -> None:
    topic = work.state.topics[stage.topic]
    if not stage.is_parcels and (topic.bindings or topic.settings.relay):
        raise InvalidArgument(
            f"{topic.name!r} has bindings by now: it can't be staged into", field="topic"
        )


def _claim(
    work: Work, command: PublishBatch, claim: claims.Claim | None, stages: dict[str, Stage]
) -> bool:
    """Whether the keys of the batch are claimed. Raises if one is not free."""
    keyed = {n: s for n, s in stages.items() if s.has_keys and not s.is_parcels}
    if command.skip or not keyed:
        return False
    if claim is None:
        claim = claims.begin(work.state, list(keyed))
        try:
            while claims.go_on(work.state, claim):
                pass
        finally:
            if claim.conflicts or not claim.done or command.dry_run:
                while claims.take_back(work.state, claim):
                    pass
    else:
        claim.check(keyed)
    if claim.conflicts:
        raise claims.refusal(claim)
    return True


def drop_stages(work: Work, command: DropStages) -> Done:
    """The value is how many rows are dropped."""
    rows = 0
    for name in dict.fromkeys(command.stages):
        stage = work.state.stages.get(name)
        if stage is None or stage.dropping:
            continue
        if stage.sink != command.sink:
            raise InvalidArgument(f"{name!r} is not a stage of {command.sink!r}", field="stages")
        if stage.published or stage.claimed:
            raise IllegalTransition(f"the stage {name!r} is published, or about to be")
        rows += stage.total
    for name in dict.fromkeys(command.stages):
        stage = work.state.stages.get(name)
        if stage is not None and not stage.dropping:
            work.emit(StageDropped(work.now_us, name))
    return Done(rows)


def forget_sink(work: Work, command: ForgetSink) -> Done:
    """The value says whether anybody knew it."""
    book = work.state.sinks
    known = book.all.get(command.sink)
    stages = book.stages_of(command.sink)
    if any(stage.published or stage.claimed for stage in stages.values()):
        raise IllegalTransition(f"a batch of {command.sink!r} is being carried out")
    if known is None and not stages:
        return Done(False)
    work.emit(SinkForgotten(work.now_us, command.sink))
    return Done(True)


def describe_sinks(work: Work, command: DescribeSinks) -> Done:
    """The value is a list of `SinkView`, by name."""
    state = work.state
    names = {*state.sinks.all, *(stage.sink for stage in state.stages.values() if stage.sink)}
    if command.sink:
        wanted = [command.sink] if command.sink in names else []
    else:
        wanted = sorted(name for name in names if name > command.after)[: command.limit]
    counts: dict[str, list[int]] = {name: [0, 0] for name in wanted}
    for stage in state.stages.values():
        if stage.sink in counts and not stage.published:
            counts[stage.sink][0] += 1
            counts[stage.sink][1] += stage.total
    views = []
    for name in wanted:
        sink = state.sinks.all.get(name) or Sink(name, -1, "", 0)
        views.append(
            SinkView(
                name,
                sink.batch,
                sink.operation,
                sink.done,
                sink.published_us,
                dict(sink.outcomes),
                *counts[name],
            )
        )
    return Done(views)


def sum_sinks(work: Work, query: SumSinks) -> Done:
    """The value is a `SinkSums`."""
    state = work.state
    waiting = [stage for stage in state.stages.values() if not stage.published]
    sinks = sorted(state.sinks.all.values(), key=lambda sink: -sink.published_us)
    latest = [(sink.name, sink.batch, sink.done) for sink in sinks[: max(query.named, 0)]]
    rows = sum(stage.total for stage in waiting)
    return Done(SinkSums(len(waiting), rows, len(state.publishing), len(sinks), latest))


def read_parcels(work: Work, query: ReadParcels) -> Done:
    """The value is a list of `ParcelView`, of one stage."""
    state = work.state
    for name, stage in state.publishing.items():
        if not stage.is_parcels or not stage.batches:
            continue
        batch = stage.batches[0]
        sequences = batch.sequences[: max(query.limit, 0)]
        partition = state.topics[stage.topic].partitions[batch.partition]
        slots = partition.ledger.slots(sequences)
        target = state.topics.get(stage.target)
        named = target.name if target is not None else state.directory.topics.get(stage.target, "")
        kind = target.settings.kind if target is not None else ""
        columns = (
            sequences.tolist(),
            partition.arena.location.take(slots).tolist(),
            partition.arena.due.take(slots).tolist(),
        )
        return Done(
            [
                ParcelView(name, *parcel, stage.operation, named, kind, stage.owner)
                for parcel in zip(*columns, strict=True)
            ]
        )
    return Done([])


def carry(work: Work, command: Carry, handle: Handle) -> Done:
    """A parcel's commands and its end, whole or not at all; False if it is not the next one."""
    state = work.state
    stage = state.publishing.get(command.stage)
    if stage is None or not stage.batches:
        return Done(False)
    batch = stage.batches[0]
    if int(batch.sequences[0]) != command.sequence:
        return Done(False)
    outcomes = dict(command.outcomes)
    for reply in _carried_out(work, command, handle):
        counts = np.bincount(reply.status, minlength=len(_WORDS)).tolist()
        for word, rows in zip(_WORDS, counts, strict=True):
            if rows:
                outcomes[word] = outcomes.get(word, 0) + rows
    place = (stage.topic, batch.partition, command.sequence)
    work.emit(SinkCarried(work.now_us, stage.sink, command.stage, *place, outcomes))
    sink = state.sinks.all[stage.sink]
    if sink.done:
        work.effects.append(SinkChanged(sink.name, sink.batch))
    return Done(True)


def _carried_out(work: Work, command: Carry, handle: Handle) -> list[Reply]:
    if len(command.commands) < 2:
        # Refused before it does anything, or not at all.
        return [handle(work, part) for part in command.commands]
    undo = work.state.memory.undo
    work.begin_undo()
    try:
        replies = [handle(work, part) for part in command.commands]
    except FastiError:
        undo.rollback()
        work.abandon_group()
        raise
    undo.commit()
    return replies
