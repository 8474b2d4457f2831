"""Calls with numbers, beside a model: whatever comes again, and when, each happens once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fasti.core.engine import Engine
from fasti.core.numbered.commands import Numbered
from fasti.core.replies import Step
from fasti.model import SECOND_US
from tests.properties.calls_rig import Client, Commands, plain
from tests.seeds import seeds

NOW_US = 1_700_000_000 * SECOND_US
SEED = (3, 5)


class Rig:
    """An engine, its journal, and the model."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.commands = Commands(self.rng, SEED)
        self.engine, self.naive = Engine(64 << 20, 64), Engine(64 << 20, 64)
        self.journal: list[Any] = []
        self.now_us = NOW_US
        self.answers: dict[tuple[str, int], Any] = {}
        # Up to which number each client's calls are forgotten.
        self.floors: dict[str, int] = {}
        for first in self.commands.first():
            self._decide(self.engine, first)
            self._decide(self.naive, first)

    def _decide(self, engine: Engine, command: Any) -> tuple[Any, Step]:
        step = engine.step([command], self.now_us, 0)
        assert step.faults == []
        if engine is self.engine:
            self.journal += [(frame.sequence, frame.events) for frame in step.frames]
        return step.replies[0], step

    def call(self, client: Client, number: int, age_us: int) -> None:
        """It comes, for the first time or again."""
        self.now_us += 1_000
        numbered = client.numbered(number, age_us)
        expected = self._expected(numbered)
        reply, step = self._decide(self.engine, numbered)
        assert plain(reply) == expected, (client.name, number, age_us, numbered.command)
        groups = [(frame.begins_group, frame.ends_group) for frame in step.frames]
        if groups:
            assert (groups[0][0], groups[-1][1]) == (True, True), "one group, or none"

    def _expected(self, numbered: Numbered) -> Any:
        call = numbered.call
        name = call.client, call.number
        if name in self.answers:
            return self.answers[name]
        if call.number <= self.floors.get(call.client, 0):
            return "call_forgotten"
        reply, step = self._decide(self.naive, numbered.command)
        if step.frames or (call.age_us and reply.error is None):
            self.answers[name] = plain(reply)
            floor = max(self.floors.get(call.client, 0), call.since - 1)
            self.floors[call.client] = floor
            for other in [n for n in self.answers if n[0] == call.client and n[1] <= floor]:
                del self.answers[other]
        return plain(reply)

    def restart(self) -> None:
        """What the journal has is all that there is."""
        self.engine = Engine(64 << 20, 64)
        for sequence, events in self.journal:
            self.engine.replay(sequence, events)
        self.engine.start(0)


def run(seed: int, steps: int) -> Rig:
    rig = Rig(seed)
    rng = rig.rng
    clients = [Client(name) for name in ("one", "two", "three")]
    for _ in range(steps):
        client = rng.choice(clients)
        choice = rng.random()
        if choice < 0.5 or not client.open:
            number = client.begin(rig.commands.draw())
            # Its first attempt may get lost, and come later or never.
            if rng.random() < 0.8:
                rig.call(client, number, 0)
        elif choice < 0.85:
            number = rng.choice(list(client.open))
            rig.call(client, number, rng.choice([0, 1, 5_000]))
        elif choice < 0.97:
            done = rng.choice(list(client.open))
            make = client.open.pop(done)
            if rng.random() < 0.3:
                # An attempt that was on its way for long, when the client has gone on.
                client.open[done] = make
                since = min([n for n in client.open if n != done], default=client.last + 1)
                late = client.numbered(done, 0)
                del client.open[done]
                late.call.since = min(since, done)
                expected = rig._expected(late)
                assert plain(rig._decide(rig.engine, late)[0]) == expected
        else:
            rig.restart()
    return rig


@pytest.mark.parametrize("seed", seeds(12, range(200)))
def test_calls_that_come_again(seed: int) -> None:
    rig = run(seed, steps=250)
    assert len(rig.answers) > 1
