"""Brokers as processes: a leader that slept is asked for what it knew, and NATS is away under load."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fasti
from fasti.cluster.placement import rank_members
from tests.cluster.cluster_rig import SHARDS, Cluster, cluster_of, under_load
from tests.cluster.nats_rig import NatsServers, wait_until
from tests.conformance.protocol_client import Client, Refused, rows


def test_a_leader_that_slept_does_not_answer_with_what_it_knew(
    one_server: NatsServers, tmp_path: Path
) -> None:
    with cluster_of(one_server, tmp_path) as cluster, ThreadPoolExecutor(4) as pool:
        busy, other = cluster.busy_and_other()
        led = [shard for shard, leader in cluster.leaders(busy).items() if leader == busy]
        with fasti.connect(cluster.address, timeout="60s") as client:
            client.create_topic("t", partitions=SHARDS)
            layout = client.transport.layout("t")
            partition = next(p for p in range(SHARDS) if layout.shard_of(p) in led)
            shard = layout.shard_of(partition)
            with client.producer("t") as producer:
                id_ = producer.send(b"x", delay="1h", partition=partition).result("60s").id
        with Client(cluster.place(busy)) as sleeper:
            assert sleeper.get("t", rows(id=[id_]), shard_number=shard)[0]["state"] == "scheduled"
            cluster.brokers[busy].pause()
            cluster.wait_led(by=[other])
            with fasti.connect(f"fasti://{cluster.place(other)}", timeout="60s") as client:
                assert client.messages("t").cancel(id=id_).ok
            # It finds these when it wakes, before it hears of anybody.
            reads = [
                pool.submit(sleeper.get, "t", rows(id=[id_]), shard_number=shard),
                pool.submit(sleeper.call, "count", {"topic": "t", "shard_number": shard}),
            ]
            cluster.brokers[busy].resume()
            for read in reads:
                with pytest.raises(Refused) as refused:
                    read.result(60)
                assert refused.value.code == "moved"


def metrics(cluster: Cluster, name: str) -> dict[int, float]:
    """The sum of a metric's series for each broker."""
    sums: dict[int, float] = {}
    for number in range(len(cluster.brokers)):
        with Client(cluster.place(number)) as client:
            text = client.call("metrics")["text"]
        lines = [line for line in text.splitlines() if line.startswith(name + "{")]
        sums[number] = sum(float(line.split()[-1]) for line in lines)
    return sums


@pytest.mark.long
@pytest.mark.parametrize("away", [2, 3])
def test_nats_is_away_under_load_and_no_shard_moves_or_is_loaded_again(
    three_servers: NatsServers, tmp_path: Path, away: int
) -> None:
    """A majority of the servers, and all of them."""
    with cluster_of(three_servers, tmp_path) as cluster, under_load(cluster, 8) as load:
        # Each shard is led by the one that ranks first, so that none is handed over for another reason.
        weights = {"b0": 1.0, "b1": 1.0}
        first = {n: int((rank_members(n, weights).first or "b")[1:]) for n in range(SHARDS)}
        wait_until(lambda: cluster.wait_led() == first, "every shard's first in rank")
        load.go_on()
        epochs = cluster.epochs(0)
        for number in range(away):
            three_servers.kill(number)
        wait_until(
            lambda: sum(metrics(cluster, "fasti_no_quorum").values()) == SHARDS,
            "all shards without quorum",
        )
        # Workers give up after half a minute in all.
        until = time.monotonic() + 5
        wait_until(lambda: time.monotonic() > until, "the end of the outage")
        for number in range(away):
            three_servers.start(number)
        wait_until(
            lambda: sum(metrics(cluster, "fasti_no_quorum").values()) == 0, "the servers' return"
        )
        load.go_on(200)
        assert cluster.epochs(0) == epochs
        assert set(metrics(cluster, "fasti_recoveries_total").values()) == {0}
        assert sum(metrics(cluster, "fasti_outages_total").values()) >= SHARDS
