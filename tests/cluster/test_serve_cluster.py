"""`fasti serve --cluster`: brokers as processes over NATS, and what becomes of their shards when one of
them is killed, paused or stopped, or NATS itself is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fasti.broker.launch import BrokerProcess
from fasti.errors import Unavailable
from tests.cluster.cluster_rig import cluster_of, under_load
from tests.cluster.nats_rig import NatsServers, free_ports


@pytest.mark.long
def test_a_broker_is_killed_under_load(one_server: NatsServers, tmp_path: Path) -> None:
    with cluster_of(one_server, tmp_path) as cluster, under_load(cluster, 1) as load:
        busy, other = cluster.busy_and_other()
        cluster.brokers[busy].kill()
        load.go_on(200)
        assert set(cluster.wait_led(by=[other]).values()) == {other}


@pytest.mark.long
def test_a_broker_is_stopped_under_load(one_server: NatsServers, tmp_path: Path) -> None:
    with cluster_of(one_server, tmp_path) as cluster, under_load(cluster, 3) as load:
        busy, other = cluster.busy_and_other()
        assert cluster.brokers[busy].stop() == 0
        load.go_on(200)
        assert set(cluster.wait_led(by=[other]).values()) == {other}


@pytest.mark.long
def test_one_of_three_servers_is_killed_under_load(
    three_servers: NatsServers, tmp_path: Path
) -> None:
    with cluster_of(three_servers, tmp_path) as cluster, under_load(cluster, 4) as load:
        three_servers.kill(0)
        load.go_on(100)
        three_servers.start(0)
        load.go_on(100)


@pytest.mark.long
def test_all_brokers_and_servers_are_killed_under_load(
    one_server: NatsServers, tmp_path: Path
) -> None:
    with cluster_of(one_server, tmp_path) as cluster, under_load(cluster, 6) as load:
        for broker in cluster.brokers:
            broker.kill()
        one_server.kill(0)
        one_server.start(0)
        one_server.connect().close()
        for broker in cluster.brokers:
            broker.start()
        load.go_on(100)


def test_a_broker_without_its_servers_says_so(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = {"cluster": "c", "nats": f"nats://127.0.0.1:{port}", "nats_wait": "100ms"}
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as caught:
        BrokerProcess(tmp_path, settings=settings)
    assert "not ready within 0.1 s: the connection failed" in str(caught.value)
