"""Draining a broker under load, by any broker of the cluster; and a leader that nobody writes to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster_rig import SHARDS, Cluster, cluster_of, under_load
from tests.cluster.nats_rig import NatsServers, wait_until
from tests.conformance.protocol_client import Client, Refused


def run(
    cluster: Cluster, *words: str, asked: int | None = None
) -> subprocess.CompletedProcess[str]:
    address = cluster.address if asked is None else f"fasti://{cluster.place(asked)}"
    command = [sys.executable, "-m", "fasti", "cluster", *words, "--address", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.long
def test_a_broker_is_drained_and_stopped_under_load(
    one_server: NatsServers, tmp_path: Path
) -> None:
    with cluster_of(one_server, tmp_path) as cluster, under_load(cluster, 8) as load:
        busy, other = cluster.busy_and_other()
        led = {shard for shard, leader in cluster.wait_led().items() if leader == busy}
        # Through the other one.
        drained = run(cluster, "drain", f"b{busy}", "--json", asked=other)
        assert drained.returncode == 0, drained.stderr
        told = json.loads(drained.stdout)
        assert told["changed"]
        assert {move["shard"] for move in told["shards"]} == led
        assert {move["leader"] for move in told["shards"]} == {f"b{other}"}
        load.go_on()
        assert set(cluster.wait_led().values()) == {other}
        last = run(cluster, "drain", f"b{other}")
        assert last.returncode == 11
        assert f"b{other} is the last broker that can lead" in last.stderr
        assert run(cluster, "drain", "b9").returncode == 12
        again = run(cluster, "drain", f"b{busy}")
        assert again.returncode == 0
        assert f"b{busy} was drained already" in again.stdout
        # It leads nothing, so its end takes nothing over.
        before = cluster.epochs(other)
        assert cluster.brokers[busy].stop() == 0
        load.go_on()
        assert cluster.epochs(other) == before
        # A new process knows nothing of it.
        cluster.brokers[busy].start()
        undrain = lambda: run(cluster, "undrain", f"b{busy}", asked=busy)  # noqa: E731
        wait_until(lambda: "was not drained" in undrain().stderr, "the new process in its cluster")


def test_a_leader_that_slept_steps_down_though_nobody_writes(
    one_server: NatsServers, tmp_path: Path
) -> None:
    with cluster_of(one_server, tmp_path) as cluster:
        busy, other = cluster.busy_and_other()
        pid = cluster.brokers[busy].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(
                lambda: set(cluster.leaders(other).values()) == {other}, "the other one leads all"
            )
        finally:
            os.kill(pid, signal.SIGCONT)

        def answers(shard: int) -> str:
            with Client(cluster.place(busy)) as client:
                try:
                    client.call("topics", {"shard_number": shard})
                except Refused as refused:
                    return refused.code
                return "ok"

        wait_until(lambda: {answers(n) for n in range(SHARDS)} == {"moved"}, "moved, everywhere")
