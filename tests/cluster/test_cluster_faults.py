"""Each fault that a cluster must bear, under load: when it is over every promise must have been kept.

Two brokers and three NATS servers, which all tests share: each test leaves them as they were. `tests/chaos` has the
same faults in any order, and for longer; damage of a server's files and clocks that lie have tests of their own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import pytest

import fasti
from fasti.cluster.nats import NatsConnection
from tests.cluster.cluster_rig import SHARDS, Loaded, under_load
from tests.cluster.cut_rig import CutCluster, CutServers, check_journals, cut_cluster, cut_servers
from tests.cluster.nats_rig import wait_until
from tests.conformance.protocol_client import Client, Refused, rows
from tests.integration.trouble.proxy import Proxy
from tests.seeds import seeds

# How long a fault lasts that nothing tells the end of.
HELD_S = 1.0
_topics = count(1)


class Estate(NamedTuple):
    cluster: CutCluster
    servers: CutServers
    nats: NatsConnection

    @contextmanager
    def load(self, seed: int, every_send_ok: bool = True) -> Iterator[Loaded]:
        """Everything works at its end, and the journals have nothing of a leader that was replaced."""
        with under_load(self.cluster, seed, f"t{next(_topics)}", every_send_ok) as load:
            yield load
        self.cluster.wait_led()
        check_journals(self.nats, self.cluster.name)


@pytest.fixture(scope="module")
def estate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    with cut_servers() as servers:
        with cut_cluster(servers, tmp_path_factory.mktemp("brokers")) as (cluster, nats):
            yield Estate(cluster, servers, nats)


@contextmanager
def held_up(proxies: list[Proxy]) -> Iterator[None]:
    for proxy in proxies:
        proxy.hold_up()
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.let_go()


@contextmanager
def shut(proxies: list[Proxy]) -> Iterator[None]:
    for proxy in proxies:
        proxy.shut()
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.reopen()


def end_brokers(estate: Estate, seed: int, times: int) -> None:
    rng = random.Random(seed)
    with estate.load(seed) as load:
        for _ in range(times):
            load.go_on(rng.randrange(20, 100))
            number = rng.choice(sorted(set(estate.cluster.wait_led().values())))
            estate.cluster.brokers[number].kill()
            estate.cluster.wait_led(by=[1 - number])
            load.go_on(rng.randrange(20, 100))
            estate.cluster.start(number)


@pytest.mark.parametrize("seed", [1])
def test_brokers_are_killed(estate: Estate, seed: int) -> None:
    end_brokers(estate, seed, times=2)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 103))
def test_brokers_are_killed_very_often(estate: Estate, seed: int) -> None:
    end_brokers(estate, seed, times=20)


def holds(proxies: list[Proxy], text: bytes) -> bool:
    return any(text in b"".join(list(proxy.held)) for proxy in proxies)


class HeldCall:
    """A call to a broker that can't answer now. It was connected before."""

    def __init__(self, estate: Estate, number: int) -> None:
        own = estate.cluster.brokers[number].address.removeprefix("fasti://")
        self._client = Client(own)
        self._client.call("hello")
        self._pool = ThreadPoolExecutor(1)

    def start(self, topic: str, shard: int) -> Future[Any]:
        return self._pool.submit(
            self._client.send, topic, rows(payload=[b"-held"]), shard_number=shard
        )

    def close(self) -> None:
        self._pool.shutdown()
        self._client.flight.close()


@pytest.mark.parametrize("seed", seeds(1, range(10, 14)))
def test_a_broker_is_paused_until_another_one_leads(estate: Estate, seed: int) -> None:
    """What it had taken and could not write is answered `moved` when it goes on: it did not happen."""
    cluster = estate.cluster
    with fasti.connect(cluster.address) as client:
        client.create_topic(f"held{seed}", partitions=SHARDS)
    with estate.load(seed) as load:
        busy, other = cluster.busy_and_other()
        shard = next(s for s, leader in cluster.wait_led().items() if leader == busy)
        epoch = cluster.epochs(other)[shard]
        held = HeldCall(estate, busy)
        cluster.brokers[busy].pause()
        try:
            answer = held.start(f"held{seed}", shard)
            assert set(cluster.wait_led(by=[other]).values()) == {other}
            assert cluster.epochs(other)[shard] > epoch
            load.go_on(100)
        finally:
            cluster.brokers[busy].resume()
        with pytest.raises(Refused) as refused:
            answer.result(60)
        assert refused.value.code == "moved"
        held.close()
        load.go_on(50)
    with fasti.connect(cluster.address) as client:
        assert client.messages(f"held{seed}").count()["ready"] == 0


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.long)])
def test_packs_of_a_zombie_arrive_when_another_one_leads(estate: Estate, times: int) -> None:
    """They are refused: what they had in them did not happen, and nobody was told that it did."""
    cluster = estate.cluster
    for number in range(times):
        topic = f"zombie{times}-{number}"
        with fasti.connect(cluster.address) as client:
            client.create_topic(topic, partitions=SHARDS)
        busy, other = cluster.busy_and_other()
        shards = [shard for shard, leader in cluster.wait_led().items() if leader == busy]
        calls = [HeldCall(estate, busy) for _ in shards]
        with held_up(cluster.ways[busy]):
            answers = [call.start(topic, shard) for call, shard in zip(calls, shards, strict=True)]
            for shard in shards:
                pack = f"PUB {cluster.name}.j.{shard} ".encode()
                wait_until(partial(holds, cluster.ways[busy], pack), "a late pack")
            assert set(cluster.wait_led(by=[other]).values()) == {other}
        for answer in answers:
            with pytest.raises(Refused) as refused:
                answer.result(60)
            # It may have been told before it was found out.
            assert refused.value.code in ("moved", "unknown", "no_quorum")
        for call in calls:
            call.close()
        cluster.wait_led()
        check_journals(estate.nats, cluster.name)
        with fasti.connect(cluster.address) as client:
            assert client.messages(topic).count()["ready"] == 0


@pytest.mark.parametrize("seed", seeds(1, range(30, 33)))
@pytest.mark.parametrize("how", ["kill", pytest.param("pause", marks=pytest.mark.long)])
@pytest.mark.parametrize("who", ["follower", "leader"])
def test_a_server_is_lost(estate: Estate, who: str, how: str, seed: int) -> None:
    """Of the journals' streams. Losing the one that leads them takes an election, but no lease ends."""
    cluster, servers = estate.cluster, estate.servers
    with estate.load(seed) as load:
        cluster.lead_journals(estate.nats, 1)
        number = 1 if who == "leader" else 2
        if how == "kill":
            servers.kill(number)
            load.go_on(60)
            servers.start(number)
        else:
            servers.pause(number)
            load.go_on(60)
            servers.resume(number)
        load.go_on(30)


@pytest.mark.parametrize("seed", seeds(1, range(40, 43)))
def test_leaders_of_streams_are_moved(estate: Estate, seed: int) -> None:
    rng = random.Random(seed)
    with estate.load(seed) as load:
        for _ in range(6):
            estate.cluster.step_down(estate.nats, rng.randrange(SHARDS))
            load.go_on(20)


def lose_the_majority(estate: Estate, seed: int, seconds: float) -> None:
    """Nothing is acknowledged meanwhile, callers are told to try again, and it heals by itself."""
    cluster, servers = estate.cluster, estate.servers
    with estate.load(seed, every_send_ok=False) as load:
        with fasti.connect(cluster.address, timeout="5s") as client:
            for number in (1, 2):
                servers.kill(number)
            with pytest.raises(fasti.FastiError) as refused:
                client.create_topic(f"never{seed}")
            assert refused.value.retryable
        time.sleep(seconds)
        for number in (1, 2):
            servers.start(number)
        load.go_on(60)


def test_the_majority_is_lost(estate: Estate) -> None:
    lose_the_majority(estate, 50, 0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(51, 54))
def test_the_majority_is_lost_for_long(estate: Estate, seed: int) -> None:
    lose_the_majority(estate, seed, 15)


@pytest.mark.parametrize("seed", seeds(1, range(60, 63)))
def test_a_broker_is_cut_from_nats(estate: Estate, seed: int) -> None:
    cluster = estate.cluster
    with estate.load(seed) as load:
        busy, other = cluster.busy_and_other()
        with shut(cluster.ways[busy]):
            assert set(cluster.wait_led(by=[other]).values()) == {other}
        load.go_on(60)
        cluster.wait_led()


@pytest.mark.parametrize("seed", seeds(1, range(70, 73)))
def test_clients_are_cut_from_a_broker(estate: Estate, seed: int) -> None:
    rng = random.Random(seed)
    with estate.load(seed) as load:
        for _ in range(6):
            number = rng.randrange(2)
            door = estate.cluster.doors[number]
            if rng.random() < 0.5:
                door.cut()
            else:
                with held_up([door]):
                    time.sleep(HELD_S)
            load.go_on(30)


@pytest.mark.parametrize("seed", seeds(1, range(80, 83)))
@pytest.mark.parametrize("who", ["leader", pytest.param("follower", marks=pytest.mark.long)])
def test_a_server_is_slow(estate: Estate, who: str, seed: int) -> None:
    routes = estate.servers.routes
    assert routes is not None
    with estate.load(seed) as load:
        estate.cluster.lead_journals(estate.nats, 0 if who == "leader" else 1)
        routes.slow(0.02, 0.02)
        try:
            load.go_on(60)
        finally:
            routes.slow(0, 0)


@pytest.mark.parametrize("seed", seeds(1, range(90, 93)))
def test_all_are_killed_and_started_again(estate: Estate, seed: int) -> None:
    """Everything that was acknowledged is there, and positions of the change feed are good."""
    cluster, servers = estate.cluster, estate.servers
    with fasti.connect(cluster.address) as client, estate.load(seed) as load:
        feed = client.changes(start="latest")
        position = feed.position
        load.go_on(30)
        for broker in cluster.brokers:
            broker.kill()
        for number in range(3):
            servers.kill(number)
        for number in range(3):
            servers.start(number)
        for number in range(2):
            cluster.start(number)
        load.go_on(60)
        ops = {op for table in client.changes(start=position) for op in table["op"].to_pylist()}
        assert {"produced", "acked"} <= ops
