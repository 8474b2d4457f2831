"""Calls with numbers on a disk that loses everything that it may lose, stopped before every operation.

Whoever made the call that was under way makes it again: it is answered as it would have been without the
crash, and the rest of the story goes on from there.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from fasti.config import ShardSettings
from fasti.core.commands import List
from fasti.core.kv.commands import KvGet
from fasti.core.numbered.commands import CallNumber, Numbered
from fasti.core.replies import Reply, TransactionReply
from fasti.model import Outcome
from fasti.storage.files import Files
from fasti.testing.disk import SimulatedFiles
from tests.crash.photographs import (
    PhasedShard,
    PhotographedFiles,
    compact_as_if_after_years,
    differences,
    moment,
)
from tests.properties.calls_rig import ENTRIES, KEYS, MAILS, Commands, Make, plain
from tests.seeds import seeds

SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=256)
CLIENTS = ("one", "two")
# A call of a client under a number; or a part of a checkpoint, or a restart.
Step = tuple[str, int, Make] | str


class Told:
    """A shard that a story is told to."""

    def __init__(self, files: Files) -> None:
        self.phased = PhasedShard(files, SETTINGS)

    @property
    def seed(self) -> tuple[int, int]:
        return self.phased.shard.store.seed

    def do(self, step: Step, now_us: int, age_us: int = 0) -> Any:
        """What a call is answered."""
        if step == "restart":
            return self.phased.restart()
        if isinstance(step, str):
            return self.phased.phase(now_us)
        client, number, make = step
        numbered = Numbered(make(), CallNumber(client, number, number, age_us))
        return without_the_gone(self.phased.shard.call(numbered, now_us, 0))

    def dump(self, now_us: int) -> dict[str, Any]:
        """All that calls may change."""
        shard = self.phased.shard
        found = shard.call(List(MAILS, limit=1_000), now_us, 0)
        columns = [found.columns[name].tolist() for name in ("version", "due_us", "state")]
        keys = Commands(random.Random(0), self.seed)._put(KEYS, 0).keys
        entries = shard.call(KvGet(ENTRIES, keys), now_us, 0)
        kv = [entries.status.tolist(), entries.versions.tolist(), entries.ids.tolist()]
        return {"ids": found.ids.tolist(), "columns": columns, "kv": kv}


def without_the_gone(reply: Any) -> Any:
    """What a reply says, but not what it knows of a key whose message has ended: a restart forgets that."""
    if isinstance(reply, TransactionReply):
        return [reply.committed, *map(without_the_gone, reply.replies)]
    if not isinstance(reply, Reply) or reply.error is not None:
        return plain(reply)
    rows = zip(reply.status.tolist(), reply.ids.tolist(), reply.versions.tolist(), strict=True)
    return ["gone" if row[0] in (Outcome.CANCELLED, Outcome.NOT_FOUND) else row for row in rows]


def write_story(told: Told, seed: int, steps: int) -> list[Step]:
    rng = random.Random(seed)
    commands = Commands(rng, told.seed)
    for first in commands.first():
        assert told.phased.shard.call(first, moment(0), 0).error is None
    last = dict.fromkeys(CLIENTS, 0)
    story: list[Step] = []
    for _ in range(steps):
        choice = rng.random()
        if choice < 0.75:
            client = rng.choice(CLIENTS)
            last[client] += 1
            story.append((client, last[client], commands.draw()))
        else:
            story.append("phase" if choice < 0.93 else "restart")
    return story


def crash_everywhere(seed: int, steps: int, every: int) -> tuple[int, int]:
    """How many crashes were tried, and after how many of them the call had happened already."""
    rng, files = random.Random(seed), PhotographedFiles()
    told = Told(files)
    story = write_story(told, seed, steps)
    taken: list[tuple[int, SimulatedFiles]] = []
    current = 0

    def photograph(operation: int) -> None:
        if operation % every == seed % every:
            taken.append((current, files.crash(rng)))

    files.photograph = photograph
    answers, sights = [], []
    for current, step in enumerate(story):
        sights.append(told.dump(moment(current)))
        answers.append(told.do(step, moment(current)))
    end = told.dump(moment(steps))
    told.phased.shard.close()
    happened = 0
    for crashed, image in taken:
        again = Told(image)
        happened += bool(differences(sights[crashed], again.dump(moment(crashed))))
        last = steps if rng.random() < 0.2 else crashed + 1
        for number in range(crashed, last):
            reply = again.do(story[number], moment(number), age_us=1 if number == crashed else 0)
            assert reply == answers[number], (seed, crashed, number, story[number])
        if last == steps:
            assert not differences(end, again.dump(moment(steps)))
        again.phased.shard.close()
    return len(taken), happened


@pytest.mark.parametrize("seed", seeds(3, range(40)))
def test_the_call_under_way_is_made_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        compact_as_if_after_years(monkeypatch)
    tried, happened = crash_everywhere(seed, steps=40, every=2)
    assert tried > 20
    assert happened, "some are answered from what is remembered"
