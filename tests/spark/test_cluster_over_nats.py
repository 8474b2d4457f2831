"""Spark on a cluster over NATS: reads, writes and streams go on when the broker that they use is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import fasti
from fasti.pipeline import runner
from fasti.pipeline.lake import Lake
from fasti.pipeline.stages import pipeline
from tests.cluster.cluster_rig import SHARDS, Cluster, cluster_of
from tests.cluster.nats_rig import NatsServers
from tests.spark.plain_delta import as_the_broker_says, states
from tests.spark.test_shards import kept, numbered, payloads, put, read, run, streamed, truth, write


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    servers = NatsServers(3)
    try:
        with cluster_of(servers, tmp_path / "brokers", brokers=2) as made:
            yield made
    finally:
        servers.close()


def replace_the_leader(cluster: Cluster) -> None:
    """The broker that leads the most is killed; the other has all, until it is back."""
    busy, other = cluster.busy_and_other()
    cluster.brokers[busy].kill()
    cluster.wait_led([other])


def test_a_stream_of_changes_goes_on_with_another_broker(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    with fasti.connect(cluster.address) as client:
        client.create_topic("orders", partitions=2 * SHARDS)
        for number in range(2):
            write(numbered(spark, 300 * number, 300), cluster, topic="orders")
            run(streamed(spark, cluster, view="changes", topic="orders"), tmp_path)
            if number == 0:
                replace_the_leader(cluster)
        assert kept(spark, tmp_path) == truth(client, "orders")
        found = read(spark, cluster, topic="orders").toArrow()
        assert payloads(found) == list(range(600))
        assert len(set(found["shard"].to_pylist())) == SHARDS


@pytest.mark.long
def test_the_audit_is_clean_over_take_overs(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    with fasti.connect(cluster.address) as client:
        client.create_topic("mail", partitions=2 * SHARDS)
        for number in range(3):
            put(client, "mail", number, 500)
            ids = client.messages("mail").list(limit=60)["id"].to_numpy()
            client.messages("mail").cancel(id=ids[::2])
            result = runner.run(pipeline(lake, cluster.address), spark, signals=False)
            assert result.rows["audit"] == 0
            busy, other = cluster.busy_and_other()
            cluster.brokers[busy].kill()
            cluster.wait_led([other])
            cluster.brokers[busy].start()
            cluster.wait_led()
        assert states(lake) == as_the_broker_says(client)
