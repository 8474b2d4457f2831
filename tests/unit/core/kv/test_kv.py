"""Key-value topics in the engine: what the model in tests/properties leaves to say by example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fasti.broker.kv.requests import KvKeys
from fasti.config import ShardSettings
from fasti.core.commands import Count, CreateTopic, DeleteTopic, Forecast, Produce, When
from fasti.core.keys import Rows
from fasti.core.kv import kind as kv
from fasti.core.kv.commands import (
    ANY_VERSION,
    KvDelete,
    KvDescribe,
    KvExpire,
    KvGet,
    KvPut,
    LoadRemoved,
)
from fasti.core.kv.events import KvProduced, Removed
from fasti.core.replies import Asked
from fasti.errors import InvalidArgument, Overloaded
from fasti.model import MINUTE_US, SECOND_US, Outcome, TopicSettings
from fasti.storage.file_storage import FileStorage
from fasti.storage.files.memory_files import MemoryFiles
from fasti.storage.local_shard import LocalShard

NOW_US = 1_700_000_000 * SECOND_US
SETTINGS = ShardSettings(segment_bytes=1 << 20, memory_bytes=64 << 20, leases_max=64)


class Topic:
    """One topic of one shard, and a time that moves when it is told to."""

    def __init__(self, partitions: int = 1, settings: ShardSettings = SETTINGS) -> None:
        self.files = MemoryFiles()
        self.settings = settings
        self.shard = LocalShard(FileStorage(self.files), settings)
        self.now_us = NOW_US
        self.call(CreateTopic("t", TopicSettings(kind="kv", partitions=partitions)))

    def call(self, command: Any) -> Any:
        reply = self.shard.call(command, self.now_us, 0)
        if reply.error is not None:
            raise reply.error
        return reply

    def keys(self, keys: list[str]) -> KvKeys:
        named = pa.array([key.split("\0")[0] for key in keys], pa.string())
        return KvKeys(pa.array(keys, pa.string()), named, self.shard.store.seed)

    def put(
        self, keys: list[str], versions: Any = ANY_VERSION, expires: When | None = None
    ) -> list[tuple[str, int]]:
        named = self.keys(keys)
        values = [key.encode() for key in keys]
        if isinstance(versions, list):
            versions = np.array(versions, dtype=np.int64)
        rows = Rows.of(values, key=named.values)
        return _told(self.call(KvPut("t", rows, named, versions, expires)))

    def delete(self, keys: list[str], versions: Any = ANY_VERSION) -> list[tuple[str, int]]:
        named = self.keys(keys)
        rows = Rows.of([b""] * len(keys), key=named.values)
        return _told(self.call(KvDelete("t", rows, named, versions)))

    def versions(self, *keys: str) -> list[int]:
        return self.call(KvGet("t", self.keys(list(keys)))).versions.tolist()

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call(KvDescribe("t")).value
        return found

    def restart(self) -> None:
        self.shard.close()
        self.shard = LocalShard(FileStorage(self.files), self.settings)


def _told(reply: Any) -> list[tuple[str, int]]:
    words = [Outcome(int(code)).word for code in reply.status]
    return list(zip(words, reply.versions.tolist(), strict=True))


def delay(us: int) -> When:
    return When(delay_us=us)


def test_a_version_is_never_given_twice() -> None:
    topic = Topic()
    seen: set[int] = set()
    for round_ in range(5):
        for _ in range(3):
            ((status, version),) = topic.put(["a"])
            assert status == "ok"
            assert version not in seen
            seen.add(version)
        topic.delete(["a"])
        if round_ == 2:
            topic.shard.checkpoint(topic.now_us, 0)
        topic.restart()
    assert topic.put(["a"], [max(seen)]) == [("conflict", 0)]


def test_a_version_is_not_given_again_after_it_expired() -> None:
    topic = Topic()
    topic.put(["a"])
    ((_, version),) = topic.put(["a"], expires=delay(SECOND_US))
    topic.now_us += SECOND_US
    # Found expired by the put itself, and by the timeline underneath.
    ((_, again),) = topic.put(["a"], 0, delay(SECOND_US))
    assert again > version
    topic.now_us += 2 * SECOND_US
    topic.shard.step([], topic.now_us, 0)
    assert topic.describe()["expired"] == 0
    ((_, third),) = topic.put(["a"], 0)
    assert third > again


def test_a_batch_of_several_frames() -> None:
    topic = Topic(partitions=2)
    keys = [f"key-{n % 70_000}" for n in range(90_000)]
    told = topic.put(keys)
    assert set(told[:70_000]) == {("ok", 1)}
    assert set(told[70_000:]) == {("ok", 2)}
    assert topic.describe()["entries"] == 70_000
    topic.restart()
    assert topic.versions("key-0", "key-19999", "key-20000", "key-69999") == [2, 2, 1, 1]
    assert set(topic.delete(keys[:70_000])) == {("ok", 1), ("ok", 2)}
    assert topic.describe()["entries"] == 0


def test_one_key_many_times_with_versions() -> None:
    topic = Topic()
    wanted = [0, 0, 1, ANY_VERSION, 1, 3, 9, 4]
    told = topic.put(["a"] * 8, wanted)
    assert [version for _, version in told] == [1, 1, 2, 3, 3, 4, 4, 5]
    assert [status for status, _ in told] == [
        *("ok", "conflict", "ok", "ok"),
        *("conflict", "ok", "conflict", "ok"),
    ]
    # The first that may make an entry does, and those before it are told that there is none.
    told = topic.put(["b"] * 4, [5, 1, 0, 1])
    assert told == [("conflict", 0), ("conflict", 0), ("ok", 1), ("ok", 2)]


def test_deleting_one_key_many_times() -> None:
    topic = Topic()
    topic.put(["a"])
    topic.put(["a"])
    wanted = np.array([1, 2, 2, ANY_VERSION], dtype=np.int64)
    assert topic.delete(["a"] * 4, wanted) == [
        ("conflict", 2),
        ("ok", 2),
        ("not_found", 0),
        ("not_found", 0),
    ]


def test_the_highest_version_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
    topic.put(["a"])
    partition: Any = topic.shard.engine.state.by_name["t"].partitions[0]
    partition.arena.version[partition.ledger.slots(np.array([1]))] = 2**32 - 1
    assert topic.put(["a"]) == [("conflict", 2**32 - 1)]
    assert topic.put(["a", "a"], [ANY_VERSION, 2**32 - 1]) == [("conflict", 2**32 - 1)] * 2
    assert topic.delete(["a"]) == [("ok", 2**32 - 1)]
    assert topic.put(["b"]) == [("conflict", 0)]


def test_what_has_expired_is_removed_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "EXPIRED_PER_CALL", 10)
    topic = Topic(partitions=3)
    keys = [f"key-{n}" for n in range(100)]
    topic.put(keys, expires=delay(MINUTE_US))
    topic.put(["stays"])
    topic.now_us += MINUTE_US - 1
    assert topic.describe()["entries"] == 101
    topic.now_us += 1
    # Whoever asks in the very step that removes them doesn't find them either.
    step = topic.shard.step([KvGet("t", topic.keys([*keys, "stays"]))], topic.now_us, 0)
    assert step.replies[0].versions.tolist() == [0] * 100 + [1]
    removed = [event for frame in step.frames for event in frame.events]
    assert all(isinstance(event, Removed) and event.expired for event in removed)
    assert max(len(event.sequence) for event in removed) == 10  # type: ignore[attr-defined]
    described = topic.describe()
    assert (described["entries"], described["expired"], described["removed"]) == (1, 0, 100)


def test_the_wake_up_is_at_the_first_expiry() -> None:
    topic = Topic()
    topic.put(["a"], expires=delay(90 * SECOND_US))
    topic.put(["b"], expires=delay(70 * SECOND_US))
    topic.put(["c"])
    engine = topic.shard.engine
    woken = []
    while topic.describe()["entries"] > 1:
        step = engine.step([], topic.now_us, 0)
        assert step.wake_at_us is not None
        assert not any(isinstance(effect, Asked) for effect in step.effects)
        topic.now_us = max(step.wake_at_us, topic.now_us)
        woken.append(topic.now_us)
        topic.shard.step([], topic.now_us, 0)
    assert NOW_US + 70 * SECOND_US in woken
    assert topic.now_us == NOW_US + 90 * SECOND_US
    # A handful of steps, on the way through the calendar: nothing polls.
    assert len(woken) < 20


def test_plans_that_no_longer_count_are_dropped() -> None:
    topic = Topic()
    topic.put(["years"], expires=delay(3650 * 24 * 60 * MINUTE_US))
    for n in range(500):
        topic.put([f"short-{n}"], expires=delay(1_000))
        topic.now_us += 1_000
        topic.shard.step([], topic.now_us, 0)
    kind: Any = topic.shard.engine.kind("kv")
    assert topic.describe()["removed"] == 500
    assert len(kind._expiring._heap) < 100
    assert len(kind._expiring) == 1


def test_keys_that_could_not_be_read_are_asked_for_again() -> None:
    topic = Topic()
    topic.put(["a", "b"], expires=delay(SECOND_US))
    topic.now_us += SECOND_US
    engine = topic.shard.engine
    (asked,) = engine.step([], topic.now_us, 0).effects
    assert isinstance(asked, LoadRemoved)
    assert engine.step([], topic.now_us, 0).effects == []
    (again,) = engine.step([asked.failed()], topic.now_us, 0).effects
    assert again.sequences.tolist() == asked.sequences.tolist()
    topic.shard.step([topic.shard.store.answer(again)], topic.now_us, 0)
    assert topic.describe()["removed"] == 2


def test_what_was_put_again_is_not_removed() -> None:
    topic = Topic()
    topic.put(["a", "b", "c"], expires=delay(SECOND_US))
    topic.now_us += SECOND_US
    (asked,) = topic.shard.engine.step([], topic.now_us, 0).effects
    topic.put(["a"])
    answer: KvExpire = topic.shard.store.answer(asked)
    topic.shard.step([answer], topic.now_us, 0)
    assert topic.versions("a", "b", "c") == [2, 0, 0]
    assert topic.describe()["removed"] == 3


def test_an_answer_for_a_topic_that_is_gone() -> None:
    topic = Topic()
    topic.put(["a"], expires=delay(SECOND_US))
    topic.now_us += SECOND_US
    (asked,) = topic.shard.engine.step([], topic.now_us, 0).effects
    answer = topic.shard.store.answer(asked)
    topic.call(DeleteTopic("t"))
    topic.call(CreateTopic("t", TopicSettings(kind="kv")))
    topic.put(["other"])
    topic.shard.step([answer], topic.now_us, 0)
    assert topic.describe()["entries"] == 1


def test_counts_and_forecast() -> None:
    topic = Topic()
    minute = NOW_US - NOW_US % MINUTE_US
    topic.put(["a", "b"], expires=When(due_us=minute + 10 * MINUTE_US))
    topic.put(["c"])
    states = topic.call(Count("t")).states
    assert (states["scheduled"], states["ready"], states["cancelled"]) == (3, 0, 0)
    for _ in range(2):
        found = topic.call(Forecast("t", minute, minute + 100 * MINUTE_US, MINUTE_US))
        assert found.start_us.tolist() == [minute + 10 * MINUTE_US]
        assert found.count.tolist() == [2]
        # Derived anew from what a checkpoint wrote.
        topic.shard.checkpoint(topic.now_us, 0)
        topic.restart()
    assert topic.describe()["expiring"] == 2


def test_what_is_refused_changes_nothing() -> None:
    topic = Topic()
    named, other = topic.keys(["a"]), topic.keys(["a", "b"])
    row = Rows.of([b"1"], key=named.values)
    two = Rows.of([b"1", b"2"], key=pa.array(["a", None]))
    nobody = KvKeys(pa.array(["a", None]), pa.array(["a", None]), topic.shard.store.seed)
    none = Rows.of(pa.array([], pa.binary()), key=pa.array([], pa.string()))
    for command in (
        KvPut("t", row, other),
        KvPut("t", two, nobody),
        KvPut("t", none, topic.keys([])),
        KvPut("t", row, named, -2),
        KvPut("t", row, named, expires=delay(0)),
        KvPut("t", row, named, expires=delay(-5)),
        KvPut("t", row, named, expires=When(due_us=NOW_US)),
        KvPut("t", row, named, np.array([1, 2], dtype=np.int64)),
        Produce("t", row),
    ):
        with pytest.raises(InvalidArgument):
            topic.call(command)
    assert topic.describe()["entries"] == 0


def test_the_memory_budget_holds() -> None:
    topic = Topic(settings=ShardSettings(segment_bytes=1 << 20, memory_bytes=1 << 20))
    batches = [[f"key-{n}-{m}" for m in range(5_000)] for n in range(20)]
    with pytest.raises(Overloaded):
        list(map(topic.put, batches))
    assert topic.describe()["entries"] % 5_000 == 0
    # What frees memory works.
    assert {status for status, _ in topic.delete(batches[0])} == {"ok"}


def test_new_entries_say_their_version() -> None:
    topic = Topic()
    topic.put(["a"])
    topic.put(["a"])
    topic.delete(["a"])
    named = topic.keys(["a", "b"])
    rows = Rows.of([b"1", b"2"], key=named.values)
    step = topic.shard.step([KvPut("t", rows, named)], topic.now_us, 0)
    (event,) = step.frames[0].events
    assert isinstance(event, KvProduced)
    assert event.version == 3
