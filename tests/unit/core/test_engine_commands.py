"""Every command of the engine's registry, on a topic of every kind and on none, alone and together.

The commands are made from their fields, by name and type: one that is added is tried without anybody
thinking of it. Each must come to an outcome or to an error of ours; none may raise, in whatever
company it is decided.
"""

from __future__ import annotations

import random
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.core import commands as co
from fasti.core.checkpoint import BeginCheckpoint, BlocksAdded
from fasti.core.cron.commands import Fire
from fasti.core.engine import Engine
from fasti.core.keys import Keys, Rows
from fasti.core.kv.commands import KvExpire
from fasti.core.log.commands import KeysLoaded, LogsInstalled
from fasti.core.numbered.commands import CallNumber, Numbered
from fasti.core.sinks.commands import Carry, ClaimKeys, ClaimStages, PublishBatch, ReleaseKeys
from fasti.errors import FastiError, InternalError
from fasti.model import DUE_MAX_US, OnConflict, TopicSettings

NOW_US = 1_700_000_000_000_000
SEED = (1, 2)
KINDS = ("timeline", "priority", "log", "kv", "cron")
TOPICS = (*KINDS, "missing")
SCHEDULE = '{"cron": "0 9 * * *", "target": "timeline"}'
# What storage answers: it knows what it was asked, and no client can send it.
OF_STORAGE = {
    *(co.SliceLoaded, co.RowsInstalled, co.RunsInstalled, LogsInstalled, KeysLoaded, KvExpire),
    *(BeginCheckpoint, BlocksAdded),
}
# Besides those, what changes sessions, snapshots or claims, which no event tells of.
NOT_REFUSED = {*OF_STORAGE, co.Detach, co.Withdraw, co.TakeSnapshot, co.DropSnapshot}
NOT_REFUSED |= {co.Publish, PublishBatch, ClaimStages, ClaimKeys, ReleaseKeys}
NOT_REFUSED |= {co.KeepSnapshot, co.Tidy}


def make_engine() -> Engine:
    engine = Engine(memory_bytes=64 << 20, leases_max=256)
    inputs: list[Any] = [co.CreateTopic(kind, TopicSettings(kind=kind)) for kind in KINDS]
    for kind in ("timeline", "priority", "log"):
        rows = Rows.of([b"1", b"2", b"3"], key=["k", "l", None])
        inputs.append(co.Produce(kind, rows, keys=rows.keys(SEED)))
    for command in inputs:
        assert engine.step([command], NOW_US, 0).replies[0].error is None
    return engine


def registry(engine: Engine) -> list[type]:
    found = {*engine._decide, *engine._by_kind} - OF_STORAGE
    return sorted(found, key=lambda command: command.__name__)


INTEGERS = [0, 1, -1, 2, 1 << 31, 1 << 51, DUE_MAX_US, (1 << 62), (1 << 63) - 1, -(1 << 63)]
TEXTS = ["", "x", "g", "s", "k", "é" * 200, "\x00", "a.*", *TOPICS]


class Maker:
    """Makes commands; the same seed makes the same ones."""

    def __init__(self, seed: Any, types: list[type]) -> None:
        self.rng = random.Random(seed)
        self.types = types

    def make(self, kind: type, topic: str) -> Any:
        """A command of a type on a topic. What belongs together has one number of rows."""
        count = self.rng.choice([0, 1, 1, 2, 3])
        values = {}
        for each in fields(kind):
            given = each.default is not MISSING or each.default_factory is not MISSING
            if given and self.rng.random() < 0.5:
                continue
            values[each.name] = self.value(each.name, str(each.type), topic, count)
        if kind is Fire and len(values["rows"]) != count:
            values["rows"] = self.rows(count)
        return kind(**values)

    def value(self, name: str, kind: str, topic: str, count: int) -> Any:
        rng = self.rng
        if name in ("topic", "name") and kind == "str":
            return topic if name == "topic" or rng.random() < 0.5 else "s"
        if name == "commands":
            parts = [each for each in self.types if each not in (co.Transaction, Carry)]
            return [self.make(rng.choice(parts), rng.choice(TOPICS)) for _ in range(count)]
        if name == "schedules":
            return [("s", SCHEDULE)] * count
        makers: dict[str, Any] = {
            "Rows": lambda: self.rows(count),
            "Keys": lambda: self.keys(count),
            "Target": lambda: self.target(count),
            "When": lambda: self.when(count),
            "TopicSettings": lambda: TopicSettings(kind=rng.choice(KINDS)),
            "OnConflict": lambda: rng.choice(list(OnConflict)),
            "Int64s": lambda: self.numbers(count),
            "UInt16s": lambda: self.numbers(count).astype(np.uint16),
            "bool": lambda: rng.random() < 0.5,
            "int": lambda: rng.choice([1, 5_000_000, *INTEGERS]),
            "str": lambda: rng.choice(TEXTS),
            "list[str]": lambda: [rng.choice(TEXTS)] * count,
            "list[tuple[str, str]]": lambda: [(topic, rng.choice(TEXTS))] * count,
            "dict[str, int]": dict,
            "CallNumber": self.call,
        }
        choices = [word.strip() for word in kind.split("|") if word.strip() != "None"]
        chosen = rng.choice(choices)
        # Routes, claims and staging are made by the broker, never by a client.
        return makers[chosen]() if chosen in makers else None

    def call(self) -> CallNumber:
        """One of few, so that some come again."""
        number, age_us = self.rng.randrange(1, 6), self.rng.choice([0, 0, 1])
        return CallNumber("client", number, self.rng.randrange(1, number + 1), age_us)

    def numbers(self, count: int) -> np.ndarray[Any, Any]:
        picked = [self.rng.choice([1, 1, 2, *INTEGERS]) for _ in range(count)]
        return np.array(picked, dtype=np.int64)

    def rows(self, count: int) -> Rows:
        return Rows.of([b"x"] * count)

    def keys(self, count: int) -> Keys:
        return Keys(pa.array([self.rng.choice("klm") for _ in range(count)], pa.string()), SEED)

    def target(self, count: int) -> co.Target:
        if self.rng.random() < 0.5:
            return co.Target(ids=self.numbers(count))
        return co.Target(keys=self.keys(count))

    def when(self, count: int) -> co.When:
        choice = self.rng.random()
        moments = self.rng.choice([self.numbers(count), self.rng.choice(INTEGERS)])
        return co.When(moments if choice < 0.4 else None, moments if choice > 0.6 else None)


def decide(engine: Engine, inputs: list[Any], now_us: int = NOW_US) -> None:
    """In one step. Raises what a client must never be able to bring about."""
    step = engine.step(inputs, now_us, now_us - NOW_US)
    assert step.faults == [], (step.faults, inputs)
    for command, reply in zip(inputs, step.replies, strict=True):
        error = getattr(reply, "error", None)
        assert error is None or isinstance(error, FastiError), command
        assert not isinstance(error, InternalError), command


def test_what_may_be_refused_is_decided_for_each_command() -> None:
    """Whoever adds a command that names no topic says whether it changes only by events."""
    engine = make_engine()
    assert {*engine._decide, *engine._by_kind} - engine._refusable == NOT_REFUSED


@pytest.mark.parametrize("topic", TOPICS)
def test_every_command_alone(topic: str) -> None:
    engine = make_engine()
    maker = Maker(topic, registry(engine))
    for kind in registry(engine):
        for _ in range(12):
            decide(engine, [maker.make(kind, topic)])
            if topic not in engine.state.by_name and topic != "missing":
                engine = make_engine()


def meet(seed: int, steps: int) -> None:
    engine = make_engine()
    types = registry(engine)
    maker = Maker(seed, types)
    now_us = NOW_US
    for _ in range(steps):
        # Acks and credits are looked at before anything is decided, so they are in every company.
        company = [co.Lease, co.Ack, co.Ack, *maker.rng.choices(types, k=6)]
        maker.rng.shuffle(company)
        topics = maker.rng.choices(TOPICS, k=3)
        inputs = [maker.make(kind, maker.rng.choice(topics)) for kind in company]
        # Some are of calls with numbers; whichever had the number first is what they are answered.
        of_calls = maker.rng.sample(range(len(inputs)), 2)
        for place in of_calls:
            inputs[place] = Numbered(inputs[place], maker.call(), chosen=maker.rng.random() < 0.2)
        decide(engine, inputs, now_us)
        now_us += maker.rng.choice([0, 0, 1_000_000])
        if not set(KINDS) <= set(engine.state.by_name):
            engine, now_us = make_engine(), NOW_US


@pytest.mark.parametrize("seed", range(8))
def test_commands_in_company(seed: int) -> None:
    meet(seed, steps=60)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_commands_in_company(seed: int) -> None:
    meet(seed, steps=600)
