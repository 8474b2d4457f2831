"""The damage trial: a NATS server's files are damaged while it is down, then it is made to lead, under brokers."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

import fasti
from tests.cluster.cluster_rig import SHARDS, Cluster, cluster_of
from tests.cluster.damage_rig import (
    flip_marked,
    flip_some,
    leader_of,
    make_lead,
    wait_current,
)
from tests.cluster.nats_rig import NatsServers, wait_until

_MARKED = slice(500, 532)


class Trial:
    """A cluster of two brokers with some hundred packs, all acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.servers = cluster, cluster.servers
        self.payloads: set[bytes] = set()
        with fasti.connect(cluster.address) as client:
            client.create_topic("t", partitions=SHARDS)
        self.send(150)

    def send(self, count: int) -> None:
        with fasti.connect(self.cluster.address) as client, client.producer("t") as producer:
            for number in range(count):
                payload = secrets.token_bytes(5_000)
                # A part of it on each shard.
                producer.send(payload, partition=number % SHARDS).result()
                self.payloads.add(payload)

    def stream(self, shard: int) -> str:
        return f"{self.cluster.name}-j-{shard}"

    def damage(self, victim: int, shard: int, count: int) -> None:
        """Flips bits in packs of a shard, on a server that is stopped."""
        stream = self.stream(shard)
        folder = self.servers.directory / f"n{victim}"
        data = b"".join(path.read_bytes() for path in folder.rglob(f"streams/{stream}/msgs/*.blk"))
        there = [payload[_MARKED] for payload in self.payloads if payload[_MARKED] in data]
        assert len(there) > count
        flip_marked(self.servers, victim, stream, there[:count])

    def view(self, broker: int = 0) -> dict[str, Any]:
        with fasti.connect(f"fasti://{self.cluster.place(broker)}") as client:
            view: dict[str, Any] = client.transport.call("cluster")[0]
            return view

    def wait_damaged(self, *expected: tuple[str, str]) -> None:
        """Both brokers tell of these, server and stream, and of no others."""
        for broker in range(len(self.cluster.brokers)):
            wait_until(
                lambda broker=broker: (  # type: ignore[misc]
                    [(each["server"], each["stream"]) for each in self.view(broker)["damages"]]
                    == list(expected)
                ),
                f"damage of {expected}",
            )

    def consume_all(self) -> None:
        """Everything that was acknowledged is delivered, as it was sent."""
        rest = set(self.payloads)
        with fasti.connect(self.cluster.address) as client, client.consumer("t") as consumer:
            while rest:
                (message,) = consumer.take(1, timeout="30s")
                assert bytes(message.payload) in self.payloads
                rest.discard(bytes(message.payload))
                message.ack()


@pytest.mark.long
def test_a_damaged_server_is_named_and_leads_no_more(
    three_servers: NatsServers, tmp_path: Path
) -> None:
    with cluster_of(three_servers, tmp_path) as cluster:
        trial = Trial(cluster)
        connection = three_servers.connect()
        stream = trial.stream(1)
        victim = (leader_of(connection, stream) + 1) % 3
        three_servers.stop(victim)
        trial.damage(victim, 1, 5)
        trial.send(10)
        three_servers.start(victim)
        wait_current(connection, three_servers, stream)
        trial.wait_damaged((f"n{victim}", stream))
        view = trial.view()
        assert {server["name"]: server["state"] for server in view["servers"]} == {
            f"n{number}": "damaged" if number == victim else "good" for number in range(3)
        }
        with fasti.connect(cluster.address) as client:
            (alarm,) = client.transport.call("health")[0]["alarms"]
            assert f"{stream} on NATS server n{victim} has lost 5 messages" in alarm
            page = client.transport.call("metrics")[0]["text"]
        assert f'fasti_cluster_damaged_copies{{server="n{victim}"}} 1.0' in page
        assert f"damage: the copy of {stream}" in cluster.log()
        # It is made to lead: a broker takes that back, and nothing that was acknowledged is lost.
        make_lead(connection, stream, victim)
        wait_until(lambda: leader_of(connection, stream) != victim, "another leader")
        trial.send(10)
        leads = cluster.wait_led()[1]
        cluster.brokers[leads].kill()
        cluster.wait_led(by=[1 - leads])
        cluster.brokers[leads].start()
        trial.consume_all()
        # The remedy: the server gets its copy anew.
        three_servers.stop(victim)
        for folder in (three_servers.directory / f"n{victim}").rglob(f"streams/{stream}"):
            shutil.rmtree(folder)
        three_servers.start(victim)
        trial.wait_damaged()
        connection.close()


@pytest.mark.long
@pytest.mark.parametrize("what", ["log", "snapshot", "everything"])
def test_a_servers_own_files_are_damaged(
    three_servers: NatsServers, tmp_path: Path, what: str
) -> None:
    """Its Raft log, its snapshot of what streams there are, or just all of it."""
    with cluster_of(three_servers, tmp_path) as cluster:
        trial = Trial(cluster)
        connection = three_servers.connect()
        stream = trial.stream(1)
        victim = (leader_of(connection, stream) + 1) % 3
        three_servers.stop(victim)
        store = three_servers.directory / f"n{victim}" / "jetstream"
        patterns = {
            "log": ["$SYS/_js_/S-*/msgs/*.blk"],
            "snapshot": ["$SYS/_js_/_meta_/snapshots/*"],
            "everything": ["$G/streams/*/msgs/*.blk", "$SYS/_js_/S-*/msgs/*.blk"],
        }[what]
        paths = [path for each in patterns for path in store.glob(each) if path.stat().st_size]
        assert paths
        flip_some(paths, 20, seed=7)
        trial.send(20)
        three_servers.start(victim)
        trial.send(20)
        process = three_servers.processes[victim]
        assert process is not None
        if what == "snapshot":
            # It does not start: two carry on, and it is missed.
            wait_until(lambda: process.poll() is not None, "its end")
            wait_until(lambda: is_away(trial, victim), "a server that is away")
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.start()
        trial.consume_all()
        connection.close()


def is_away(trial: Trial, victim: int) -> bool:
    states = {server["name"]: server["state"] for server in trial.view()["servers"]}
    return states[f"n{victim}"] == "away"
