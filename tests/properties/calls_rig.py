"""Calls with numbers that come again, late or never, and a naive model of what they must answer.

The model is an engine to which nothing ever comes twice, and a dict of all its answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fasti.broker.kv.requests import KvKeys
from fasti.core import commands as co
from fasti.core.cron.commands import PauseSchedule, PutSchedules
from fasti.core.keys import Keys, Rows
from fasti.core.kv.commands import ANY_VERSION, KvPut
from fasti.core.numbered.commands import CallNumber, Numbered
from fasti.core.replies import Done, Reply, TransactionReply
from fasti.model import DUE_MAX_US, HOUR_US, TopicSettings

MAILS, ENTRIES, TICKS = "mails", "entries", "ticks"
TOPICS = {
    MAILS: TopicSettings(partitions=2),
    ENTRIES: TopicSettings(kind="kv"),
    TICKS: TopicSettings(kind="cron"),
}
KEYS = [f"k{n}" for n in range(6)]
NAMES = ["a", "b"]
# A command is made anew for each time that it comes: its arrays are the engine's.
Make = Callable[[], Any]


def plain(reply: Any) -> Any:
    """What a reply says, to be compared."""
    if reply.error is not None:
        return reply.error.code
    if isinstance(reply, TransactionReply):
        return [reply.committed, *map(plain, reply.replies)]
    if isinstance(reply, Done):
        return _listed(reply.value)
    assert isinstance(reply, Reply)
    at_us = None if reply.at_us is None else reply.at_us.tolist()
    columns = [reply.status.tolist(), reply.ids.tolist(), reply.versions.tolist()]
    return [*columns, at_us, reply.by, reply.sent_before]


def _listed(value: Any) -> Any:
    return [_listed(each) for each in value] if isinstance(value, (list, tuple)) else value


class Commands:
    """Draws commands that often meet what others have changed."""

    def __init__(self, rng: random.Random, seed: tuple[int, int]) -> None:
        self.rng, self.seed = rng, seed

    def first(self) -> list[Any]:
        """What is there before anything has a number."""
        made: list[Any] = [co.CreateTopic(name, settings) for name, settings in TOPICS.items()]
        return [*made, *(self._send([key]) for key in KEYS), self._send([None] * 8)]

    def draw(self) -> Make:
        rng = self.rng
        choice = rng.choice(["cancel", "move", "put", "put", "transaction", "pause", "schedule"])
        if choice == "cancel":
            return self._changed(lambda target, version: co.Cancel(MAILS, target, version))
        if choice == "move":
            when = rng.randrange(2) * HOUR_US + HOUR_US
            return self._changed(
                lambda target, version: co.Move(MAILS, target, co.When(delay_us=when), version)
            )
        if choice == "put":
            keys = rng.sample(KEYS, rng.choice([1, 1, 3]))
            version = rng.choice([ANY_VERSION, 0, 1, 2, 3])
            return lambda: self._put(keys, version)
        if choice == "pause":
            topic, paused = rng.choice([MAILS, "missing"]), rng.random() < 0.5
            return lambda: co.PauseTopic(topic, paused)
        if choice == "schedule":
            name, paused = rng.choice(NAMES), rng.random() < 0.5
            text = json.dumps({"cron": f"0 {rng.randrange(3)} * * *", "target": MAILS})
            if rng.random() < 0.5:
                return lambda: PauseSchedule(TICKS, name, paused)
            return lambda: PutSchedules(TICKS, [(name, text)])
        key, version = rng.choice(KEYS), rng.choice([ANY_VERSION, ANY_VERSION, 1])
        return lambda: co.Transaction(
            [
                co.Cancel(MAILS, co.Target(keys=self._keys([key]))),
                self._send([key]),
                self._put([key], version),
            ]
        )

    def _changed(self, make: Callable[[co.Target, Any], Any]) -> Make:
        rng = self.rng
        version = rng.choice([0, 0, 1, 2])
        if rng.random() < 0.5:
            keys = rng.sample(KEYS, rng.choice([1, 1, 4]))
            return lambda: make(co.Target(keys=self._keys(keys)), version)
        ids = [rng.randrange(1, 12) for _ in range(rng.choice([1, 1, 5]))]
        return lambda: make(co.Target(ids=np.array(ids, dtype=np.int64)), version)

    def _keys(self, keys: list[str | None]) -> Keys:
        return Keys(pa.array(keys, pa.string()), self.seed)

    def _send(self, keys: list[str | None]) -> co.Produce:
        if keys[0] is None:
            return co.Produce(
                MAILS, Rows.of([b"x"] * len(keys)), co.When(delay_us=HOUR_US), partition=0
            )
        named = pa.array(keys, pa.string())
        rows = Rows.of([b"x"] * len(keys), key=named)
        return co.Produce(MAILS, rows, co.When(delay_us=HOUR_US), self._keys(keys))

    def _put(self, keys: list[str], version: int) -> KvPut:
        named = pa.array(keys, pa.string())
        whole = KvKeys(named, named, self.seed)
        rows = Rows.of([b"v"] * len(keys), key=named)
        versions = np.full(len(keys), version, dtype=np.int64)
        return KvPut(ENTRIES, rows, whole, versions, co.When(delay_us=DUE_MAX_US))


@dataclass
class Client:
    """One that numbers its calls, and has some of them open."""

    name: str
    last: int = 0
    open: dict[int, Make] = field(default_factory=dict)

    def begin(self, make: Make) -> int:
        self.last += 1
        self.open[self.last] = make
        return self.last

    @property
    def since(self) -> int:
        return min(self.open, default=self.last + 1)

    def numbered(self, number: int, age_us: int) -> Numbered:
        since = min(self.since, number)
        return Numbered(self.open[number](), CallNumber(self.name, number, since, age_us))
