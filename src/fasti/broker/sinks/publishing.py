"""Publishing: the keys of a large batch are claimed piece by piece, then one event decides.

Handler threads. What runs in the sequencer runs between two steps and is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fasti.broker.reading import MOVED
from fasti.core import commands as co
from fasti.core.sinks import claims
from fasti.core.sinks.commands import PublishBatch, SinkAnswer
from fasti.core.sinks.deciding import refusal
from fasti.core.state import ShardState
from fasti.errors import AlreadyExists

if TYPE_CHECKING:
    from fasti.broker.service import Service

# Fewer keys than this are looked up in the step that decides.
_FEW_KEYS = 8_192


def publish_batch(service: Service, command: PublishBatch) -> SinkAnswer:
    """Decides a batch. Raises what the engine says; taken keys are named."""
    try:
        if not command.skip:
            names = _run(service, lambda state: _to_claim(state, command))
            if names:
                answer: SinkAnswer = _claimed(
                    service,
                    names,
                    lambda claim: service.command(replace(command, claim=claim)).value,
                    may_fail=True,
                )
                return answer
        answer = service.command(command).value
        return answer
    except AlreadyExists as error:
        raise _named(service, error) from error


def publish_stage(service: Service, stage: str, skip_conflicts: bool) -> tuple[int, Any]:
    """Publishes a stage that is no sink's: how many rows, and the ids that were left out."""
    names = _run(service, lambda state: _many_keys(state, [stage]))
    found: tuple[int, Any]
    if not names:
        found = service.command(co.Publish(stage, skip_conflicts)).value
        return found
    found = _claimed(
        service,
        names,
        lambda claim: service.command(co.Publish(stage, skip_conflicts, claim)).value,
        may_fail=False,
    )
    return found


def _to_claim(state: ShardState, command: PublishBatch) -> list[str]:
    """The stages whose keys are claimed beforehand: none, if they are few, or it is all in vain."""
    known = state.sinks.all.get(command.sink)
    if known is not None and (command.batch <= known.batch or not known.done):
        return []
    of_sink = [state.stages.get(name) for name in command.stages]
    if any(stage is None or stage.sink != command.sink for stage in of_sink):
        return []
    return _many_keys(state, command.stages)


def _many_keys(state: ShardState, names: list[str]) -> list[str]:
    keyed = {}
    for name in names:
        stage = state.stages.get(name)
        if stage is None or stage.published or stage.dropping or stage.claimed:
            return []
        if stage.has_keys and not stage.is_parcels:
            keyed[name] = stage.rows
    return list(keyed) if sum(keyed.values()) > _FEW_KEYS else []


def _claimed(
    service: Service, names: list[str], decide: Callable[[claims.Claim], Any], may_fail: bool
) -> Any:
    """Claims all keys of stages, and decides; if that comes to nothing none stays claimed."""
    claim: claims.Claim = _run(service, lambda state: claims.begin(state, names))
    try:
        _repeat(service, lambda state: claims.go_on(state, claim))
        if claim.conflicts and may_fail:
            # Told when what stands in the way is durable.
            service.placement.catalogue.submit([]).result()
            raise refusal(claim)
        return decide(claim)
    finally:
        # Nothing is left to be taken back if the batch was decided by it.
        _repeat(service, lambda state: claims.take_back(state, claim))


def _run(service: Service, function: Callable[[ShardState], Any]) -> Any:
    shard = service.placement.catalogue
    return shard.run(lambda: function(shard.engine.state)).result()


def _repeat(service: Service, function: Callable[[ShardState], bool]) -> None:
    """Until there is no more to do. The next call waits while one runs, a step between them."""
    shard = service.placement.catalogue
    waiting = deque([shard.run(lambda: function(shard.engine.state)) for _ in range(2)])
    while waiting:
        if waiting.popleft().result() and len(waiting) < 2:
            waiting.append(shard.run(lambda: function(shard.engine.state)))


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
