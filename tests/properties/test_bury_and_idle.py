"""Messages that are born dead, and topics that go by themselves, beside what a child would keep.

`Beside` gives the same commands to an engine and to two dicts: of each message its state and reason,
of each topic when it was last used. After every step both must agree, and at the end an engine that
replays the journal must be what this one is.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fasti.core import commands as co
from fasti.core.engine import Engine
from fasti.core.keys import Keys, Rows
from fasti.core.replies import Deliver
from fasti.core.timeline.bury import Bury
from fasti.model import SECOND_US, Outcome, State, TopicSettings

SEED = (3, 5)
AGE_US = 60 * SECOND_US
START_US = 1_000_000_000_000_000


def int64s(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


class Beside:
    """The engine and the dicts."""

    def __init__(self, partitions: int) -> None:
        self.engine = Engine(memory_bytes=64 << 20, leases_max=64)
        self.now_us, self.tick = START_US, 0
        self.journal: list[tuple[int, list[Any]]] = []
        self.effects: list[Any] = []
        self.messages: dict[int, tuple[str, str]] = {}
        self.holds_key: int | None = None
        kept = TopicSettings(partitions=partitions, lookahead_us=0)
        assert self.step(co.CreateTopic("letters", kept)).error is None

    def step(self, *commands: Any) -> Any:
        step = self.engine.step(list(commands), self.now_us, self.tick)
        for frame in step.frames:
            self.journal.append((frame.sequence, copy.deepcopy(frame.events)))
        self.effects += step.effects
        return step.replies[0] if commands else None

    # Commands on messages

    def bury(self, count: int, reason: str) -> None:
        reply = self.step(Bury("letters", Rows.of([b"x"] * count), reason))
        assert reply.all_ok
        assert len(set(reply.ids.tolist())) == count
        self.messages |= dict.fromkeys(reply.ids.tolist(), ("dead", reason))

    def bury_and_produce(self, keyed: bool) -> None:
        """Whole or not at all: not, if the key is taken."""
        rows = Rows.of([b"y"], key=["k"] if keyed else None)
        keys = Keys(pa.array(["k"]), SEED) if keyed else None
        made_later = co.Produce("letters", rows, co.When(delay_us=10**12), keys)
        buried_now = Bury("letters", Rows.of([b"x"]), "both")
        reply = self.step(co.Transaction([buried_now, made_later]))
        taken = keyed and self.holds_key is not None
        assert reply.committed is not taken
        if taken:
            assert reply.replies[0].status[0] == Outcome.ABORTED
            return
        buried, made = (int(each.ids[0]) for each in reply.replies)
        self.messages |= {buried: ("dead", "both"), made: ("scheduled", "")}
        if keyed:
            self.holds_key = made

    def redrive(self, some: list[int], redrives: bool) -> None:
        known = sorted(self.messages)
        ids = sorted({known[n % len(known)] for n in some}) if known else [7]
        if redrives:
            when = co.When(delay_us=10**12)
            reply = self.step(co.Redrive("letters", int64s(ids), None, when))
        else:
            reply = self.step(co.Purge("letters", int64s(ids)))
        for message_id, status in zip(ids, reply.status.tolist(), strict=True):
            was, reason = self.messages.get(message_id, ("none", ""))
            assert (status == Outcome.OK) == (was == "dead"), (message_id, was, status)
            if status == Outcome.OK:
                if redrives:
                    self.messages[message_id] = ("scheduled", reason)
                else:
                    del self.messages[message_id]

    def purge_and_produce(self, some: list[int]) -> None:
        """As a redrive to another topic: whole, or not at all because the key is taken."""
        dead = [i for i, (state, _) in sorted(self.messages.items()) if state == "dead"]
        if not dead:
            return
        ids = sorted({dead[n % len(dead)] for n in some})
        keys = Keys(pa.array(["k"]), SEED)
        later = co.When(delay_us=10**12)
        made = co.Produce("letters", Rows.of([b"z"], key=["k"]), later, keys)
        reply = self.step(co.Transaction([co.Purge("letters", int64s(ids)), made]))
        assert reply.committed is (self.holds_key is None)
        if reply.committed:
            for message_id in ids:
                del self.messages[message_id]
            self.holds_key = int(reply.replies[1].ids[0])
            self.messages[self.holds_key] = ("scheduled", "")

    def check(self) -> None:
        assert listed(self.engine, self.now_us, self.tick) == self.messages
        counts = self.engine.step([co.Count("letters")], self.now_us, self.tick).replies[0].states
        dead = sum(state == "dead" for state, _ in self.messages.values())
        assert (counts["dead"], counts["scheduled"]) == (dead, len(self.messages) - dead)
        for reason in {reason for state, reason in self.messages.values() if state == "dead"}:
            found = listed(self.engine, self.now_us, self.tick, reason)
            # Only the dead are found by their reason.
            assert found == {
                i: m for i, m in self.messages.items() if m[0] == "dead" and reason in m[1]
            }
        assert not any(isinstance(each, Deliver) for each in self.effects)

    def replayed(self) -> Engine:
        engine = Engine(memory_bytes=64 << 20, leases_max=64)
        for sequence, events in self.journal:
            engine.replay(sequence, events)
        engine.start(self.tick)
        return engine


def listed(
    engine: Engine, now_us: int, tick: int, reason: str | None = None
) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    after_id = 0
    while True:
        command = co.List("letters", after_id, 3, reason=reason)
        page = engine.step([command], now_us, tick).replies[0]
        for row, message_id in enumerate(page.ids.tolist()):
            dead = page.columns["state"][row] == State.DEAD
            why = page.names["reason"][int(page.columns["reason"][row])]
            found[message_id] = ("dead" if dead else "scheduled", why)
        after_id = page.next_after_id
        if not after_id:
            return found


OPS = st.one_of(
    st.tuples(st.just("bury"), st.integers(1, 5), st.sampled_from(["late", "too late", "gone"])),
    st.tuples(st.just("bury_and_produce"), st.booleans()),
    st.tuples(st.just("purge_and_produce"), st.lists(st.integers(0, 50), min_size=1, max_size=3)),
    st.tuples(
        st.just("redrive"), st.lists(st.integers(0, 50), min_size=1, max_size=4), st.booleans()
    ),
)


@settings(max_examples=60)
@given(st.sampled_from([1, 3]), st.lists(OPS, max_size=25))
def test_messages_that_are_born_dead(partitions: int, ops: list[tuple[Any, ...]]) -> None:
    both = Beside(partitions)
    consumer = co.Lease("letters", 1, "c", 100)
    both.step(consumer)
    for name, *arguments in ops:
        getattr(both, name)(*arguments)
        both.step()
        both.now_us += 1_000
        both.check()
    again = both.replayed()
    assert listed(again, both.now_us, both.tick) == both.messages
    assert sorted(filter(None, again.memory.reasons.all())) == sorted(
        {reason for _, reason in both.messages.values() if reason}
    )


WAITS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "leave", "produce", "lease", "ack", "nothing", "restart"]),
        st.integers(1, 90),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(WAITS)
def test_topics_that_nobody_uses_go(ops: list[tuple[str, int]]) -> None:
    both = Beside(1)
    mortal = TopicSettings(idle_age_us=AGE_US, lookahead_us=0, lease_us=12 * 3600 * SECOND_US)
    both.step(co.CreateTopic("box", mortal))
    used_us = both.now_us
    waits = False
    held: list[tuple[int, int]] = []
    for name, wait_s in ops:
        there = "box" in both.engine.state.by_name
        if not there:
            break
        if name == "wait":
            both.step(co.Lease("box", 1, "c", 1))
            waits = True
        elif name == "leave":
            both.step(co.Detach(1))
            if waits:
                used_us = both.now_us
            waits = False
        elif name == "produce":
            both.step(co.Produce("box", Rows.of([b"x"]), co.When(delay_us=10**12)))
        elif name == "lease":
            both.step(co.Produce("box", Rows.of([b"x"])))
            both.step(co.Lease("box", 2, "d", 1, wait=False))
            got = [each for each in both.effects if isinstance(each, Deliver)]
            held += [(int(i), each.token) for each in got for i in each.ids.tolist()]
            # Whoever waited may have got it instead, and waits no more.
            waits = waits and not any(each.session == 1 for each in got)
            both.effects.clear()
        elif name == "ack" and held:
            message_id, token = held.pop()
            both.step(co.Ack("box", int64s([message_id]), int64s([token])))
        elif name == "restart":
            both.engine = both.replayed()
            waits = False
            used_us = both.now_us
        if name not in ("nothing", "leave", "restart") and (name != "ack" or held):
            used_us = both.now_us
        if waits or held:
            used_us = both.now_us + wait_s * SECOND_US
        # Time passes in small steps, as it does for a broker that wakes when it asked to.
        for _ in range(wait_s):
            both.now_us += SECOND_US
            both.step()
            if "box" not in both.engine.state.by_name:
                assert not waits
                assert not held
                assert both.now_us - used_us >= AGE_US, "it was in use"
                break
            unused_us = 0 if waits or held else both.now_us - used_us
            # One that is met in use is looked at again a whole age later.
            assert unused_us < 2 * AGE_US, "nobody used it"
    assert ("box" in both.replayed().state.by_name) == ("box" in both.engine.state.by_name)
