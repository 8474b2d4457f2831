"""Brokers of a cluster are killed while calls are under way: the next leader answers what happened, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster_rig import cluster_of
from tests.cluster.nats_rig import NatsServers
from tests.integration.lost_answers_rig import (
    cancel_each,
    count_up,
    move_one,
    work_through,
)


@pytest.mark.long
def test_the_leader_of_most_shards_is_killed(tmp_path: Path) -> None:
    servers = NatsServers(1)
    try:
        servers.connect().close()
        with cluster_of(servers, tmp_path) as cluster:

            def kill(_: int) -> None:
                busy, other = cluster.busy_and_other()
                cluster.brokers[busy].kill()
                cluster.wait_led(by=[other])
                cluster.brokers[busy].start()

            workers = [count_up, cancel_each, move_one, count_up]
            work_through(cluster.address, kill, workers, kills=2)
    finally:
        servers.close()
