"""Dead letters on a disk that is photographed before each of its operations.

Messages die, are redriven to another topic in pieces, are buried and purged, with checkpoints and
restarts in between. Whatever a crash leaves, each message is in one topic or the other: never in
both, never in none; what was acknowledged has happened, and of what was under way all or nothing.
An inbox that nobody used is there or gone, and what was in it with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.replies import Deliver
from fasti.core.timeline.bury import Bury
from fasti.model import SECOND_US, SEQUENCE_BITS, State, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.local_shard import LocalShard
from fasti.testing.disk import SimulatedFiles
from tests.crash.photographs import START_US, PhotographedFiles
from tests.seeds import seeds

SETTINGS = ShardSettings(segment_bytes=8192, memory_bytes=16 << 20, leases_max=256)
Seen = dict[str, dict[bytes, tuple[int, str]]]


def int64s(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


class Story:
    """Random work, and what has come of it so far by the caller's own books."""

    def __init__(self, files: SimulatedFiles, seed: int) -> None:
        self.files, self.rng = files, random.Random(seed)
        self.shard = LocalShard(FileStorage(files), SETTINGS)
        self.now_us = START_US
        self.serial = 0
        self.seen: Seen = {}
        # What would be seen if the operation under way had happened.
        self.maybe: Seen = {}
        for name, settings in (
            ("dead", TopicSettings(partitions=2, lookahead_us=0)),
            ("other", TopicSettings(lookahead_us=0)),
            ("inbox", TopicSettings(lookahead_us=0, idle_age_us=60 * SECOND_US)),
        ):
            self.shard.call(co.CreateTopic(name, settings), self.now_us, 0)
        self.seen = self.maybe = look(self.shard, self.now_us)

    def do(self, after: Callable[[Seen], None], *commands: Any) -> list[Any]:
        """Carries commands out; `after` makes the books what they are then."""
        self.maybe = {name: dict(rows) for name, rows in self.seen.items()}
        after(self.maybe)
        step = self.shard.step(list(commands), self.now_us, 0)
        self.seen = self.maybe
        return [*step.replies, *step.effects]

    def payloads(self) -> list[bytes]:
        self.serial += 1
        return [b"%d-%d" % (self.serial, n) for n in range(self.rng.randint(1, 4))]

    def bury(self) -> None:
        payloads = self.payloads()
        topic = self.rng.choice([name for name in ("dead", "inbox") if name in self.seen])
        born = dict.fromkeys(payloads, (int(State.DEAD), "late"))
        self.do(lambda seen: seen[topic].update(born), Bury(topic, Rows.of(payloads), "late"))

    def die(self) -> None:
        """Messages that are leased and rejected: two steps, of which each may be the last."""
        payloads = self.payloads()
        rows = dict.fromkeys(payloads, (int(State.SCHEDULED), ""))
        produced = co.Produce("dead", Rows.of(payloads))
        self.do(lambda seen: seen["dead"].update(rows), produced)
        leased = dict.fromkeys(payloads, (int(State.LEASED), ""))
        lease = co.Lease("dead", self.serial, f"c{self.serial}", len(payloads), wait=False)
        got = self.do(lambda seen: seen["dead"].update(leased), lease)
        for each in got:
            if isinstance(each, Deliver):
                mine = [p for p, i in ids(self.shard, "dead", self.now_us).items() if i in each.ids]
                gone = dict.fromkeys(mine, (int(State.DEAD), "no"))
                tokens = np.full(len(each.ids), each.token)
                self.do(
                    lambda seen, gone=gone: seen["dead"].update(gone),  # type: ignore[misc]
                    co.Reject("dead", each.ids, tokens, "no"),
                )

    def move(self) -> None:
        """A piece of the dead goes to the other topic."""
        found = ids(self.shard, "dead", self.now_us)
        dead = [p for p, (state, _) in self.seen["dead"].items() if state == State.DEAD]
        chosen = self.rng.sample(dead, min(len(dead), 3))
        if not chosen:
            return

        def after(seen: Seen) -> None:
            for payload in chosen:
                del seen["dead"][payload]
                seen["other"][payload] = (int(State.SCHEDULED), "")

        purge = co.Purge("dead", int64s([found[payload] for payload in chosen]))
        self.do(after, co.Transaction([purge, co.Produce("other", Rows.of(chosen))]))

    def idle(self) -> None:
        """Nobody uses the inbox for longer than its age."""
        self.now_us += 61 * SECOND_US

        def gone(seen: Seen) -> None:
            seen.pop("inbox", None)

        self.do(gone)
        if self.rng.random() < 0.7:
            settings = TopicSettings(lookahead_us=0, idle_age_us=60 * SECOND_US)
            self.do(lambda seen: seen.update(inbox={}), co.CreateTopic("inbox", settings))

    def checkpoint(self) -> None:
        self.maybe = self.seen
        self.shard.checkpoint(self.now_us, 0)

    def restart(self) -> None:
        self.maybe = self.seen
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), SETTINGS)

    def tell(self, steps: int) -> None:
        acts = [self.bury, self.die, self.move, self.move, self.checkpoint, self.restart, self.idle]
        for _ in range(steps):
            self.now_us += SECOND_US
            self.rng.choice(acts)()
            assert look(self.shard, self.now_us) == self.seen


def ids(shard: LocalShard, topic: str, now_us: int) -> dict[bytes, int]:
    """The id of each message, by its payload."""
    found: dict[bytes, int] = {}
    count = len(shard.engine.state.by_name[topic].partitions)
    for partition in range(count):
        page = shard.call(co.List(topic, partition << SEQUENCE_BITS, 1000), now_us, 0)
        if len(page.ids):
            contents = shard.store.payloads.gather(page.columns["location"])
            payloads = contents.column("payload").to_pylist()
            of_partition = zip(payloads, page.ids.tolist(), strict=True)
            found |= {p: i for p, i in of_partition if i >> SEQUENCE_BITS == partition}
    return found


def look(shard: LocalShard, now_us: int) -> Seen:
    """Of each topic and message its state and reason."""
    seen: Seen = {}
    # Looking counts as use, so that only the story's `idle` lets the inbox go.
    shard.engine.idle._since_us = None
    for name in ("dead", "other", "inbox"):
        if name not in shard.engine.state.by_name:
            continue
        seen[name] = {}
        found = ids(shard, name, now_us)
        if found:
            target = co.Target(ids=int64s(list(found.values())))
            told = shard.call(co.Get(name, target), now_us, 0)
            for row, payload in enumerate(found):
                state = int(told.columns["state"][row])
                reason = told.names["reason"][int(told.columns["reason"][row])]
                seen[name][payload] = (int(State.SCHEDULED) if state == 7 else state, reason)
    return seen


@pytest.mark.parametrize("seed", seeds(2, range(4)))
def test_a_message_is_in_one_topic_or_the_other(seed: int) -> None:
    files = PhotographedFiles()
    story = Story(files, seed)
    rng = random.Random(seed)
    taken: list[tuple[SimulatedFiles, Seen, Seen, int]] = []

    def photograph(_: int) -> None:
        if rng.random() < 0.25:
            taken.append((files.crash(rng), story.seen, story.maybe, story.now_us))

    files.photograph = photograph
    story.tell(40)
    assert len(taken) > 25
    for image, before, after, now_us in taken:
        shard = LocalShard(FileStorage(image), SETTINGS)
        found = look(shard, now_us)
        assert found in (before, after)
        both = found["dead"].keys() & found["other"].keys()
        assert not both, "a message is redriven whole"
        assert (found["dead"] | found["other"]).keys() == (
            before["dead"] | before["other"]
        ).keys() or (found == after)
        shard.close()
