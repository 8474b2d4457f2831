"""Fan-out at its edges: batches of several frames, and a memory budget that ends between topics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.routing.commands import Bind, ReadBindings
from fasti.core.routing.matching import Matcher
from fasti.errors import InvalidArgument, Overloaded
from fasti.model import Outcome, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard

NOW_US = 1_700_000_000_000_000
ROWS = 70_000


class Bound:
    """A shard whose topic `a` is bound to `b`."""

    def __init__(self, memory_bytes: int = 256 << 20, **settings: Any) -> None:
        self.files = MemoryFiles()
        self.settings = ShardSettings(memory_bytes=memory_bytes)
        self.shard = LocalShard(FileStorage(self.files), self.settings)
        self.call(co.CreateTopic("a", TopicSettings(**settings)))
        self.call(co.CreateTopic("b", TopicSettings(partitions=3)))
        self.call(Bind("a", ">", "b"))

    def call(self, command: Any) -> Any:
        reply = self.shard.call(command, NOW_US, NOW_US)
        if reply.error is not None:
            raise reply.error
        return reply

    def produce(self, topic: str, keys: list[str | None], **more: Any) -> Any:
        rows = Rows.of([b"x"] * len(keys), key=keys)
        matcher = Matcher(*self.call(ReadBindings(topic)).value)
        routes = matcher.routes(None, len(keys))
        named = rows.keys(self.shard.store.seed)
        return self.call(co.Produce(topic, rows, keys=named, routes=routes, **more))

    def counts(self) -> list[int]:
        found = [self.call(co.Count(name)).states for name in ("a", "b")]
        return [states["scheduled"] + states["ready"] for states in found]


def test_a_batch_of_several_frames() -> None:
    bound = Bound()
    bound.produce("b", ["taken"])
    keys: list[str | None] = [None if n % 3 else f"k{n}" for n in range(ROWS)]
    keys[68_000], keys[69_000] = "taken", "taken"
    reply = bound.produce("a", keys)
    failed = np.flatnonzero(reply.status)
    assert failed.tolist() == [68_000, 69_000]
    assert reply.status[failed].tolist() == [Outcome.CONFLICT, Outcome.ABORTED]
    assert reply.by == {68_000: "b"}
    assert (reply.ids[failed] > 0).tolist() == [True, False]
    assert bound.counts() == [ROWS - 2, ROWS - 1]
    # The journal tells the same story.
    bound.shard.close()
    bound.shard = LocalShard(FileStorage(bound.files), bound.settings)
    assert bound.counts() == [ROWS - 2, ROWS - 1]


def test_a_batch_that_no_row_of_can_be_put() -> None:
    bound = Bound()
    bound.produce("b", ["x", "y"])
    frames = bound.shard.engine.state.next_frame
    reply = bound.produce("a", ["x", "y"])
    assert reply.status.tolist() == [Outcome.CONFLICT] * 2
    # Nothing happened, so nothing is written.
    assert bound.shard.engine.state.next_frame == frames
    assert bound.counts() == [0, 2]
    numbered = bound.produce("a", ["x", "z"], producer="p", producer_sequence=1)
    assert numbered.status.tolist() == [Outcome.CONFLICT, Outcome.OK]
    again = bound.produce("a", ["x", "z"], producer="p", producer_sequence=1)
    assert again.sent_before
    assert again.status.tolist() == numbered.status.tolist()
    assert bound.counts() == [1, 3]


def test_a_memory_budget_that_ends_between_two_topics() -> None:
    bound = Bound(memory_bytes=16 << 20)

    def fill() -> None:
        while True:
            bound.produce("a", [None] * 20_000)

    with pytest.raises(Overloaded, match="memory budget"):
        fill()
    mine, theirs = bound.counts()
    assert mine == theirs > 0


def test_what_a_bound_log_gets_is_checked() -> None:
    bound = Bound(kind="log", partitions=2)
    with pytest.raises(InvalidArgument, match="partition"):
        bound.produce("a", [None], partition=2)
    with pytest.raises(InvalidArgument, match="due"):
        bound.produce("a", [None], when=co.When(delay_us=1_000))
    bound.produce("a", [None], partition=1)
    assert bound.shard.engine.state.by_name["a"].body.partitions[1].next_offset == 1
    assert bound.counts()[1] == 1


def test_staging_into_a_bound_topic_is_refused() -> None:
    bound = Bound()
    with pytest.raises(InvalidArgument, match="staged"):
        bound.produce("a", [None], stage="s")
    assert bound.counts() == [0, 0]
