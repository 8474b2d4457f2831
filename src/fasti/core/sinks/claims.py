"""Claiming the keys of a batch piece by piece, before it is decided.

A batch of millions of rows is published by one event, which must find all of its keys free. To look
all of them up in one step would hold up everybody, so whoever publishes claims them beforehand, some
thousand in a step: each free key names its staged row from then on, and others who
want it find it taken. When all are claimed the event is decided at once; if one was taken, or stands
in the batch twice, the claims are taken back, some thousand at a time.

Nothing of this is durable: keys are an index, which a restart makes anew from events. While a stage is
claimed it stays as it is: nobody writes to it, drops it or lets it expire.

A publisher's inputs are `ClaimStages`, `ClaimKeys` until there are no more, the publication, which
names the claim, and `ReleaseKeys`. An engine that is loaded after a failure knows no claims.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s, repeated_keys
from fasti.core.replies import Done
from fasti.core.sinks.commands import (
    CLAIMED_PER_CALL,
    ClaimKeys,
    ClaimProgress,
    ClaimStages,
    ReleaseKeys,
)
from fasti.core.timeline.partition import Partition
from fasti.core.timeline.stages import Stage
from fasti.errors import AlreadyExists, IllegalTransition, Overloaded
from fasti.model import SEQUENCE_BITS

if TYPE_CHECKING:
    from fasti.core.state import ShardState
    from fasti.core.work import Work

Int64s = NDArray[np.int64]

# Fewer keys than this are looked up in the step that decides.
_FEW_KEYS = 8_192
# Of so many rows whose key is taken it is said which.
NAMED_MAX = 100


@dataclass(slots=True)
class _Made:
    """Keys that were claimed, and what they named before."""

    partition: Partition
    hashes: UInt64s
    before: Int64s


@dataclass(slots=True)
class Claim:
    """The keys of some stages. `conflicts` counts rows whose key is taken."""

    stages: dict[str, Stage]
    conflicts: int = 0
    # Ids of those rows; all of them if somebody wants to leave them out.
    taken: list[Int64s] = field(default_factory=list)
    # Where the payloads of the first of them lie, which have the keys' bytes.
    locations: list[int] = field(default_factory=list)
    done: bool = False
    _made: list[_Made] = field(default_factory=list)
    _stage: int = 0
    _batch: int = 0
    _row: int = 0

    def check(self, stages: dict[str, Stage]) -> None:
        """Raises unless the keys of these very stages are claimed.

        An engine that was dropped after a failed write has taken its claims along.
        """
        same = all(stages.get(name) is stage for name, stage in self.stages.items())
        if not self.done or not same or len(stages) != len(self.stages):
            raise _not_claimed()


def _not_claimed() -> Overloaded:
    return Overloaded(
        "the keys that were claimed are not those of the batch: publish it again",
        retry_after_us=20_000,
    )


def claim_stages(work: Work, command: ClaimStages) -> Done:
    """The value is the claim's number; 0 if there is nothing to claim beforehand."""
    state = work.state
    stages = {name: state.stages.get(name) for name in command.stages}
    if command.sink:
        known = state.sinks.all.get(command.sink)
        if known is not None and (command.batch <= known.batch or not known.done):
            return Done(0)
        if any(stage is None or stage.sink != command.sink for stage in stages.values()):
            return Done(0)
    keyed = {}
    for name, stage in stages.items():
        if stage is None or stage.published or stage.dropping or stage.claimed:
            return Done(0)
        if stage.has_keys and not stage.is_parcels:
            keyed[name] = stage.rows
    if sum(keyed.values()) <= _FEW_KEYS:
        return Done(0)
    return Done(register(state, begin(state, list(keyed))))


def register(state: ShardState, claim: Claim) -> int:
    """The number that inputs name the claim by."""
    state.last_claim += 1
    state.claims[state.last_claim] = claim
    return state.last_claim


def find(state: ShardState, number: int) -> Claim | None:
    """The claim of that number; 0: none. Raises `overloaded` if an earlier engine had it."""
    if not number:
        return None
    claim = state.claims.get(number)
    if claim is None:
        raise _not_claimed()
    return claim


def claim_keys(work: Work, command: ClaimKeys) -> Done:
    """Some thousand keys are claimed. The value is a `ClaimProgress`."""
    claim = find(work.state, command.claim)
    if claim is None:
        raise _not_claimed()
    more = go_on(work.state, claim)
    return Done(ClaimProgress(more, refusal(claim) if claim.conflicts else None))


def release_keys(work: Work, command: ReleaseKeys) -> Done:
    """Some thousand keys are given back. A claim that has ended is fine."""
    claim = work.state.claims.get(command.claim)
    more = claim is not None and take_back(work.state, claim)
    if not more:
        work.state.claims.pop(command.claim, None)
    return Done(ClaimProgress(more, None))


def refusal(claim: Claim) -> AlreadyExists:
    """Why a batch is not published."""
    return AlreadyExists(
        f"{claim.conflicts} of the batch's keys are taken by live messages, or stand in it twice",
        details={"conflicts": claim.conflicts, "locations": claim.locations},
    )


def begin(state: ShardState, names: list[str]) -> Claim:
    """Nothing is claimed yet, but the stages stay as they are from now on."""
    stages = {name: state.stages[name] for name in names}
    if any(stage.claimed or stage.published or stage.dropping for stage in stages.values()):
        raise Overloaded(
            "another call is publishing a stage of the batch, or drops it", retry_after_us=20_000
        )
    for stage in stages.values():
        stage.claimed = True
    state.stage_expiry_us = None
    return Claim(stages)


def go_on(state: ShardState, claim: Claim, rows_max: int = CLAIMED_PER_CALL) -> bool:
    """Claims the next keys; True if there is more to do."""
    stages = list(claim.stages.items())
    while rows_max > 0:
        if claim._stage == len(stages):
            claim.done = True
            return False
        name, stage = stages[claim._stage]
        if state.stages.get(name) is not stage:
            raise IllegalTransition(f"the stage {name!r} is gone: its topic was deleted")
        if claim._batch == len(stage.batches):
            claim._stage, claim._batch = claim._stage + 1, 0
            continue
        batch = stage.batches[claim._batch]
        rows = slice(claim._row, claim._row + rows_max)
        sequences = batch.sequences[rows]
        if batch.hashes is not None:
            partition = state.topics[stage.topic].partitions[batch.partition]
            _claim(claim, partition, batch.hashes[rows], sequences)
            rows_max -= len(sequences)
        claim._row += len(sequences)
        if batch.hashes is None or claim._row == len(batch.sequences):
            claim._batch, claim._row = claim._batch + 1, 0
    return True


def _claim(claim: Claim, partition: Partition, hashes: UInt64s, sequences: Int64s) -> None:
    found, taken = look_up(partition, hashes)
    if taken.any():
        rows = sequences[taken]
        claim.conflicts += len(rows)
        claim.taken.append(rows | partition.number << SEQUENCE_BITS)
        if len(claim.locations) < NAMED_MAX:
            slots = partition.ledger.slots(rows[: NAMED_MAX - len(claim.locations)])
            claim.locations += partition.arena.location.take(slots).tolist()
        free = ~taken
        hashes, sequences, found = hashes[free], sequences[free], found[free]
    new = not found.any()
    partition.claim_keys(hashes, sequences, new)
    claim._made.append(_Made(partition, hashes, found))


def look_up(partition: Partition, hashes: UInt64s) -> tuple[Int64s, NDArray[np.bool_]]:
    """What the keys name now, and which of the rows can't have theirs."""
    given = hashes[:, 0] != 0
    found = partition.find_keys(hashes)
    found[~given] = 0
    taken = (found > 0) & partition.is_live(found)
    again = repeated_keys(hashes)
    if again is not None:
        taken |= again
    return found, taken


def take_back(state: ShardState, claim: Claim, rows_max: int = CLAIMED_PER_CALL) -> bool:
    """Gives keys back, the last ones first; True if there is more to do."""
    while claim._made and rows_max > 0:
        made = claim._made.pop()
        rows_max -= len(made.hashes)
        topic = state.topics.get(made.partition.topic)
        number = made.partition.number
        if topic is not None and topic.partitions.get(number) is made.partition:
            given = made.hashes[:, 0] != 0
            made.partition.unclaim_keys(made.hashes[given], made.before[given])
    if claim._made:
        return True
    for stage in claim.stages.values():
        stage.claimed = False
    state.stage_expiry_us = None
    return False


def settle(claim: Claim) -> None:
    """The batch was decided: the keys stay claimed."""
    claim._made.clear()
