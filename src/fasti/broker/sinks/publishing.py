"""Publishing: the keys of a large batch are claimed piece by piece, then one event decides.

Handler threads. Claims belong to one engine: when the shard recovers they are gone, and the publisher
is asked to begin again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fasti.broker.reading import MOVED
from fasti.core.commands import Publish
from fasti.core.sinks.commands import (
    ClaimKeys,
    ClaimProgress,
    ClaimStages,
    PublishBatch,
    ReleaseKeys,
    SinkAnswer,
)
from fasti.errors import AlreadyExists, Closed, Moved, Overloaded

if TYPE_CHECKING:
    from fasti.broker.caller import Caller
    from fasti.broker.service import Service

T = TypeVar("T")


def publish_batch(service: Service, command: PublishBatch) -> SinkAnswer:
    """Decides a batch. Raises what the engine says; taken keys are named."""

    def decide(claim: int) -> SinkAnswer:
        answer: SinkAnswer = service.command(replace(command, claim=claim)).value
        return answer

    try:
        if command.skip:
            return decide(0)
        claim = ClaimStages(command.stages, command.sink, command.batch)
        return _claimed(service, claim, decide, may_fail=True)
    except AlreadyExists as error:
        raise _named(service, error) from error


def publish_stage(
    service: Service, caller: Caller, stage: str, skip_conflicts: bool
) -> tuple[int, Any]:
    """Publishes a stage that is no sink's: how many rows, and the ids that were left out."""

    def decide(claim: int) -> tuple[int, Any]:
        command = Publish(stage, skip_conflicts, claim)
        published: tuple[int, Any] = service.command(command, caller).value
        return published

    return _claimed(service, ClaimStages([stage]), decide, may_fail=False)


def _claimed(
    service: Service, stages: ClaimStages, decide: Callable[[int], T], may_fail: bool
) -> T:
    """Claims all keys of stages, if they are many, and decides; afterwards none stays claimed by it."""
    shard = service.placement.catalogue
    engine = shard.engine
    try:
        claim: int = shard.ask(stages, engine).result()
        if not claim:
            return decide(0)
        try:
            refusal = _repeat(lambda: shard.ask(ClaimKeys(claim), engine)).refusal
            if refusal is not None and may_fail:
                # Told when what stands in the way is durable.
                shard.submit([]).result()
                raise refusal
            return decide(claim)
        finally:
            # Nothing is left to be given back if the batch was decided by it.
            with suppress(Closed, Moved):
                _repeat(lambda: shard.ask(ReleaseKeys(claim), engine))
    except Closed:
        if shard.is_stopped or shard.engine is engine:
            raise
        raise Overloaded(
            "the broker has recovered: publish it again", retry_after_us=20_000
        ) from None


def _repeat(ask: Callable[[], Future[ClaimProgress]]) -> ClaimProgress:
    """Until there is no more to do; the next piece waits in the inbox while one is decided."""
    waiting = deque([ask(), ask()])
    progress = ClaimProgress(True, None)
    while waiting:
        progress = waiting.popleft().result()
        if progress.more:
            waiting.append(ask())
    return progress


def _named(service: Service, error: AlreadyExists) -> AlreadyExists:
    """With the keys that are taken, as far as they can be read."""
    details = {name: value for name, value in error.details.items() if name != "locations"}
    locations = np.array(error.details.get("locations", []), dtype=np.int64)
    keys: list[str] = []
    try:
        payloads = service.placement.catalogue.store.payloads
        keys = payloads.gather(locations, names=("key",), lost=True).column("key").to_pylist()
    except MOVED:
        pass  # A checkpoint has just moved them: how many there are must do.
    shown = ", ".join(repr(key) for key in keys[:3])
    message = f"{error.message}: {shown}" if keys else error.message
    return AlreadyExists(message, details={**details, "keys": keys})
