"""Key-value topics beside the naive model: versions, expiry, transactions, restarts, checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from fasti.core.calendar import slices
from fasti.core.calendar import wheel as calendar
from fasti.core.columns import index
from fasti.core.kv import kind as kv
from fasti.core.rows import memory
from fasti.core.timeline import partition
from fasti.model import DAY_US, MINUTE_US, SECOND_US
from tests.models.kv import ANY, Put
from tests.properties.kv_rig import KvRig, Op

KEYS = ["a", "b", "c", "d", "a\0x", "a\0y", "b\0x", "é"]
SPANS_US = st.sampled_from([1, 1_000, 16_384, SECOND_US, MINUTE_US, 10 * MINUTE_US, DAY_US])
SMALL: list[tuple[Any, str, int]] = [
    (kv, "EXPIRED_PER_CALL", 2),
    (kv, "_PLACES_PER_STEP", 2),
    (calendar, "ROWS_PER_CALL", 3),
    (slices, "LOADED_PER_CALL", 3),
    (slices, "LOADED_AHEAD_US", SECOND_US),
    (memory, "_GATHERED_MAX", 4),
    (partition, "_STALE_MIN", 4),
    (index, "_MOVED_MIN", 1),
]


class KvMachine(RuleBasedStateMachine):
    """Everything that can be asked of a key-value topic."""

    def __init__(self) -> None:
        super().__init__()
        self.rig: KvRig
        self._serial = 0

    @initialize(partitions=st.sampled_from([1, 3]))
    def start(self, partitions: int) -> None:
        self.rig = KvRig(partitions, KEYS)

    def _version(self, draw: Any, key: str) -> int:
        """What to expect: anything, nothing, the present version, or one that is over."""
        present = self.rig.model.entries.get(key)
        known = [] if present is None else [present.version, present.version, present.version - 1]
        older = self.rig.model.highest.get(key, 0)
        return int(draw(st.sampled_from([ANY, ANY, 0, *known, older, older + 1])))

    def _put(self, draw: Any) -> Op:
        plain = draw(st.booleans())
        rows = []
        for key in draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)):
            self._serial += 1
            ttl = draw(st.one_of(st.none(), SPANS_US))
            expires_us = None if ttl is None else self.rig.now_us + ttl
            version = ANY if plain else self._version(draw, key)
            rows.append(Put(key, b"%d" % self._serial, version, expires_us))
        return "put", rows

    def _delete(self, draw: Any) -> Op:
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
        return "delete", [(key, self._version(draw, key)) for key in keys]

    def _ops(self, draw: Any) -> list[Op]:
        makers = [self._put, self._put, self._delete]
        return [draw(st.sampled_from(makers))(draw) for _ in range(draw(st.integers(1, 3)))]

    @rule(data=st.data())
    def commands(self, data: st.DataObject) -> None:
        self.rig.step(self._ops(data.draw))

    @rule(data=st.data())
    def transaction(self, data: st.DataObject) -> None:
        self.rig.transaction(self._ops(data.draw))

    @rule(span=SPANS_US)
    def time_passes(self, span: int) -> None:
        self.rig.wait(span)

    @rule(span=SPANS_US, data=st.data())
    def put_as_time_passes(self, span: int, data: st.DataObject) -> None:
        # What has expired meets the put before it is removed.
        self.rig.now_us += span
        self.rig.step(self._ops(data.draw))

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.shard.close()


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


@pytest.mark.timeout(300)
def test_shard_and_model_agree() -> None:
    run_state_machine_as_test(KvMachine, settings=settings(max_examples=40, stateful_step_count=30))


@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_shard_and_model_agree_for_long() -> None:
    run_state_machine_as_test(
        KvMachine, settings=settings(max_examples=2_000, stateful_step_count=80)
    )
