"""Sinks beside a naive model: stages, publications, repeats, conflicts, expiry, restarts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fasti.core.timeline import staging
from fasti.model import DAY_US, MINUTE_US
from tests.properties.sinks_rig import KEYS, TOPICS, Row, SinksRig

SINKS = ["a", "b", "c/1", "d"]
TOPIC = st.sampled_from(sorted(TOPICS))


class SinksMachine(RuleBasedStateMachine):
    """Everything that can be asked of sinks."""

    def __init__(self) -> None:
        super().__init__()
        self.rig: SinksRig
        self._serial = 0

    @initialize()
    def start(self) -> None:
        self.rig = SinksRig()

    def _rows(self, draw: Any, keyed: bool = False) -> list[Row]:
        keys = st.sampled_from(KEYS if keyed else [None, None, *KEYS])
        rows = []
        for key in draw(st.lists(keys, min_size=1, max_size=6)):
            self._serial += 1
            rows.append((key, b"%d" % self._serial))
        return rows

    def _batch(self, draw: Any, sink: str) -> int:
        """Mostly the next one, sometimes one that was."""
        known = self.rig.model.sinks.get(sink)
        last = -1 if known is None else known.batch
        return max(0, last + int(draw(st.sampled_from([1, 1, 1, 2, 0, -1]))))

    @rule(topic=TOPIC, data=st.data())
    def produce(self, topic: str, data: st.DataObject) -> None:
        self.rig.produce(topic, self._rows(data.draw))

    @rule(topic=TOPIC, key=st.sampled_from(KEYS))
    def cancel(self, topic: str, key: str) -> None:
        self.rig.cancel(topic, key)

    @rule(
        sink=st.sampled_from(SINKS),
        number=st.integers(0, 2),
        operation=st.sampled_from(["produce", "produce", "cancel"]),
        topic=TOPIC,
        data=st.data(),
    )
    def stage(
        self, sink: str, number: int, operation: str, topic: str, data: st.DataObject
    ) -> None:
        batch = self._batch(data.draw, sink)
        rows = self._rows(data.draw, keyed=operation == "cancel")
        self.rig.stage(sink, batch, number, operation, topic, rows)

    @rule(skip=st.booleans(), claim=st.sampled_from([0, 1, 3]), data=st.data())
    def publish(self, skip: bool, claim: int, data: st.DataObject) -> None:
        stages = self.rig.model.stages
        places = sorted({(s.sink, s.batch, s.operation) for s in stages.values()})
        if not places or data.draw(st.integers(0, 5)) == 0:
            sink = data.draw(st.sampled_from(SINKS))
            self.rig.publish(sink, self._batch(data.draw, sink), "produce", [], skip, claim)
            return
        place = data.draw(st.sampled_from(places))
        mine = [n for n, s in stages.items() if (s.sink, s.batch, s.operation) == place]
        names = data.draw(st.lists(st.sampled_from(mine), unique=True))
        self.rig.publish(*place, names, skip, claim)

    @precondition(lambda self: self.rig.model.stages)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rig.model.stages)))
        self.rig.drop(self.rig.model.stages[name].sink, [name])

    @rule(sink=st.sampled_from(SINKS))
    def forget(self, sink: str) -> None:
        self.rig.forget(sink)

    @rule(span_us=st.sampled_from([1, MINUTE_US, DAY_US // 2, DAY_US]))
    def time_passes(self, span_us: int) -> None:
        self.rig.wait(span_us)

    @rule()
    def step(self) -> None:
        self.rig.step()

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    @rule()
    def look(self) -> None:
        self.rig.check()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()
            self.rig.restart()
            self.rig.check()
            self.rig.shard.close()


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "LANDED_PER_STEP", 3)


@pytest.mark.timeout(300)
def test_shard_and_model_agree() -> None:
    run_state_machine_as_test(
        SinksMachine, settings=settings(max_examples=50, stateful_step_count=30)
    )


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_shard_and_model_agree_for_long() -> None:
    run_state_machine_as_test(
        SinksMachine, settings=settings(max_examples=2_000, stateful_step_count=80)
    )
