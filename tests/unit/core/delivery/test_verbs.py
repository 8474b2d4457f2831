"""Every verb means the same wherever messages are leased from: timelines, priorities, groups of logs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fasti.core import commands as co
from fasti.core.delivery.verbs import VERBS
from fasti.core.engine import Engine
from fasti.core.keys import Rows
from fasti.core.log.commands import CreateGroup
from fasti.core.replies import Deliver, Step
from fasti.model import Limits, Outcome, RetryPolicy, TopicSettings

NOW_US, LEASE_US = 1_700_000_000_000_000, 30_000_000
KINDS = ("timeline", "priority", "log")


class Rig:
    """A topic with five messages, leased by one consumer."""

    def __init__(self, kind: str, **settings: Any) -> None:
        self.engine, self.now_us = Engine(limits=Limits()), NOW_US
        self.group = {"group": "g"} if kind == "log" else {}
        self.do(co.CreateTopic("t", TopicSettings(kind=kind, lease_us=LEASE_US, **settings)))
        if kind == "log":
            self.do(CreateGroup("t", "g"))
        self.do(co.Produce("t", Rows.of([b"x"] * 5)))
        self.leased = self.lease()

    def step(self, *inputs: Any) -> Step:
        step = self.engine.step(inputs, self.now_us, self.now_us)
        assert not step.faults
        return step

    def do(self, command: Any) -> Any:
        reply = self.step(command).replies[0]
        assert reply.error is None, reply.error
        return reply

    def lease(self) -> Deliver:
        effects = self.step(co.Lease("t", 1, "w", 5, wait=False, **self.group)).effects
        (delivered,) = [effect for effect in effects if isinstance(effect, Deliver)]
        return delivered

    def use(self, verb: type, rows: slice = slice(None), **fields: Any) -> Any:
        ids = self.leased.ids[rows]
        tokens = np.full(len(ids), self.leased.token, dtype=np.int64)
        return self.do(verb("t", ids, tokens, **self.group, **fields))

    def states(self) -> dict[str, int]:
        states = self.do(co.Count("t")).states
        return {name: states[name] for name in ("leased", "dead")}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_share_the_verbs(kind: str) -> None:
    handlers = Engine().kind(kind).handlers()
    assert {verb: handlers[verb] for verb in VERBS} == VERBS


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_acked_is_done_and_the_token_is_spent(kind: str) -> None:
    rig = Rig(kind)
    assert rig.use(co.Ack, slice(0, 2)).all_ok
    assert set(rig.use(co.Ack, slice(0, 2)).status.tolist()) == {Outcome.DONE}
    assert rig.states() == {"leased": 3, "dead": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_row_that_stands_twice_the_first_counts(kind: str) -> None:
    rig = Rig(kind)
    ids = rig.leased.ids[[0, 0, 1]]
    reply = rig.do(co.Ack("t", ids, np.full(3, rig.leased.token), **rig.group))
    assert reply.status.tolist() == [Outcome.OK, Outcome.DUPLICATE, Outcome.OK]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_is_tried_again_until_the_last_attempt(kind: str) -> None:
    rig = Rig(kind, max_attempts=2, retry=RetryPolicy(base_us=1_000, jitter=0))
    assert rig.use(co.Nack, reason="no").all_ok
    assert rig.states() == {"leased": 0, "dead": 0}
    rig.now_us += 1_000
    rig.leased = rig.lease()
    assert rig.leased.attempts.tolist() == [2] * 5
    assert rig.use(co.Nack, slice(0, 2), reason="no").all_ok
    assert rig.use(co.Reject, slice(2, 3), reason="never").all_ok
    assert rig.states() == {"leased": 2, "dead": 3}
    rig.now_us += LEASE_US
    rig.step()
    assert rig.states() == {"leased": 0, "dead": 5}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_released_keeps_its_attempt_with_a_token_or_without(kind: str) -> None:
    rig = Rig(kind)
    assert rig.use(co.Release, slice(0, 2)).all_ok
    assert rig.do(co.ReleaseLeases("t", consumer="w", **rig.group)).all_ok
    stale = rig.use(co.Ack)
    assert set(stale.status.tolist()) == {Outcome.STALE_LEASE}
    assert rig.lease().attempts.tolist() == [1] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_leases_are_renewed_and_extended(kind: str) -> None:
    rig = Rig(kind)
    rig.now_us += LEASE_US // 2
    assert rig.do(co.Heartbeat("t", "w", **rig.group)).value == 5
    assert rig.use(co.Extend, slice(0, 2), length_us=2 * LEASE_US).all_ok
    rig.now_us += LEASE_US
    rig.step()
    assert rig.states() == {"leased": 2, "dead": 0}
    rig.now_us += LEASE_US
    rig.step()
    assert rig.states() == {"leased": 0, "dead": 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened", [0, 2, 5])
def test_leases_that_end_at_a_silent_consumer_count_no_attempt(kind: str, opened: int) -> None:
    rig = Rig(kind, max_attempts=1)
    if opened:
        # A sign of life: what is extended is opened, as far as the broker can know.
        assert rig.use(co.Extend, slice(0, opened), length_us=LEASE_US).all_ok
    assert rig.do(co.Unheard("t", 1, "w", 0, False, **rig.group)).value == 5 - opened
    rig.now_us += LEASE_US
    rig.step()
    assert rig.states() == {"leased": 0, "dead": opened}
    if opened < 5:
        assert set(rig.lease().attempts.tolist()) == {1}
