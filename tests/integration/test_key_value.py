"""Key-value topics by the SDK, on a broker process and on one inside this process."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import fasti
import fasti.aio
from fasti.broker.launch import BrokerProcess
from fasti.client.kv import KeyValues
from fasti.errors import (
    Closed,
    Gone,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    TransactionAborted,
)
from fasti.testing import VirtualBroker
from tests.integration.serve_rig import SEGMENTS
from tests.unit.aio.stories import no_threads_left


@pytest.fixture
def kv(client: fasti.Client, request: pytest.FixtureRequest) -> KeyValues:
    name = request.node.name.split("[")[0]
    client.create_topic(name, kind="kv", partitions=3)
    return client.kv(name)


def test_put_get_and_delete(kv: KeyValues) -> None:
    assert kv.get("user-7") is None
    assert kv.put("user-7", b"one", headers={"a": "b"}, content_type="text/plain").version == 1
    entry = kv.get("user-7")
    assert entry is not None
    assert (entry.key, entry.clustering, entry.value, entry.version) == ("user-7", None, b"one", 1)
    assert (entry.headers, entry.content_type, entry.expires) == ({"a": "b"}, "text/plain", None)
    assert kv.put("user-7", b"two").version == 2
    assert kv.delete("user-7").ok
    assert kv.get("user-7") is None
    assert kv.delete("user-7").status == "not_found"
    # A key that is made again never has an old version.
    assert kv.put("user-7", b"three").version > 2


def test_compare_and_set(kv: KeyValues) -> None:
    assert kv.put("k", b"1", version=0).ok
    again = kv.put("k", b"2", version=0)
    assert (again.status, again.version) == ("conflict", 1)
    assert kv.put("k", b"2", version=1).version == 2
    assert kv.put("k", b"3", version=1).status == "conflict"
    assert kv.delete("k", version=1).status == "conflict"
    assert kv.delete("k", version=2).ok
    assert kv.put("k", b"4", version=2).status in ("conflict", "not_found")


def test_counting_by_many_at_once_loses_nothing(kv: KeyValues) -> None:
    """What compare-and-set is for."""
    kv.put("n", b"0")

    def add() -> None:
        for _ in range(10):
            while True:
                entry = kv.get("n")
                assert entry is not None
                if kv.put("n", b"%d" % (int(entry.value) + 1), version=entry.version).ok:
                    break

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entry = kv.get("n")
    assert entry is not None
    assert entry.value == b"40"


def test_many_at_once(kv: KeyValues) -> None:
    outcomes = kv.put_many({"a": b"1", "b": b"2"})
    assert outcomes.all_ok
    assert kv.put_many(["a", "c"], [b"3", b"4"], version=[0, 0]).status == ["conflict", "ok"]
    assert kv.put_many(pa.table({"key": ["d", "d"], "value": [b"5", b"6"]})).all_ok
    found = kv.get_many(["d", "nobody", "a"])
    assert found.column("status").to_pylist() == ["ok", "not_found", "ok"]
    assert found.column("value").to_pylist() == [b"6", None, b"1"]
    without = kv.get_many(["d"], values=False)
    assert without.column("version").to_pylist() == [2]
    assert kv.delete_many(["a", "nobody"]).status == ["ok", "not_found"]
    assert kv.count() == 3
    assert kv.get_many([]).num_rows == 0
    assert len(kv.put_many([], [])) == 0


def test_more_values_than_one_answer_holds(kv: KeyValues) -> None:
    kv.put("large", b"x" * 1_000_000)
    found = kv.get_many(["large"] * 130)
    assert found.num_rows == 130
    assert found.column("status").to_pylist() == ["ok"] * 130


def test_clustering_keys_and_ranges(kv: KeyValues) -> None:
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    kv.put_many(["user-1"] * 3, [b"a", b"b", b"c"], clustering=days)
    kv.put_many({"user-1": b"plain", "user-10": b"x", "user-2": b"y", "zebra": b"z"})
    assert kv.range(key="user-1").column("value").to_pylist() == [b"plain", b"a", b"b", b"c"]
    assert kv.range(prefix="user-1").column("value").to_pylist() == [
        b"plain",
        b"a",
        b"b",
        b"c",
        b"x",
    ]
    span = kv.range(start=("user-1", "2026-01-02"), end="user-2")
    assert span.column("value").to_pylist() == [b"b", b"c", b"x"]
    assert kv.range(limit=2).num_rows == 2
    assert kv.range(prefix="nobody").num_rows == 0
    assert [entry.key for entry in kv][-2:] == ["user-2", "zebra"]
    assert kv.get("user-1", clustering=days[1]).value == b"b"  # type: ignore[union-attr]
    assert kv.delete("user-1", clustering=days[1]).ok
    assert kv.range(key="user-1").num_rows == 3
    with pytest.raises(InvalidArgument):
        kv.range(prefix="a", start="b")
    with pytest.raises(InvalidArgument):
        kv.range(start=("a", "b", "c"))  # type: ignore[arg-type]


def test_entries_expire(kv: KeyValues) -> None:
    with kv.watch(timeout="60s") as changes:
        kv.put("at", b"3", expires=datetime.now(UTC) + timedelta(hours=1))
        kv.put_many(["soon", "late"], [b"1", b"2"], ttl=["100ms", "1h"])
        seen = []
        for change in changes:
            seen.append((change.op, change.key))
            if change.op == "expire":
                break
    assert sorted(seen[:3]) == [("put", "at"), ("put", "late"), ("put", "soon")]
    assert seen[3:] == [("expire", "soon")]
    assert kv.get("soon") is None
    assert kv.get("late").expires is not None  # type: ignore[union-attr]
    assert kv.range().column("key").to_pylist() == ["at", "late"]
    assert kv.put("soon", b"again", version=0).ok


@pytest.mark.one_shard
def test_watching_from_a_position(kv: KeyValues) -> None:
    start = kv.position()
    kv.put("a", b"1")
    kv.put("b", b"2")
    kv.delete("a")
    with kv.watch(position=start, timeout="60s") as changes:
        seen = [next(changes) for _ in range(3)]
        told = [(change.op, change.key, change.value) for change in seen]
        assert told == [("put", "a", b"1"), ("put", "b", b"2"), ("delete", "a", None)]
        assert changes.position == seen[-1].position
    middle = kv.watch(position=seen[0].position, prefix="b", timeout="60s")
    kv.put("b2", b"3")
    # Nothing of another prefix stands between the two.
    assert [next(middle).key for _ in range(2)] == ["b", "b2"]
    middle.close()
    assert list(middle) == []
    with pytest.raises(Gone):
        list(kv.watch(position=seen[-1].position + 1_000_000, timeout="60s"))


def test_watching_by_batches(kv: KeyValues) -> None:
    start = kv.position()
    kv.put_many([f"k{n}" for n in range(3_000)], [b"x"] * 3_000)
    kv.put("last", b"y")
    seen: list[str] = []
    with kv.watch(position=start, timeout="60s") as changes:
        for batch in changes.batches():
            seen += batch.column("key").to_pylist()
            if len(seen) == 3_001:
                break
        assert changes.position == kv.position()
        kv.put_many(["a", "a"], [b"1", b"2"], clustering=["1", "2"])
        assert next(changes).op == "put"
        with pytest.raises(IllegalTransition):
            next(changes.batches())
    assert sorted(seen) == sorted(["last", *(f"k{n}" for n in range(3_000))])


@pytest.mark.one_shard
def test_what_happened_at_once_is_seen_whole(client: fasti.Client, kv: KeyValues) -> None:
    with kv.watch(timeout="60s") as changes:
        before = changes.position
        with client.transaction() as tx:
            tx.put(kv.topic, "a", b"1")
            tx.put_many(kv.topic, {"b": b"2", "c": b"3"})
            tx.delete(kv.topic, "a")
        seen = [next(changes)]
        while (change := changes.take()) is not None:
            seen.append(change)
        # Between its rows a watch stands before all of it.
        assert len({change.position for change in seen}) == 1
        assert changes.position > before
    assert {change.key for change in seen} == {"a", "b", "c"}


def test_transactions_over_kinds(client: fasti.Client, kv: KeyValues) -> None:
    # Equal keys of topics with equal partitions lie on one shard; rows without go to any.
    client.create_topic("work-kv", partitions=3)
    client.create_topic("done-kv", kind="log", partitions=4)
    with client.producer("work-kv") as producer:
        producer.send(b"job", key="state").result(60)
    with client.consumer("work-kv", timeout="60s") as consumer:
        message = next(iter(consumer))
        kv.put("state", b"busy")
        failing = client.transaction()
        failing.ack(message)
        failing.put(kv.topic, "state", b"done", version=7)
        with pytest.raises(TransactionAborted) as aborted:
            failing.commit()
        assert aborted.value.details["failures"][0]["status"] == "conflict"
        with client.transaction() as tx:
            tx.ack(message)
            tx.put(kv.topic, "state", b"done", version=1)
            tx.send("done-kv", b"job")
    assert kv.get("state").value == b"done"  # type: ignore[union-attr]
    assert [row.payload for row in client.reader("done-kv")] == [b"job"]
    assert client.messages("work-kv").count()["done"] == 1
    for name in ("work-kv", "done-kv"):
        client.delete_topic(name)


def test_bad_input_is_refused_by_name(client: fasti.Client, kv: KeyValues) -> None:
    for bad in (
        lambda: kv.put("", b"1"),
        lambda: kv.put("a\0b", b"1"),
        lambda: kv.put("a", b"1", clustering="\0"),
        lambda: kv.put("a", "text"),  # type: ignore[arg-type]
        lambda: kv.put("a", b"1", version=-1),
        lambda: kv.put("a" * 513, b"1"),
        lambda: kv.put("a", b"1", ttl="-1s"),
        lambda: kv.put("a", b"1", ttl="1s", expires=datetime.now(UTC)),
        lambda: kv.put_many(["a"], [b"1", b"2"]),
        lambda: kv.put_many(pa.table({"key": ["a"], "vaule": [b"1"]})),
        lambda: kv.put_many("ab", [b"1", b"2"]),
        lambda: kv.get_many([None]),
        lambda: list(kv.watch(position=-1)),
    ):
        with pytest.raises(InvalidArgument):
            bad()
    assert kv.count() == 0
    with pytest.raises(NotFound):
        client.kv("nowhere").put("a", b"1")
    client.create_topic("timeline-kv")
    with pytest.raises(InvalidArgument, match="timeline"):
        client.kv("timeline-kv").get("a")
    with pytest.raises(InvalidArgument, match="kv"):
        client.messages(kv.topic).cancel(key="a")


def test_in_virtual_time() -> None:
    with VirtualBroker() as virtual:
        client = virtual.client()
        client.create_topic("sessions", kind="kv")
        sessions = client.kv("sessions")
        with sessions.watch(timeout="60s") as changes:
            sessions.put_many(["a", "b"], [b"1", b"2"], ttl=["3d", "4d"])
            assert [next(changes).op for _ in range(2)] == ["put", "put"]
            virtual.advance(timedelta(days=3) - timedelta(microseconds=1))
            assert sessions.get("a") is not None
            virtual.advance(timedelta(microseconds=1))
            assert sessions.get("a") is None
            assert (sessions.count(), sessions.range().num_rows) == (1, 1)
            virtual.advance("30d")
            gone = [next(changes) for _ in range(2)]
            assert [(change.op, change.key) for change in gone] == [
                ("expire", "a"),
                ("expire", "b"),
            ]
        assert sessions.put("a", b"3", version=0).ok


def test_a_watch_goes_on_over_a_broker_that_is_killed(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", settings=SEGMENTS) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("kv", kind="kv")
        kv = client.kv("kv")
        seen: dict[str, list[bytes | None]] = {f"k{number}": [] for number in range(7)}
        told = threading.Event()

        def look() -> None:
            with kv.watch(timeout="60s") as changes:
                told.set()
                for _, change in zip(range(300), changes, strict=False):
                    seen[change.key].append(change.value)

        watching = threading.Thread(target=look)
        watching.start()
        assert told.wait(60)
        for number in range(300):
            if number in (100, 200):
                broker.kill()
                broker.start()
            assert kv.put(f"k{number % 7}", b"%d" % number).ok
        watching.join(60)
        assert not watching.is_alive()
        for key in range(7):
            assert seen[f"k{key}"] == [b"%d" % number for number in range(key, 300, 7)]


def test_closing_the_client_ends_its_watches(broker: BrokerProcess) -> None:
    client = fasti.connect(broker.address)
    client.create_topic("closing-kv", kind="kv")
    watch = client.kv("closing-kv").watch()
    ended = threading.Thread(target=lambda: list(watch))
    ended.start()
    client.close()
    ended.join(60)
    assert not ended.is_alive()
    with pytest.raises(Closed):
        client.kv("closing-kv")


def test_from_an_event_loop(broker: BrokerProcess) -> None:
    async def story() -> None:
        async with fasti.aio.connect(broker.address) as client:
            await client.create_topic("loop-kv", kind="kv")
            kv = client.kv("loop-kv")
            async with kv.watch(prefix="user-") as changes:
                assert (await kv.put("user-7", b"1", version=0)).ok
                assert (await kv.put_many({"other": b"2", "user-8": b"3"})).all_ok
                async with client.transaction() as tx:
                    tx.put("loop-kv", "user-9", b"4")
                seen = [(await anext(changes)).key for _ in range(3)]
                # A task that was cancelled while it waited has taken nothing.
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await anext(changes)
                await kv.delete("user-7")
                async for batch in changes.batches():
                    assert batch.column("op").to_pylist() == ["delete"]
                    break
                assert changes.position == await kv.position()
            assert sorted(seen) == ["user-7", "user-8", "user-9"]
            assert (await kv.get("user-8")).value == b"3"  # type: ignore[union-attr]
            assert (await kv.get_many(["other"])).column("value").to_pylist() == [b"2"]
            assert (await kv.range(prefix="user-")).num_rows == 2
            assert sum([batch.num_rows async for batch in kv.scan()]) == 3
            assert [entry.key async for entry in kv.entries(prefix="o")] == ["other"]
            assert await kv.count() == 3
            assert (await kv.delete_many(["other"])).all_ok

    with no_threads_left():
        asyncio.run(story())
