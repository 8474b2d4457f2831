"""Shards whose servers are away for a while: everything stays as it is, and others don't notice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import fasti
from fasti.broker.shard import Shard
from fasti.core import commands as co
from fasti.core.commands import CreateTopic, Get, Target
from fasti.errors import Moved, NoQuorum, OutcomeUnknown
from fasti.model import TopicSettings
from tests.cluster.nats_rig import wait_until
from tests.integration.shard_rig import int64s, produce
from tests.shards.moving_rig import (
    SHARDS,
    WAIT_S,
    Broker,
    Brokers,
    SharedStorage,
    brokers_of,
    load_on,
)
from tests.shards.shards_rig import SETTINGS

LEASE_US = 1_000_000


@pytest.fixture
def two() -> Iterator[Brokers]:
    with brokers_of(1, empty=1) as made:
        yield made


def shard_of(broker: Broker, number: int) -> Shard:
    return {shard.place.number: shard for shard in broker.host.all_shards()}[number]


@contextmanager
def away(storage: SharedStorage) -> Iterator[None]:
    """Its servers are."""
    storage.answers.clear()
    try:
        yield
    finally:
        storage.answers.set()


def wait_for_outage(shard: Shard) -> None:
    wait_until(lambda: shard.committer.no_quorum is not None, "the outage", WAIT_S)


def make_topic(shard: Shard) -> None:
    settings = TopicSettings(lease_us=LEASE_US, partitions=SHARDS)
    assert shard.call(CreateTopic("t", settings), 10).error is None


@contextmanager
def alone() -> Iterator[tuple[SharedStorage, Shard]]:
    """A shard on a storage with servers, with a topic."""
    storage = SharedStorage()
    shard = Shard(storage.take(1), SETTINGS)
    try:
        make_topic(shard)
        yield storage, shard
    finally:
        storage.answers.set()
        shard.close(checkpoint=False)


def test_under_load_nothing_and_no_session_is_lost_and_other_shards_go_on(two: Brokers) -> None:
    shards = [shard_of(two.all[0], number) for number in range(SHARDS)]
    with load_on(two) as load, fasti.connect(two.address, timeout="30s") as client:
        load.go_on()
        engines = [shard.engine for shard in shards]
        sessions = [dict(shard.sessions) for shard in shards]
        with away(two.storages[1]):
            wait_for_outage(shards[1])
            layout = client.transport.layout("t")
            others = [p for p in range(2 * SHARDS) if layout.shard_of(p) != 1]
            with client.producer("t") as producer:
                for partition in others:
                    number = 90_000_000 + partition
                    assert producer.send(b"%d" % number, partition=partition).result("30s").ok
                    load.sent.add(number)
            wait_until(
                lambda: all(load.taken[90_000_000 + partition] for partition in others),
                "messages of the other shards",
                WAIT_S,
            )
            assert [shard.committer.no_quorum is None for shard in shards] == [
                True,
                False,
                True,
                True,
            ]
        load.go_on()
        assert [dict(shard.sessions) for shard in shards] == sessions
    assert [shard.engine for shard in shards] == engines
    assert [shard.recoveries for shard in shards] == [0] * SHARDS
    assert shards[1].committer.outages == 1


def test_what_is_under_way_is_answered_and_what_comes_is_refused() -> None:
    with alone() as (storage, shard), ThreadPoolExecutor(2) as pool:
        (first,) = produce(shard, b"before")
        storage.answers.clear()
        held = pool.submit(produce, shard, b"meanwhile")
        wait_for_outage(shard)
        with pytest.raises(NoQuorum) as refused:
            produce(shard, b"refused")
        assert refused.value.retry_after_us
        with pytest.raises(NoQuorum):
            shard.fetch("t", Target(ids=int64s(first)))
        assert not held.done()
        assert shard.inbox_rows == 0
        storage.answers.set()
        (second,) = held.result(WAIT_S)
        _, contents = shard.fetch("t", Target(ids=int64s(first, second)))
        assert contents.column("payload").to_pylist() == [b"before", b"meanwhile"]
        assert sum(shard.call(co.Count("t"), 10).states.values()) == 2
        assert shard.recoveries == 0


def test_words_of_sessions_wait_and_the_sessions_stay() -> None:
    with alone() as (storage, shard):
        session = shard.open_session()
        storage.answers.clear()
        held = shard.submit([co.Heartbeat("t", "consumer")])
        wait_for_outage(shard)
        credit = shard.submit([co.Lease("t", session.number, "consumer", 1)])
        storage.answers.set()
        held.result(WAIT_S)
        assert credit.result(WAIT_S)[0].error is None
        (id_,) = produce(shard, b"here")
        delivery = session.receive(WAIT_S)
        assert delivery is not None
        assert delivery.leased.ids.tolist() == [id_]


def test_leases_stand_while_the_servers_are_away() -> None:
    with alone() as (storage, shard):
        holder, other = shard.open_session(), shard.open_session()
        (id_,) = produce(shard, b"held")
        holder.lease("t", "holder", 1)
        delivery = holder.receive(WAIT_S)
        assert delivery is not None
        other.lease("t", "other", 1)
        storage.answers.clear()
        held = shard.submit([co.Extend("t", delivery.leased.ids, int64s(0), LEASE_US)])
        wait_for_outage(shard)
        wait_until(lambda: shard.ticks.stand, "the stand of leases", WAIT_S)
        stood = shard.ticks.now()
        # Longer than the lease, by the machine's clock.
        ended = shard.runtime.clock.tick() + 2 * LEASE_US
        wait_until(lambda: shard.runtime.clock.tick() > ended, "the end of a lease", WAIT_S)
        assert shard.ticks.now() == stood
        storage.answers.set()
        held.result(WAIT_S)
        acked = shard.call(co.Ack("t", delivery.leased.ids, int64s(delivery.leased.token)), 10)
        assert acked.all_ok
        # Nothing came to the other one, which waits: this is the first.
        (next_id,) = produce(shard, b"next")
        again = other.receive(WAIT_S)
        assert again is not None
        assert again.leased.ids.tolist() == [next_id] != [id_]
        assert again.leased.attempts.tolist() == [1]


def test_one_that_was_deposed_during_an_outage_says_moved(two: Brokers) -> None:
    first, second = two.all
    old = shard_of(first, 1)
    with fasti.connect(two.address, timeout="30s") as client:
        client.create_topic("t", partitions=SHARDS)
    with ThreadPoolExecutor(2) as pool:
        two.storages[1].answers.clear()
        held = pool.submit(produce, old, b"meanwhile")
        wait_for_outage(old)
        taking = pool.submit(two.take_over, 1, second)
        wait_until(lambda: 1 in second.host.numbers, "the take-over", WAIT_S)
        two.storages[1].answers.set()
        taking.result(WAIT_S)
        with pytest.raises(Moved):
            held.result(WAIT_S)
        assert first.fenced[1].wait(WAIT_S)
    assert first.host.numbers == [0, 2, 3]


def test_a_deposed_leader_does_not_answer_reads_with_its_old_state(two: Brokers) -> None:
    first, second = two.all
    with fasti.connect(two.address, timeout="30s") as client:
        client.create_topic("t", partitions=SHARDS)
        old = shard_of(first, 1)
        for command in (
            Get("t", Target(ids=int64s(1))),
            co.Count("t"),
            co.Cancel("t", Target(ids=int64s(1))),
            co.Heartbeat("t", "nobody"),
        ):
            assert command.needs_proof
        two.take_over(1, second)
        # It has written nothing since, and so doesn't know yet.
        with pytest.raises(Moved):
            old.call(co.Count("t"), 10)
        assert first.fenced[1].wait(WAIT_S)


def test_reads_that_wait_share_one_proof_and_writes_need_none() -> None:
    with alone() as (storage, shard):
        (id_,) = produce(shard, b"x")
        proofs = storage.proofs
        produce(shard, b"y")
        assert storage.proofs == proofs
        with storage.lock:
            # The first ones wait for their proof, and the others for the next.
            reads = [shard.submit([Get("t", Target(ids=int64s(id_)))]) for _ in range(100)]
            wait_until(lambda: shard.inbox_rows == 0, "all decisions", WAIT_S)
            assert not any(read.done() for read in reads)
        for read in reads:
            read.result(WAIT_S)
        assert 1 <= storage.proofs - proofs <= 2


def test_health_and_metrics_name_the_shards_without_quorum(two: Brokers) -> None:
    host = two.all[0].host
    with fasti.connect(two.address, timeout="30s") as client:
        assert client.transport.call("health")[0]["ready"]
        two.storages[2].answers.clear()
        shard = shard_of(two.all[0], 2)
        shard.submit([co.Heartbeat("t", "c")])
        wait_for_outage(shard)
        told = client.transport.call("health")[0]
        assert (told["ready"], told["state"]) == (False, "serving")
        assert (told["reason"], told["no_quorum"]) == ("no_quorum", [2])
        assert 'fasti_no_quorum{shard="2"} 1.0' in host.metrics_text()
        assert 'fasti_no_quorum{shard="1"} 0.0' in host.metrics_text()
        two.storages[2].answers.set()
        wait_until(lambda: shard.committer.no_quorum is None, "the servers", WAIT_S)
        told = client.transport.call("health")[0]
        assert told["ready"]
        assert "no_quorum" not in told
        assert 'fasti_outages_total{shard="2"} 1.0' in host.metrics_text()


def test_a_shard_is_closed_in_an_outage_and_tells_that_nobody_knows() -> None:
    storage = SharedStorage()
    shard = Shard(storage.take(1), SETTINGS)
    make_topic(shard)
    storage.answers.clear()
    held = [shard.submit([co.CreateTopic(f"t{n}", TopicSettings())]) for n in range(3)]
    wait_for_outage(shard)
    closing = threading.Thread(target=shard.close, args=(False,))
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    for answer in held:
        with pytest.raises(OutcomeUnknown):
            answer.result(0)
