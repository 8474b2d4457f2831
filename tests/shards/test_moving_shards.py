"""Shards that move between brokers while clients run."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

import fasti
from fasti.broker.caller import EMBEDDED
from fasti.broker.host import Host
from fasti.broker.service import Service
from fasti.client.address import parse_address
from fasti.client.flight_transport import FlightTransport
from fasti.config import ShardSettings
from fasti.errors import (
    AlreadyExists,
    Corruption,
    Fenced,
    InvalidArgument,
    Moved,
    OutcomeUnknown,
    Unavailable,
)
from fasti.storage.memory_storage import MemoryStorage, OpenMemory
from tests.shards.moving_rig import (
    SHARDS,
    WAIT_S,
    Brokers,
    SharedStorage,
    brokers_of,
    load_on,
)
from tests.shards.shards_rig import SETTINGS, close_host


@pytest.fixture
def three() -> Iterator[Brokers]:
    with brokers_of(2, empty=1) as made:
        yield made


def test_polite_moves_under_load(three: Brokers) -> None:
    first, second, third = three.all
    with load_on(three) as load:
        load.go_on()
        for shard, broker in ((1, third), (2, second), (3, first), (1, second)):
            three.move(shard, broker)
            load.go_on(80)
    assert first.host.numbers == [0, 3]
    assert second.host.numbers == [1, 2]
    assert third.host.numbers == []


def test_a_fenced_shard_is_dropped_and_the_others_stay(three: Brokers) -> None:
    with load_on(three) as load:
        load.go_on()
        for shard in (1, 2):
            old = three.take_over(shard, three.all[2])
            assert old.fenced[shard].wait(WAIT_S)
            load.go_on(80)
    assert [broker.host.numbers for broker in three.all] == [[0], [3], [1, 2]]
    assert all(broker.host.failure is None for broker in three.all)


class MeetingStorage(MemoryStorage):
    """Opens when all that are opened with it are at it."""

    def __init__(self, meeting: threading.Barrier) -> None:
        super().__init__()
        self._meeting = meeting

    def open(self, settings: ShardSettings, cut_after: int | None = None) -> OpenMemory:
        self._meeting.wait(WAIT_S)
        return super().open(settings, cut_after)


def test_shards_that_come_at_once_are_opened_side_by_side() -> None:
    """Those of a broker that died: the last need not wait for the first to be read."""
    host, meeting = Host({}, SETTINGS, shards=SHARDS, cluster="moving"), threading.Barrier(SHARDS)
    try:
        with ThreadPoolExecutor(SHARDS) as pool:
            adds = [
                pool.submit(host.add, number, MeetingStorage(meeting), 1)
                for number in range(SHARDS)
            ]
            for add in adds:
                add.result(WAIT_S)
        assert host.numbers == list(range(SHARDS))
        with pytest.raises(AlreadyExists):
            host.add(1, MemoryStorage(), 2)
    finally:
        close_host(host)


class WatchedStorage(MemoryStorage):
    """Opens behind what somebody does meanwhile."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def open(self, settings: ShardSettings, cut_after: int | None = None) -> OpenMemory:
        self._meanwhile()
        return super().open(settings, cut_after)


def test_a_caller_waits_for_a_shard_that_is_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fasti.broker.moves._OPENING_S", WAIT_S)
    host = Host({}, SETTINGS, shards=SHARDS, cluster="moving")
    calls: list[Future[Service]] = []
    try:
        with ThreadPoolExecutor(1) as pool:

            def call() -> None:
                calls.append(pool.submit(host.service, 0))
                # One that does not wait is told at once that the shard is elsewhere.
                wait(calls, 0.05)

            host.add(0, WatchedStorage(call), 1)
            assert calls[0].result(WAIT_S) is host.service(0)
        with pytest.raises(Moved):
            host.service(1)
    finally:
        close_host(host)


def test_who_waits_for_a_shard_hears_when_it_could_not_be_opened() -> None:
    host = Host({}, SETTINGS, shards=SHARDS, cluster="moving")
    try:
        with ThreadPoolExecutor(1) as pool:
            calls: list[Future[Service]] = []

            def call() -> None:
                calls.append(pool.submit(host.service, 0))
                raise Unavailable("no storage")

            with pytest.raises(Unavailable):
                host.add(0, WatchedStorage(call), 1)
            with pytest.raises(Moved):
                calls[0].result(WAIT_S)
    finally:
        close_host(host)


def test_a_shard_that_has_lost_something_stops_alone_and_another_broker_may_lead_it(
    three: Brokers,
) -> None:
    with load_on(three) as load:
        load.go_on()
        old, storage = three.leader(1), three.storages[1]
        storage.damage = Corruption("a pack is lost", file="j-1", offset=7)
        assert old.fenced[1].wait(WAIT_S)
        assert old.host.failure is None
        storage.damage = None
        three.lead(1, three.all[2])
        load.go_on(80)
    assert [broker.host.numbers for broker in three.all] == [[0, 2], [3], [1]]


def test_a_shard_that_nobody_leads_is_waited_for(three: Brokers) -> None:
    first, second, third = three.all
    with fasti.connect(three.address, timeout="30s") as client:
        client.create_topic("t", partitions=SHARDS)
        second.host.drop(1, None, three.epochs[1])
        with pytest.raises(Unavailable, match="shard 1"):
            client.transport.shard(1).call("feed", {}, timeout=1.0)
        with pytest.raises(Unavailable, match="shard 1"):
            client.transport.call("checkpoint", {}, timeout=1.0)
        assert client.transport.shard(3).call("feed", {})[0]["shard"].startswith("3.")
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(client.messages("t").count)
            receipt = client.producer("t").send(b"x", partition=partition_on(client, 1))
            assert not receipt.done
            three.lead(1, third)
            assert receipt.result("30s").ok
            assert call.result(WAIT_S)["ready"] >= 0
    assert first.host.numbers == [0, 2]


def partition_on(client: fasti.Client, shard: int) -> int:
    layout = client.transport.layout("t")
    return next(p for p in range(SHARDS) if layout.shard_of(p) == shard)


def test_a_process_without_shards_says_hello_with_the_whole_map(three: Brokers) -> None:
    empty = three.all[2]
    transport = FlightTransport(parse_address(empty.address))
    try:
        hello = transport.connect()
        assert hello["shard"] is None
        told = {entry["shard"]: (entry["address"], entry["epoch"]) for entry in hello["map"]}
        assert told == {n: (three.leader(n).address, 1) for n in range(SHARDS)}
        assert transport.call("health")[0]["ready"] is True
        assert "fasti_build" in transport.call("metrics")[0]["text"]
        assert transport.call("clock")[0]["now_us"] > 0
        for number in range(SHARDS):
            with pytest.raises(Moved) as refused:
                transport.call("feed", {"shard_number": number})
            assert refused.value.details == {
                "shard": number,
                "address": three.leader(number).address,
                "epoch": 1,
            }
    finally:
        transport.close()
    with fasti.connect(f"fasti://{empty.address}", timeout="30s") as client:
        client.create_topic("t", partitions=SHARDS)
        assert client.producer("t").send(b"x").result("30s").ok


@pytest.mark.parametrize("politely", [True, False])
def test_the_catalogue_moves(three: Brokers, politely: bool) -> None:
    first, second, third = three.all
    with (
        fasti.connect(three.address, timeout="30s") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.create_topic("before", partitions=SHARDS)
        made: list[str] = []
        enough, stop = threading.Event(), threading.Event()

        def make_topics() -> None:
            while not stop.is_set():
                client.create_topic(f"t{len(made)}", partitions=SHARDS)
                made.append(f"t{len(made)}")
                if len(made) >= 3:
                    enough.set()

        making = pool.submit(make_topics)
        assert enough.wait(WAIT_S)
        if politely:
            three.move(0, third)
        else:
            three.take_over(0, third)
            assert first.fenced[0].wait(WAIT_S)
        count = len(made)
        enough.clear()
        assert enough.wait(WAIT_S)
        stop.set()
        making.result(WAIT_S)
        assert len(made) > count
        client.delete_topic("before")
        assert {topic.name for topic in client.topics()} == set(made)
        for broker in three.all:
            for service in broker.host.all_services():
                known = service.placement.catalogue.engine.state.by_name
                assert {name for name in known if not name.startswith("_")} == set(made)
    assert first.host.numbers == [2]
    assert first.host.catalogue is not None
    assert not first.host.catalogue.followers
    assert second.host.numbers == [1, 3]


@pytest.mark.parametrize("politely", [True, False])
def test_consumers_get_their_live_leases_back(three: Brokers, politely: bool) -> None:
    with fasti.connect(three.address, timeout="30s") as client:
        client.create_topic("t", partitions=SHARDS, lease="60s")
        partition = partition_on(client, 1)
        producer = client.producer("t")
        producer.send(b"in hand", partition=partition).result("30s")
        with client.consumer("t", name="c", timeout="30s") as consumer:
            message = next(consumer)
            if politely:
                three.move(1, three.all[2])
            else:
                three.take_over(1, three.all[2])
            # It writes, so that a fenced one learns of it.
            producer.send(b"next", partition=partition).result("30s")
            assert message.ack(wait=True).ok
            after = next(consumer)
            assert (after.payload, after.attempts) == (b"next", 1)
            assert after.ack(wait=True).ok
        assert client.messages("t").count()["done"] == 2


@pytest.mark.parametrize("politely", [True, False])
def test_what_follows_moves_along(three: Brokers, politely: bool) -> None:
    with fasti.connect(three.address, timeout="30s") as client:
        client.create_topic("t", kind="log", partitions=SHARDS)
        client.create_topic("kv", kind="kv", partitions=SHARDS)
        producer, kv = client.producer("t"), client.kv("kv")
        keys = [f"k{n}" for n in range(20)]
        seen: list[bytes] = []
        with (
            client.reader("t", follow=True, timeout="30s") as reader,
            kv.watch(timeout="30s") as watch,
        ):
            for turn in (b"before", b"after"):
                for key in keys:
                    producer.send(turn, key=key)
                    kv.put(key, turn)
                producer.flush("30s")
                seen += [next(reader).payload for _ in keys]
                changes = [next(watch) for _ in keys]
                assert sorted(change.key for change in changes) == sorted(keys)
                assert {bytes(change.value or b"") for change in changes} == {turn}
                for shard in (1, 2) if turn == b"before" else ():
                    if politely:
                        three.move(shard, three.all[2])
                    else:
                        three.take_over(shard, three.all[2])
        assert Counter(seen) == {b"before": 20, b"after": 20}


def test_the_only_shard_of_a_broker_fails_as_before() -> None:
    storage = SharedStorage()
    host = Host({0: storage.take(1)}, SETTINGS)
    storage.epoch = 2
    header = {"version": 1, "topic": "t", "settings": {}}
    with pytest.raises(OutcomeUnknown):
        host.service(0).call(EMBEDDED, "create_topic", header)
    host.wait_ended()
    assert isinstance(host.failure, Fenced)
    with pytest.raises(InvalidArgument):
        host.drop(0, None, 1)
    host.close_services()
    host.abandon()


@pytest.mark.parametrize("politely", [True, False])
def test_nothing_of_a_shard_stays_that_has_left(three: Brokers, politely: bool) -> None:
    first, second, _ = three.all
    with fasti.connect(three.address, timeout="30s") as client:
        client.create_topic("t", partitions=SHARDS)
        producer = client.producer("t")
        partition = partition_on(client, 1)
        producer.send(b"x", partition=partition).result("30s")
        engine = weakref.ref(second.host.service(1).placement.catalogue.engine)
        if politely:
            three.move(1, first)
        else:
            three.take_over(1, first)
        producer.send(b"x", partition=partition).result("30s")
        assert politely or second.fenced[1].wait(WAIT_S)
        assert client.health()["ready"]
    second.host.metrics_text()
    gc.collect()
    assert engine() is None
