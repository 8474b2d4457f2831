"""The change feed of a shard on files: what was read stays so, and what is gone is said to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fasti.config import ShardSettings
from fasti.core import commands as co
from fasti.core.keys import Rows
from fasti.core.log.commands import DeleteGroup
from fasti.errors import Gone, NotFound
from fasti.model import DAY_US, TopicSettings
from fasti.storage.change_feed import ChangeFeed, DirectoryNames
from fasti.storage.file_storage import FileStorage
from fasti.storage.local_shard import LocalShard
from fasti.testing.disk import SimulatedFiles

NOW_US = 1_700_000_000_000_000
SMALL: dict[str, Any] = {"segment_bytes": 8192, "memory_bytes": 16 << 20, "leases_max": 1024}


def opened(files: SimulatedFiles, **settings: Any) -> LocalShard:
    return LocalShard(FileStorage(files), ShardSettings(**SMALL, **settings))


def feed_of(shard: LocalShard) -> ChangeFeed:
    names = DirectoryNames(shard.engine.state.directory)
    return ChangeFeed(shard.store.journal, shard.store.seed, names)


def produce(shard: LocalShard, count: int, at_us: int = NOW_US, topic: str = "t") -> None:
    rows = Rows.of([b"x" * 100] * count)
    reply = shard.call(co.Produce(topic, rows, co.When(due_us=at_us + DAY_US)), at_us, 0)
    assert reply.all_ok


def read(feed: ChangeFeed, after: int, through: int | None = None) -> pa.Table:
    pages = [batch for _, batch in feed.pages(after, feed.last if through is None else through)]
    return pa.Table.from_batches(pages)


def grown(shard: LocalShard, rounds: int = 20) -> None:
    shard.call(co.CreateTopic("t"), NOW_US, 0)
    for number in range(rounds):
        produce(shard, 10, NOW_US + number)


def test_it_shows_everything_from_the_beginning_and_the_same_again() -> None:
    shard = opened(SimulatedFiles())
    grown(shard)
    feed = feed_of(shard)
    found = read(feed, 0)
    assert found.num_rows == 201
    assert found.column("op").to_pylist() == ["topic_created"] + ["produced"] * 200
    assert read(feed, 0).equals(found)
    middle = found.column("position")[100].as_py()
    assert pa.concat_tables([read(feed, 0, middle), read(feed, middle)]).equals(found)


def test_it_is_the_same_after_checkpoints_and_restarts() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    grown(shard)
    before = read(feed_of(shard), 0)
    shard.checkpoint(NOW_US + 100, 0)
    assert read(feed_of(shard), 0).equals(before)
    shard.close()
    again = opened(files)
    assert feed_of(again).last >= before.column("position")[-1].as_py()
    assert read(feed_of(again), 0).slice(0, before.num_rows).equals(before)
    again.close()


def test_what_is_too_much_goes_with_the_next_checkpoint_and_is_said_to_be_gone() -> None:
    shard = opened(SimulatedFiles(), feed_bytes=2 * 8192)
    grown(shard, 60)
    shard.checkpoint(NOW_US + 100, 0)
    feed = feed_of(shard)
    assert 0 < feed.first < feed.last
    with pytest.raises(Gone) as caught:
        read(feed, 0)
    assert caught.value.details == {"first": feed.first, "last": feed.last}
    assert read(feed, feed.first).num_rows > 0


def test_what_is_too_old_goes_and_what_is_not_stays() -> None:
    shard = opened(SimulatedFiles(), feed_age_us=DAY_US)
    grown(shard, 30)
    shard.checkpoint(NOW_US + DAY_US // 2, 0)
    assert feed_of(shard).first == 0
    for number in range(30):
        produce(shard, 10, NOW_US + DAY_US + number)
    shard.checkpoint(NOW_US + 2 * DAY_US - 1, 0)
    feed = feed_of(shard)
    assert feed.first > 0
    assert read(feed, feed.first).column("at_us").to_numpy().max() >= NOW_US + DAY_US


def test_recovery_needs_what_the_feed_would_let_go() -> None:
    files = SimulatedFiles()
    shard = opened(files, feed_bytes=0, feed_age_us=0)
    grown(shard)
    shard.store.trim_feed(NOW_US + 10 * DAY_US)
    assert feed_of(shard).first == 0
    shard.close()
    assert opened(files).call(co.Count("t"), NOW_US, 0).states["scheduled"] == 200


def test_a_full_disk_has_the_feed_make_room() -> None:
    shard = opened(SimulatedFiles())
    grown(shard, 60)
    assert not shard.store.give_up_feed()
    shard.checkpoint(NOW_US + 100, 0)
    assert feed_of(shard).first == 0
    assert shard.store.give_up_feed()
    assert feed_of(shard).first > 0
    assert not shard.store.give_up_feed()


def test_positions_by_time_and_by_rows() -> None:
    shard = opened(SimulatedFiles())
    grown(shard)
    feed = feed_of(shard)
    at = feed.before(NOW_US + 10)
    times = read(feed, at).column("at_us").to_numpy()
    assert times.min() == NOW_US + 10
    assert read(feed, 0, at).column("at_us").to_numpy().max() < NOW_US + 10
    assert feed.before(0) == feed.first
    assert feed.before(NOW_US + DAY_US) == feed.last
    end, rows = feed.end_after(0, 55)
    assert read(feed, 0, end).num_rows == rows == 51
    assert feed.end_after(end, 1) == (end + 1, 10)
    assert feed.end_after(feed.last, 100) == (feed.last, 0)
    assert feed.end_after(0, 55, frozenset({99})) == (feed.last, 0)
    with pytest.raises(NotFound):
        feed.check(feed.last + 1)


def test_topics_that_are_gone_keep_their_name_as_long_as_the_feed_has_them() -> None:
    files = SimulatedFiles()
    shard = opened(files, feed_bytes=4 * 8192)
    grown(shard, 3)
    shard.call(co.DeleteTopic("t"), NOW_US + 50, 0)
    shard.checkpoint(NOW_US + 60, 0)
    shard.close()
    shard = opened(files, feed_bytes=4 * 8192)
    named = set(read(feed_of(shard), 0).column("topic").to_pylist())
    assert named == {"t"}
    shard.call(co.CreateTopic("other"), NOW_US + 60, 0)
    for number in range(60):
        produce(shard, 10, NOW_US + 60 + number, "other")
    for _ in range(2):
        shard.checkpoint(NOW_US + 200, 0)
    assert set(shard.engine.state.directory.topics.values()) == {"other"}


def test_only_whole_groups_are_shown() -> None:
    shard = opened(SimulatedFiles())
    shard.call(co.CreateTopic("t"), NOW_US, 0)
    big = co.Produce("t", Rows.of([b"x"] * 70_000), co.When(due_us=NOW_US + DAY_US))
    step = shard.engine.step([big], NOW_US, 0)
    frames = shard.store.encode(step.frames)
    assert len(frames) == 2
    shard.store.journal.append(frames[:1])
    shard.store.journal.sync()
    feed = feed_of(shard)
    assert feed.last == 1
    assert np.array_equal(read(feed, 0).column("op"), ["topic_created"])
    shard.store.journal.append(frames[1:])
    shard.store.journal.sync()
    assert feed.last == 3
    assert read(feed, 1).num_rows == 70_000


def test_a_groups_number_that_is_used_again_keeps_its_old_name_in_old_rows() -> None:
    files = SimulatedFiles()
    shard = opened(files)
    shard.call(co.CreateTopic("log", TopicSettings(kind="log")), NOW_US, 0)
    assert shard.call(co.Produce("log", Rows.of([b"x"])), NOW_US, 0).all_ok
    for name in ("first", "second"):
        shard.step([co.Lease("log", 1, "worker", 1, group=name)], NOW_US, 0)
        shard.call(DeleteGroup("log", name), NOW_US, 0)
    for again in range(2):
        found = read(feed_of(shard), 0)
        leased = found.filter(pc.field("op") == "leased")
        assert leased.column("group").to_pylist() == ["first", "second"]
        if not again:
            shard.checkpoint(NOW_US, 0)
            shard.close()
            shard = opened(files)
