"""Sinks in the engine: who gets a key, who waits, and what goes with a topic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.core import commands as co
from fasti.core.engine import Engine
from fasti.core.keys import Keys, Rows
from fasti.core.sinks import claims
from fasti.core.sinks.commands import (
    PARCELS,
    Carry,
    DescribeSinks,
    DropStages,
    ForgetSink,
    PublishBatch,
    SinkChanged,
)
from fasti.core.timeline import staging
from fasti.errors import (
    AlreadyExists,
    FastiError,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    Overloaded,
)
from fasti.model import DAY_US, HOUR_US, Limits, Outcome, TopicSettings

NOW_US = 1_700_000_000_000_000
SEED = (1, 2)


class Shard:
    """An engine with two topics, and a clock that is moved by hand."""

    def __init__(self, **limits: int) -> None:
        self.engine = Engine(limits=Limits(**limits))
        self.engine.start(0)
        self.now_us = NOW_US
        self.effects: list[Any] = []
        for name in ("t", "u"):
            self.call(co.CreateTopic(name, TopicSettings(stage_age_us=HOUR_US)))
        self.call(co.CreateTopic(PARCELS))

    @property
    def state(self) -> Any:
        return self.engine.state

    def step(self, *commands: Any) -> Any:
        self.now_us += 1
        step = self.engine.step(list(commands), self.now_us, 0)
        self.effects += step.effects
        return step

    def call(self, command: Any) -> Any:
        reply = self.step(command).replies[0]
        if reply.error is not None:
            raise reply.error
        return getattr(reply, "value", reply)

    def rows(self, *keys: str | None, topic: str = "t") -> co.Produce:
        rows = Rows.of([b"x"] * len(keys), key=list(keys))
        named = Keys(pa.array(keys, pa.string()), SEED)
        return co.Produce(topic, rows, co.When(delay_us=DAY_US), keys=named)

    def stage(self, sink: str, batch: int, *keys: str | None, topic: str = "t") -> str:
        command = self.rows(*keys, topic=topic)
        command.stage = f"{sink}/{topic}/{batch}/0/0"
        command.staging = co.Staging(sink, batch, "produce", topic, 0)
        self.call(command)
        return command.stage

    def parcels(self, sink: str, batch: int, *counts: int, topic: str = "t") -> str:
        rows = Rows.of([b"parcel"] * len(counts))
        command = co.Produce(PARCELS, rows, co.When(due_us=np.array(counts, dtype=np.int64)))
        command.stage = f"{sink}/{topic}/{batch}/0/0"
        command.staging = co.Staging(sink, batch, "cancel", topic, 0)
        self.call(command)
        return command.stage

    def publish(self, sink: str, batch: int, *stages: str, **more: Any) -> Any:
        operation = more.pop("operation", "produce")
        return self.call(PublishBatch(sink, batch, operation, list(stages), **more))

    def has(self, key: str, topic: str = "t") -> bool:
        named = co.Target(keys=Keys(pa.array([key]), SEED))
        return bool(self.call(co.Get(topic, named)).status[0] == Outcome.OK)


def refused(call: Any) -> FastiError:
    with pytest.raises(FastiError) as found:
        call()
    return found.value


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_a_claimed_key_is_taken_until_it_is_given_back(shard: Shard) -> None:
    """And then it names again what it named before."""
    shard.call(shard.rows("taken"))
    done = shard.call(shard.rows("was"))
    shard.call(co.Cancel("t", co.Target(ids=done.ids)))
    stage = shard.stage("s", 0, "was", "new", "taken")
    claim = claims.begin(shard.state, [stage])
    while claims.go_on(shard.state, claim, 1):
        shard.step()
    assert (claim.conflicts, len(claim.locations)) == (1, 1)
    for key in ("was", "new"):
        assert shard.call(shard.rows(key)).status[0] == Outcome.CONFLICT
    assert isinstance(
        refused(lambda: shard.publish("s", 0, stage, claim=claims.register(shard.state, claim))),
        AlreadyExists,
    )
    while claims.take_back(shard.state, claim, 1):
        shard.step()
    by_key = co.Target(keys=Keys(pa.array(["was", "new"]), SEED))
    assert shard.call(co.Cancel("t", by_key)).status.tolist() == [
        Outcome.CANCELLED,
        Outcome.NOT_FOUND,
    ]
    assert shard.call(shard.rows("new")).status[0] == Outcome.OK


def test_what_is_being_claimed_stays_as_it_is(shard: Shard) -> None:
    stage = shard.stage("s", 0, "a")
    claim = claims.begin(shard.state, [stage])
    more = shard.rows("b")
    more.stage, more.staging = stage, co.Staging("s", 0, "produce", "t", 1)
    assert isinstance(refused(lambda: shard.call(more)), InvalidArgument)
    assert isinstance(refused(lambda: shard.call(DropStages("s", [stage]))), IllegalTransition)
    assert isinstance(refused(lambda: shard.call(ForgetSink("s"))), IllegalTransition)
    # Two at once: the second is to come again, whatever it asked for.
    for skip in (True, False):
        assert isinstance(refused(lambda: shard.publish("s", 0, stage, skip=skip)), Overloaded)  # noqa: B023
    with pytest.raises(Overloaded):
        claims.begin(shard.state, [stage])
    # Nor does it expire.
    shard.now_us += 2 * HOUR_US
    shard.step()
    assert stage in shard.state.stages
    assert not claims.go_on(shard.state, claim)
    assert shard.publish("s", 0, stage, claim=claims.register(shard.state, claim)).done is False
    assert not claims.take_back(shard.state, claim)
    assert shard.has("a")


def test_a_claim_of_another_engine_decides_nothing(shard: Shard) -> None:
    other = Shard()
    claim = claims.begin(other.state, [other.stage("s", 0, "a")])
    assert not claims.go_on(other.state, claim)
    stage = shard.stage("s", 0, "a")
    error = refused(lambda: shard.publish("s", 0, stage, claim=claims.register(other.state, claim)))
    assert isinstance(error, Overloaded)
    assert error.retryable


def test_a_topic_that_goes_takes_what_was_staged_along(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LANDED_PER_STEP", 1)
    stages = [shard.stage("s", 0, "a", "b", "c", topic=topic) for topic in ("t", "u")]
    parcels = shard.parcels("p", 0, 5, topic="t")
    published = shard.parcels("q", 0, 7, topic="t")
    shard.publish("q", 0, published, operation="cancel")
    shard.publish("s", 0, *stages)
    shard.call(co.DeleteTopic("t"))
    while shard.state.publishing.keys() - {published}:
        shard.step()
    (view,) = shard.call(DescribeSinks("s"))
    assert view.done
    assert sum(view.outcomes.values()) == 6
    assert view.outcomes["gone"] >= 1
    assert isinstance(refused(lambda: shard.publish("p", 0, parcels)), NotFound)
    # What was published for it is carried out as far as it can be.
    assert shard.call(Carry(published, 2, [], {"not_found": 7}))
    assert shard.call(DescribeSinks("q"))[0].outcomes == {"not_found": 7}


def test_the_next_batch_waits_for_the_last(shard: Shard) -> None:
    stage = shard.parcels("s", 0, 2, 3)
    shard.publish("s", 0, stage, operation="cancel")
    later = shard.parcels("s", 1, 4)
    busy = refused(lambda: shard.publish("s", 1, later, operation="cancel"))
    assert isinstance(busy, Overloaded)
    assert isinstance(refused(lambda: shard.call(ForgetSink("s"))), IllegalTransition)
    again = shard.publish("s", 0, stage, operation="cancel")
    assert (again.repeated, again.done) == (True, False)
    assert not shard.call(Carry(stage, 2, []))
    assert shard.call(Carry(stage, 1, [], {"ok": 2}))
    assert not any(isinstance(effect, SinkChanged) for effect in shard.effects)
    assert shard.call(Carry(stage, 2, [], {"ok": 2, "dead": 1}))
    assert [e.batch for e in shard.effects if isinstance(e, SinkChanged)] == [0]
    again = shard.publish("s", 0, stage, operation="cancel")
    assert (again.done, again.outcomes) == (True, {"ok": 4, "dead": 1})
    assert shard.publish("s", 1, later, operation="cancel").repeated is False


def test_half_a_parcel_is_never_carried_out(shard: Shard) -> None:
    """Its commands happen all, or it stays."""
    shard.call(shard.rows("a"))
    stage = shard.parcels("s", 0, 2)
    shard.publish("s", 0, stage, operation="cancel")
    target = co.Target(keys=Keys(pa.array(["a"]), SEED))
    parts = [co.Cancel("t", target), co.Cancel("gone", target)]
    assert isinstance(refused(lambda: shard.call(Carry(stage, 1, parts))), NotFound)
    assert shard.has("a")
    assert shard.call(Carry(stage, 1, parts[:1], {"not_found": 1}))
    assert not shard.has("a")
    assert shard.call(DescribeSinks("s"))[0].outcomes == {"ok": 1, "not_found": 1}


def test_stages_of_older_batches_go_with_the_next(shard: Shard) -> None:
    old, left, later = (shard.stage("s", batch, "a") for batch in (0, 1, 2))
    other = shard.stage("r", 0, "a")
    assert shard.publish("s", 1, left).outcomes == {}
    assert set(shard.state.stages) == {later, other}
    assert isinstance(refused(lambda: shard.publish("s", 2, old)), NotFound)
    # Staged once more by somebody who didn't know: it goes when it is published.
    again = shard.stage("s", 1, "z")
    assert shard.publish("s", 1, again).repeated
    assert set(shard.state.stages) == {later, other}


def test_what_nobody_publishes_goes_by_the_age_of_its_topic(shard: Shard) -> None:
    shard.stage("s", 0, "a")
    shard.parcels("s", 0, 3, topic="u")
    shard.now_us += HOUR_US - 100
    shard.step()
    assert len(shard.state.stages) == 2
    assert shard.step().wake_at_us is not None
    shard.now_us += 200
    shard.step()
    assert shard.state.stages == {}
    assert shard.call(DescribeSinks()) == []


def test_a_stage_that_is_a_sink_s_is_nobody_else_s(shard: Shard) -> None:
    stage = shard.stage("s", 0, "a")
    for command in (co.Publish(stage), co.DropStage(stage)):
        assert isinstance(refused(lambda: shard.call(command)), InvalidArgument)  # noqa: B023
    plain = shard.rows("b")
    plain.stage = stage
    assert isinstance(refused(lambda: shard.call(plain)), InvalidArgument)
    plain.stage = "plain"
    shard.call(plain)
    assert isinstance(refused(lambda: shard.publish("s", 0, "plain")), InvalidArgument)
