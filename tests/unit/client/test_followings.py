"""Streams of several shards to one reader: fair, in order, and none waits for one that is away."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import pyarrow as pa
import pytest

from fasti.client.changes import Changes
from fasti.client.following import Followings
from fasti.client.position import Position
from fasti.client.reader import Reader
from fasti.client.watch import Watch
from fasti.core.layout import Layout
from fasti.errors import FastiError, Gone, InvalidArgument, Unavailable
from fasti.model import TopicSettings
from fasti.protocol.schemas import LOG_ROWS
from fasti.runtime import SystemRuntime
from tests.unit.client.fakes import FakeClock, FakeStream, FakeTransport

WAIT_S = 20.0
FEEDS = ["0.00000000000000aa", "1.00000000000000bb", "2.00000000000000cc"]
SMALL = pa.RecordBatch.from_arrays([pa.array([b"x"])], ["payload"])


class FeedShard(FakeTransport):
    """One shard of several: says where its feed and its partitions are."""

    def __init__(self, number: int, layout: Layout) -> None:
        super().__init__()
        self.number, self._layout = number, layout
        self.last = 10

    def call(self, action: str, header: Any = None, *rest: Any, **more: Any) -> Any:
        self.calls.append((action, header or {}, []))
        if action == "feed":
            feed = FEEDS[self.number]
            if (header or {}).get("shard", feed) != feed:
                raise Gone("another life", details={"first": 0})
            return {"shard": feed, "first": 0, "last": self.last, "position": 7}, []
        if action == "kv_describe":
            return {"position": 5 + self.number}, []
        return super().call(action, header, *rest, **more)

    def plan(self, descriptor: dict[str, Any]) -> list[dict[str, Any]]:
        self.calls.append(("plan", descriptor, []))
        chosen = descriptor.get("offsets") or dict.fromkeys(self._layout.own(self.number), 0)
        return [{"partition": int(n), "offset": at, "end_offset": 9} for n, at in chosen.items()]


class FeedShards:
    """As much of a way to several shards as followers look at."""

    on_network, timeout_s = False, 30.0

    def __init__(self, count: int = 3, **settings: Any) -> None:
        self._layout = Layout.of(TopicSettings(partitions=6, **settings), count)
        self.shards = [FeedShard(number, self._layout) for number in range(count)]
        self.shard_count = count
        self.runtime, self.clock = SystemRuntime(), FakeClock()

    def shard(self, number: int) -> FeedShard:
        return self.shards[number]

    def layout(self, topic: str) -> Layout:
        return self._layout

    def forget_layout(self, topic: str) -> None:
        """It never changes."""

    def streams(self, number: int) -> list[FakeStream]:
        return self.shards[number].streams


def place(number: int) -> dict[str, Any]:
    return {"call": "follow", "number": number}


def until() -> float:
    return time.monotonic() + WAIT_S


def test_what_came_of_several_is_taken_in_turn() -> None:
    shards = FeedShards()
    following = Followings(shards.shards)
    following.begin(place)
    for _ in range(2):
        for number in (2, 0):
            shards.streams(number)[0].arrived({"from": number}, SMALL)
    numbers = []
    for _ in range(4):
        taken = following.take(until(), place)
        assert taken is not None
        numbers.append(taken[0])
    assert numbers == [0, 2, 0, 2]
    assert following.take(time.monotonic(), place) is None
    following.close()
    assert following.take(until(), place) is None


def test_one_that_is_lost_is_opened_again_while_others_go_on() -> None:
    shards = FeedShards()
    following = Followings(shards.shards)
    following.begin(place)
    shards.streams(1)[0].lose()
    taken = following.take(until(), place)
    assert taken is not None
    number, error = taken
    assert number == 1
    assert isinstance(error, FastiError)
    assert following.pause(number, error, until())
    # What another brings is given at once: nothing waits for the pause.
    shards.streams(0)[0].arrived({}, SMALL)
    assert following.take(until(), place) == (0, ({}, SMALL))
    assert following.take(time.monotonic() + 1.0, place) is None
    assert len(shards.streams(1)) == 2
    assert shards.streams(1)[1].descriptor == place(1)
    following.close()


def test_one_that_can_not_be_opened_is_told_of_and_waited_for() -> None:
    shards = FeedShards()
    refusals = [Unavailable("away")]

    def refuse(_: FakeStream) -> None:
        if refusals:
            raise refusals.pop()

    shards.shards[2].on_open = refuse
    following = Followings(shards.shards)
    taken = following.take(until(), place)
    assert taken is not None
    assert taken[0] == 2
    assert isinstance(taken[1], Unavailable)
    assert following.pause(2, taken[1], until())
    assert following.take(time.monotonic() + 1.0, place) is None
    assert len(shards.streams(2)) == 1
    following.close()


def changes_batch(positions: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"position": positions, "op": ["produced"] * len(positions)})


def test_changes_follow_every_shard_and_each_position_moves_by_itself() -> None:
    shards = FeedShards()
    changes = Changes(
        shards, start="latest", topic=None, payload=False, follow=True, timeout="200ms"
    )
    assert changes.position.frames == dict.fromkeys(FEEDS, 10)
    shards.shards[1].on_open = lambda stream: stream.arrived({"position": 12}, changes_batch([12]))
    table = next(changes)
    assert table["shard"].to_pylist() == [FEEDS[1]]
    assert changes.position.frames == {FEEDS[0]: 10, FEEDS[1]: 12, FEEDS[2]: 10}
    # One that says that nothing happened moves, too.
    shards.streams(2)[0].arrived({"position": 15}, None)
    assert next(changes, None) is None
    assert changes.position.frames[FEEDS[2]] == 15
    # Lost: it goes on behind what was given out.
    shards.shards[1].on_open = None
    shards.streams(1)[0].lose()
    assert next(changes, None) is None
    assert shards.streams(1)[1].descriptor["after"] == 12
    changes.close()


def test_what_is_gone_says_of_which_shard() -> None:
    shards = FeedShards()
    changes = Changes(
        shards, start="earliest", topic=None, payload=False, follow=True, timeout="20s"
    )
    shards.shards[2].on_open = lambda stream: stream.end(Gone("dropped", details={"first": 4}))
    with pytest.raises(Gone) as caught:
        next(changes)
    assert caught.value.details == {"first": 4, "shard": FEEDS[2]}
    changes.close()


def test_a_start_must_be_a_place_in_every_shard() -> None:
    shards = FeedShards()
    options: dict[str, Any] = {"topic": None, "payload": False, "follow": True, "timeout": None}
    with pytest.raises(InvalidArgument, match="each of its 3 shards"):
        Changes(shards, start=Position(FEEDS[0], 3), **options)
    other = Position.of({FEEDS[0]: 1, FEEDS[1]: 1, "2.00000000000000dd": 1})
    with pytest.raises(Gone):
        Changes(shards, start=str(other), **options)
    made = Changes(shards, start=str(Position.of(dict.fromkeys(FEEDS, 3))), **options)
    assert made.position.frames == dict.fromkeys(FEEDS, 3)
    made.close()


def test_changes_that_are_thrown_away_end() -> None:
    shards = FeedShards()
    changes = Changes(shards, start="latest", topic=None, payload=False, follow=True, timeout="1ms")
    assert next(changes, None) is None
    gone = weakref.ref(changes)
    following = changes._following
    del changes
    gc.collect()
    assert gone() is None
    assert following.closed


def log_batch(partition: int, first: int, count: int) -> pa.RecordBatch:
    columns = [
        pa.array([partition] * count if name == "partition" else range(first, first + count))
        if name in ("partition", "offset")
        else pa.nulls(count, LOG_ROWS.field(name).type)
        for name in LOG_ROWS.names
    ]
    arrays = [array.cast(field.type) for array, field in zip(columns, LOG_ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LOG_ROWS)


def test_a_reader_asks_each_shard_for_its_own_partitions() -> None:
    shards = FeedShards(kind="log")
    saved = {number: 2 * number for number in range(6)}
    reader = Reader(shards, "events", start=saved, follow=True, timeout="20s")
    with reader:
        assert reader.position == saved
        mine = {int(n): int(n) * 2 for n in shards.layout("events").own(1)}
        (plan,) = [header for action, header, _ in shards.shards[1].calls if action == "plan"]
        assert plan["offsets"] == {str(number): at for number, at in mine.items()}
        partition = next(iter(mine))
        begin = mine[partition]
        shards.shards[1].on_open = lambda stream: stream.arrived({}, log_batch(partition, begin, 2))
        assert [next(reader).offset for _ in range(2)] == [begin, begin + 1]
        assert reader.position == {**saved, partition: begin + 2}
        shards.shards[1].on_open = None
        shards.streams(1)[0].lose()
        shards.streams(0)[0].arrived({}, log_batch(int(shards.layout("events").own(0)[0]), 0, 1))
        next(reader)
    assert "offsets" in shards.streams(0)[0].descriptor


def test_an_offset_without_its_partition_is_refused_where_there_are_several() -> None:
    shards = FeedShards(kind="log")
    with pytest.raises(InvalidArgument, match="name the partition"):
        Reader(shards, "events", start=5).begin()


def kv_batch(position: int, keys: list[str]) -> pa.RecordBatch:
    count = len(keys)
    return pa.record_batch(
        {
            "position": [position] * count,
            "op": ["put"] * count,
            "key": keys,
            "clustering": pa.nulls(count, pa.string()),
            "version": [1] * count,
            "value": [b"v"] * count,
            "headers": pa.nulls(count, pa.map_(pa.string(), pa.string())),
            "content_type": pa.nulls(count, pa.string()),
            "at_us": [0] * count,
            "expires_us": pa.nulls(count, pa.int64()),
        }
    )


def test_a_watch_is_of_every_shard_and_goes_on_by_its_position() -> None:
    shards = FeedShards()
    watch = Watch(shards, "profiles", None, None, "200ms")
    assert watch.position == {0: 5, 1: 6, 2: 7}
    shards.streams(1)[0].arrived({"position": 9}, kv_batch(9, ["a", "b"]))
    assert next(watch).key == "a"
    # Both happened at once: going on means both again.
    assert watch.position == {0: 5, 1: 6, 2: 7}
    assert next(watch).key == "b"
    assert watch.position == {0: 5, 1: 9, 2: 7}
    watch.close()
    again = Watch(shards, "profiles", {"0": 5, "1": 9, "2": 7}, None, None)
    assert [shards.streams(n)[-1].descriptor["position"] for n in range(3)] == [5, 9, 7]
    again.close()
    for wrong in (7, {0: 5}, {0: 5, 1: 9, 2: 7, 3: 1}):
        with pytest.raises(InvalidArgument, match="a number for each of its shards"):
            Watch(shards, "profiles", wrong, None, None)
