"""A broker of several processes, one of which is killed, paused or started anew, while clients send,
change and consume: the others don't notice, its clients come back, nothing is lost, early or doubled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fasti
from fasti.broker.launch import BrokerProcess
from tests.integration.trouble.load import SMALL, TOPIC, finish, go_on, start_all
from tests.integration.trouble.rig import Crew, crew
from tests.shards.processes_rig import pids
from tests.shards.test_peers import by_hand, kept_map

SETTINGS: dict[str, Any] = {**SMALL, "memory": "256MiB"}
PROCESSES = SHARDS = 4


@contextmanager
def under_load(directory: Path, seed: int) -> Iterator[tuple[BrokerProcess, Crew]]:
    """Four processes with a shard each, and all workers on a topic with partitions on all of them.

    At the end everything that was promised must have been kept.
    """
    with BrokerProcess(directory, shards=SHARDS, processes=PROCESSES, settings=SETTINGS) as broker:
        with fasti.connect(broker.address) as client:
            client.create_topic("t", **{**TOPIC, "partitions": 2 * SHARDS})
        with crew(broker.address) as workers:
            start_all(workers, seed)
            go_on(workers, 50)
            yield broker, workers
            go_on(workers, 50)
            ledger = finish(workers, broker)
    assert len(ledger.acked) > 100
    # All shards had a part in it.
    partitions = {message >> 51 for message in ledger.acked}
    assert partitions == set(range(2 * SHARDS))


def kill_one_by_one(directory: Path, seed: int, rounds: int, facts: int) -> None:
    rng = random.Random(seed)
    with under_load(directory, seed) as (broker, workers):
        for _ in range(rounds):
            before = pids(broker, PROCESSES)
            number = rng.randrange(PROCESSES)
            killed = broker.process(number).kill()
            go_on(workers, rng.randrange(20, facts))
            broker.process(number).wait(other_than=killed)
            after = pids(broker, PROCESSES)
            assert [at for at in range(PROCESSES) if before[at] != after[at]] == [number]
            go_on(workers, rng.randrange(20, facts))


def test_one_process_of_four_is_killed_under_load(tmp_path: Path) -> None:
    kill_one_by_one(tmp_path / "data", 1, rounds=3, facts=200)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 103))
def test_processes_are_killed_very_often(tmp_path: Path, seed: int) -> None:
    kill_one_by_one(tmp_path / "data", seed, rounds=20, facts=800)


def test_clients_of_the_others_go_on_while_a_process_stands_still(tmp_path: Path) -> None:
    """The shard that answers nobody holds up its own messages, and nobody else's."""
    with BrokerProcess(
        tmp_path / "data", shards=SHARDS, processes=PROCESSES, settings=SETTINGS
    ) as broker:
        with fasti.connect(broker.address, timeout="60s") as client:
            client.create_topic("t", partitions=SHARDS)
            layout = client.transport.layout("t")
            paused = layout.shard_of(3)
            others = [
                partition for partition in range(SHARDS) if layout.shard_of(partition) != paused
            ]
            producer = client.producer("t")
            consumer = client.consumer("t", timeout="60s")
            for partition in range(SHARDS):
                producer.send(b"before", partition=partition).result("60s")
            for _ in range(SHARDS):
                next(consumer).ack()
            broker.process(paused).pause()
            late = producer.send(b"late", partition=3)
            for partition in others:
                assert producer.send(b"others", partition=partition).result("60s").ok
            taken = []
            for _ in others:
                message = next(consumer)
                message.ack()
                taken.append(message.payload)
            assert taken == [b"others"] * len(others)
            broker.process(paused).resume()
            assert late.result("60s").ok
            message = next(consumer)
            message.ack()
            assert message.payload == b"late"
            consumer.close()


def end_all(end: Callable[[BrokerProcess], object], directory: Path, seed: int) -> None:
    with under_load(directory, seed) as (broker, workers):
        end(broker)
        broker.start()
        go_on(workers, 100)


@pytest.mark.long
def test_the_supervisor_is_killed_under_load(tmp_path: Path) -> None:
    end_all(lambda broker: broker.kill(supervisor_only=True), tmp_path / "data", 3)


@pytest.mark.long
def test_all_processes_are_killed_under_load(tmp_path: Path) -> None:
    end_all(BrokerProcess.kill, tmp_path / "data", 4)


@pytest.mark.long
def test_processes_are_started_anew_one_after_the_other_under_load(tmp_path: Path) -> None:
    with under_load(tmp_path / "data", 5) as (broker, workers):
        before = pids(broker, PROCESSES)
        broker.restart_processes()
        for number, pid in enumerate(before):
            broker.process(number).wait(other_than=pid)
            go_on(workers, 20)


@pytest.mark.long
def test_the_map_changes_under_running_clients(tmp_path: Path) -> None:
    """Two processes exchange their shards: who asks at the old place is told the new one."""
    with ExitStack() as stack:
        peers = kept_map(stack)
        first, second = peers.processes
        exchanged = replace(
            peers,
            processes=(
                first._replace(shards=second.shards),
                second._replace(shards=first.shards),
            ),
        )
        brokers = [stack.enter_context(by_hand(tmp_path, peers, number)) for number in (0, 1)]
        with fasti.connect(brokers[0].address) as client:
            client.create_topic("t", **{**TOPIC, "partitions": SHARDS})
        with crew(
            ",".join(broker.address.removeprefix("fasti://") for broker in brokers)
        ) as workers:
            start_all(workers, 6)
            for layout in (exchanged, peers):
                go_on(workers, 50)
                for broker in brokers:
                    broker.stop()
                brokers = [
                    stack.enter_context(by_hand(tmp_path, layout, number)) for number in (0, 1)
                ]
                go_on(workers, 50)
            ledger = finish(workers, brokers[0])
    assert len(ledger.acked) > 100


def test_a_consumer_over_eight_shards_with_unequal_load(tmp_path: Path) -> None:
    """What few shards have doesn't wait behind what one has much of."""
    with (
        BrokerProcess(tmp_path / "data", shards=8, processes=2, settings=SETTINGS) as broker,
        fasti.connect(broker.address) as client,
    ):
        client.create_topic("t", partitions=8)
        due = client.clock.now_us()
        with client.producer("t") as producer:
            producer.send_batch([b"much"] * 5_000, due=[due] * 5_000, partition=3)
            for partition in (0, 1, 2, 4, 5, 6, 7):
                producer.send_batch([b"little"] * 5, due=[due] * 5, partition=partition)
        taken = []
        with client.consumer("t", prefetch=64, timeout="5s") as consumer:
            for message in consumer:
                taken.append(message.payload)
                message.ack()
        assert len(taken) == 5_035
        assert client.messages("t").count()["done"] == 5_035
        last = max(place for place, payload in enumerate(taken) if payload == b"little")
        assert last < 1_000
