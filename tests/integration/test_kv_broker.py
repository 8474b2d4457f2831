"""Key-value topics of a threaded shard: watching and scanning while journals are trimmed, disks fail
and rings overflow; compaction of what was overwritten."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from fasti.broker.caller import EMBEDDED
from fasti.broker.kv import order as kv_order
from fasti.broker.kv import reads as kv_reads
from fasti.broker.kv import rings
from fasti.broker.metrics.counts import Metrics
from fasti.broker.placement import OneShard
from fasti.broker.service import Service
from fasti.config import Durability
from fasti.errors import FastiError, Gone, OutcomeUnknown, Overloaded
from fasti.storage.files.memory_files import MemoryFiles
from tests.integration.shard_rig import SETTINGS, SharedFiles, serving

SMALL = replace(SETTINGS, segment_bytes=8192)
HEAD = {"version": 1, "topic": "t"}


@contextmanager
def service_on(files: Any, settings: Any = SMALL) -> Iterator[Service]:
    with serving(files, settings) as shard:
        service = Service(OneShard(shard), Metrics())
        try:
            yield service
        finally:
            service.close()


def call(service: Service, action: str, header: dict[str, Any], **columns: Any) -> dict[str, Any]:
    parts = [pa.table(columns)] if columns else []
    return service.call(EMBEDDED, action, {"version": 1, **header}, parts)[0]


def make(service: Service, topic: str = "t", **settings: Any) -> None:
    header = {"topic": topic, "settings": {"kind": "kv", **settings}}
    call(service, "create_topic", header)


def put(service: Service, keys: list[str], value: bytes = b"v", topic: str = "t") -> Any:
    return call(service, "kv_put", {"topic": topic}, key=keys, value=[value] * len(keys))


def delete(service: Service, keys: list[str]) -> Any:
    return call(service, "kv_delete", {"topic": "t"}, key=keys)


def position(service: Service, topic: str = "t") -> int:
    return int(call(service, "kv_describe", {"topic": topic})["position"])


def scan(service: Service, **filters: Any) -> list[str]:
    _, batches = service.read(EMBEDDED, {"version": 1, "call": "kv", "topic": "t", **filters})
    return [key for batch in batches for key in batch.column("key").to_pylist()]


class Watching:
    """A watcher whose words are read as they are asked for."""

    def __init__(self, service: Service, after: int | None = None, topic: str = "t") -> None:
        self._service = service
        descriptor = {"version": 1, "call": "watch", "topic": topic, "position": after}
        self._session = service.exchange(EMBEDDED, descriptor)

    def keys(self, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            written = self._session.next()
            assert written is not None
            header, batch = written
            assert header["kind"] != "error", header
            if batch is not None:
                found += batch.column("key").to_pylist()
        assert len(found) == count
        return found

    def end(self) -> None:
        self._service.leave(self._session)


def numbered(first: int, count: int) -> list[str]:
    return [f"key-{n:05d}" for n in range(first, first + count)]


# Watching


def test_what_the_journal_has_lost_is_gone() -> None:
    with service_on(SharedFiles()) as service:
        make(service)
        before = position(service)
        for n in range(40):
            put(service, [f"key-{n}"], bytes(600))
        service.placement.catalogue.checkpoint()
        assert service.placement.catalogue.store.journal.first_sequence > before + 1
        with pytest.raises(Gone) as gone:
            Watching(service, before)
        earliest = gone.value.details["earliest"]
        watching = Watching(service, earliest)
        put(service, ["last"])
        rest = position(service) - earliest
        assert watching.keys(rest)[-1] == "last"
        watching.end()


def test_a_topic_that_did_not_change_is_never_gone() -> None:
    with service_on(SharedFiles()) as service:
        make(service)
        make(service, "other")
        put(service, ["a"])
        before = position(service)
        for n in range(40):
            put(service, [f"key-{n}"], bytes(600), topic="other")
        service.placement.catalogue.checkpoint()
        assert service.placement.catalogue.store.journal.first_sequence > before + 1
        watching = Watching(service, before)
        put(service, ["b"])
        assert watching.keys(1) == ["b"]
        watching.end()
        assert service.placement.catalogue.feed.watchers == 0
        files = service.placement.catalogue._storage.files
    # That the topic has not changed since is known after a restart, too.
    with service_on(files) as service:
        watching = Watching(service, position(service))
        put(service, ["c"])
        assert watching.keys(1) == ["c"]
        watching.end()


def test_a_watcher_that_is_slower_than_its_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "ROWS_MAX", 4)
    with service_on(SharedFiles(), SETTINGS) as service:
        make(service)
        watching = Watching(service)
        assert watching.keys(0) == []
        keys = numbered(0, 60)
        for begin in range(0, 60, 3):
            put(service, keys[begin : begin + 3])
        assert watching.keys(60) == keys
        put(service, ["last"])
        assert watching.keys(1) == ["last"]
        watching.end()


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_watchers_and_scans_over_a_failure_of_the_disk(kind: str) -> None:
    files = SharedFiles()
    with service_on(files) as service:
        make(service)
        watching = Watching(service)
        files.faulty = ".segment"
        acknowledged = []
        for n in range(30):
            if n % 10 == 5:
                assert scan(service) == sorted(acknowledged)
                files.fail(kind, 1)
            try:
                put(service, [f"key-{n:05d}"])
            except OutcomeUnknown:
                continue
            acknowledged.append(f"key-{n:05d}")
        assert service.placement.catalogue.recoveries == 3
        assert scan(service) == acknowledged
        assert watching.keys(len(acknowledged)) == acknowledged
        watching.end()


def test_watching_what_is_answered_before_it_is_synced() -> None:
    settings = replace(SETTINGS, durability=Durability.INTERVAL, sync_interval_ms=300)
    with service_on(SharedFiles(), settings) as service:
        make(service)
        keys = numbered(0, 20)
        for key in keys:
            put(service, [key])
        # Written and answered, but the journal shows them when they are synced.
        watching = Watching(service, 0)
        put(service, ["last"])
        assert watching.keys(21) == [*keys, "last"]
        watching.end()


def test_no_more_watchers_than_allowed() -> None:
    settings = replace(SMALL, limits=replace(SMALL.limits, watchers_max=2))
    with service_on(SharedFiles(), settings) as service:
        make(service)
        watchers = [Watching(service), Watching(service)]
        with pytest.raises(Overloaded):
            Watching(service)
        watchers.pop().end()
        watchers.append(Watching(service))
        for watching in watchers:
            watching.end()


def test_writers_and_watchers_at_once() -> None:
    with service_on(SharedFiles(), SETTINGS) as service:
        make(service, partitions=3)
        watchers = [Watching(service) for _ in range(3)]
        told: list[list[str]] = []

        def write(name: str) -> None:
            for n in range(50):
                put(service, [f"{name}-{n:03d}", f"{name}-{n:03d}-b"])

        def watch(watching: Watching) -> None:
            told.append(watching.keys(400))

        threads = [threading.Thread(target=watch, args=(each,)) for each in watchers]
        threads += [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert len(told) == 3
        assert told[0] == told[1] == told[2]
        assert sorted(told[0]) == scan(service)
        for watching in watchers:
            watching.end()


class Copy:
    """A copy of a topic, kept by whoever reads all of it and then watches; again when `gone`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.entries: dict[str, tuple[bytes, int]] = {}
        self.started = 0

    def run(self) -> None:
        while True:
            self.started += 1
            after = position(self._service)
            _, batches = self._service.read(EMBEDDED, {"version": 1, "call": "kv", "topic": "t"})
            rows = [row for batch in batches for row in batch.to_pylist()]
            self.entries = {row["key"]: (row["value"], row["version"]) for row in rows}
            try:
                if self._watch(after):
                    return
            except Gone:
                continue

    def _watch(self, after: int) -> bool:
        descriptor = {"version": 1, "call": "watch", "topic": "t", "position": after}
        session = self._service.exchange(EMBEDDED, descriptor)
        try:
            while "end" not in self.entries:
                written = session.next()
                assert written is not None
                header, batch = written
                if header["kind"] == "error":
                    assert header["error"]["code"] == "gone", header
                    return False
                for row in [] if batch is None else batch.to_pylist():
                    if row["op"] == "put":
                        self.entries[row["key"]] = row["value"], row["version"]
                    else:
                        self.entries.pop(row["key"], None)
            return True
        finally:
            self._service.leave(session)


def test_copies_stay_true_while_the_journal_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads all and then watches has it all, however often it must begin again."""
    monkeypatch.setattr(rings, "ROWS_MAX", 8)
    with service_on(MemoryFiles()) as service:
        make(service, partitions=2)
        copies = [Copy(service) for _ in range(3)]
        threads = [threading.Thread(target=copy.run, daemon=True) for copy in copies]
        for thread in threads:
            thread.start()
        rng = random.Random(3)
        for n in range(300):
            keys = [f"key-{rng.randrange(50)}" for _ in range(4)]
            if n % 5 == 4:
                delete(service, keys)
            else:
                put(service, keys, b"%d" % n + bytes(rng.choice([0, 900])))
            if n % 10 == 9:
                service.placement.catalogue.checkpoint()
        put(service, ["end"])
        for thread in threads:
            thread.join(50)
        for copy in copies:
            checked = Copy(service)
            checked.run()
            assert copy.entries == checked.entries
        assert service.placement.catalogue.store.journal.first_sequence > 100


def test_counters_that_many_raise_at_once() -> None:
    """Compare-and-set loses no update and makes none up, single or in transactions."""
    with service_on(SharedFiles(), SETTINGS) as service:
        make(service, partitions=2)
        put(service, ["a", "b"], b"0")
        conflicts: list[bool] = []
        together = threading.Barrier(4)

        def read() -> list[tuple[int, int]]:
            _, (table,) = service.call(EMBEDDED, "kv_get", HEAD, [pa.table({"key": ["a", "b"]})])
            return [(int(row["value"]), row["version"]) for row in table.to_pylist()]

        def raise_both() -> None:
            done = 0
            while done < 25:
                (a, first), (b, second) = read()
                # At the beginning all have read the same: three of them come too late.
                if not together.broken:
                    with suppress(threading.BrokenBarrierError):
                        together.wait(60)
                    together.abort()
                assert a == b, "half of a transaction was seen"
                rows = [
                    {"key": ["a"], "value": [b"%d" % (a + 1)], "version": [first]},
                    {"key": ["b"], "value": [b"%d" % (b + 1)], "version": [second]},
                ]
                commands = [{"op": "kv_put", "topic": "t"}] * 2
                parts = [pa.table(each) for each in rows]
                header = {"version": 1, "commands": commands}
                reply, _ = service.call(EMBEDDED, "transaction", header, parts)
                done += reply["committed"]
                conflicts.append(not reply["committed"])

        threads = [threading.Thread(target=raise_both) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert [value for value, _ in read()] == [100, 100]
        assert [version for _, version in read()] == [101, 101]
        assert sum(conflicts) >= 3


# Scans


def test_scans_while_keys_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_order, "_ASKED_MIN", 8)
    with service_on(MemoryFiles(), SETTINGS) as service:
        make(service, partitions=2)
        present: set[str] = set()
        for round_ in range(30):
            new = numbered((round_ * 37) % 100, 20)
            put(service, new)
            present |= set(new)
            gone = sorted(present)[:: 3 + round_ % 4]
            delete(service, gone)
            present -= set(gone)
            if round_ % 7 == 3:
                service.placement.catalogue.checkpoint()
            assert scan(service) == sorted(present)
            assert scan(service, prefix="key-0005") == [
                key for key in sorted(present) if key.startswith("key-0005")
            ]
            middle = {"from": "key-00020", "to": "key-00070", "limit": 7}
            inside = [key for key in sorted(present) if "key-00020" <= key < "key-00070"]
            assert scan(service, **middle) == inside[:7]


def test_an_order_that_nobody_uses_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_order, "_PENDING_MIN", 50)
    with service_on(MemoryFiles(), SETTINGS) as service:
        make(service)
        put(service, ["a"])
        assert scan(service) == ["a"]
        for n in range(30):
            put(service, numbered(10 * n, 10))
        order = service.kv._orders["t"]
        assert order._pending_rows <= 50
        assert scan(service) == ["a", *numbered(0, 300)]


def test_a_topic_that_is_made_again_is_another() -> None:
    with service_on(MemoryFiles(), SETTINGS) as service:
        make(service)
        put(service, ["a", "b"])
        assert scan(service) == ["a", "b"]
        call(service, "delete_topic", {"topic": "t"})
        with pytest.raises(FastiError):
            scan(service)
        make(service)
        assert scan(service) == []
        put(service, ["c"])
        assert scan(service) == ["c"]


def test_only_so_many_orders_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_reads, "ORDERS_MAX", 2)
    with service_on(MemoryFiles(), SETTINGS) as service:
        for topic in "tuv":
            make(service, topic)
            put(service, ["a", topic], topic=topic)
        for _ in range(2):
            for topic in "tuv":
                _, batches = service.read(EMBEDDED, {"version": 1, "call": "kv", "topic": topic})
                assert [batch.column("key").to_pylist() for batch in batches] == [["a", topic]]
        assert list(service.kv._orders) == ["u", "v"]


def test_values_larger_than_a_piece() -> None:
    with service_on(MemoryFiles(), SETTINGS) as service:
        make(service)
        keys = numbered(0, 20)
        for key in keys:
            put(service, [key], bytes(1 << 20))
        _, batches = service.read(EMBEDDED, {"version": 1, "call": "kv", "topic": "t"})
        sizes = [batch.nbytes for batch in batches]
        assert len(sizes) > 1
        assert sum(sizes) > 20 << 20
        assert max(sizes) < 18 << 20


# Compaction


def test_values_that_are_overwritten_take_no_space() -> None:
    files = MemoryFiles()
    settings = replace(SETTINGS, segment_bytes=4 << 20)
    with service_on(files, settings) as service:
        make(service)
        keys = numbered(0, 10_000)
        sizes = []
        for round_ in range(40):
            # By turns all of them, and a third, which leaves blocks that are dead in part.
            put(service, keys[:: 1 + 2 * (round_ % 2)], b"%0100d" % round_)
            service.placement.catalogue.checkpoint()
            sizes.append(sum(files.open(name, False).size for name in files.list("blocks/")))
        # As large after forty rounds as after ten, and never more than what lives and as much.
        assert max(sizes[10:]) <= 1.1 * max(sizes[:10])
        assert max(sizes) < 2 * 10_000 * 250
        assert len(scan(service)) == 10_000
    with service_on(files, settings) as service:
        table = service.call(
            EMBEDDED, "kv_get", {"version": 1, "topic": "t"}, [pa.table({"key": keys})]
        )[1]
        values, versions = (table[0].column(name).to_pylist() for name in ("value", "version"))
        found = list(zip(values, versions, strict=True))
        assert set(found[::3]) == {(b"%0100d" % 39, 40)}
        assert set(found[1::3]) == {(b"%0100d" % 38, 20)}
