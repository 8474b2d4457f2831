"""A broker that hangs in the middle of calls: they are answered by the one that leads after it, and happen once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fasti
from tests.cluster.cluster_rig import SHARDS, cluster_of
from tests.cluster.nats_rig import NatsServers


def test_calls_to_a_broker_that_hangs_are_answered_by_the_next_leader(
    one_server: NatsServers, tmp_path: Path
) -> None:
    with (
        cluster_of(one_server, tmp_path) as cluster,
        # The broker never comes back by itself: whoever waits for it waits in vain.
        fasti.connect(cluster.address, timeout="50s") as client,
        ThreadPoolExecutor(4) as pool,
    ):
        busy, _ = cluster.busy_and_other()
        client.create_topic("t", partitions=SHARDS)
        with client.producer("t") as producer:
            ids = producer.send_batch([b"x"] * 1000, delay="1h").ids.tolist()
        messages = client.messages("t")
        half = threading.Event()

        def cancel_all() -> set[str]:
            """One after the other, so that they go over a stream of calls."""
            found: set[str] = set()
            for number, id_ in enumerate(ids[:400]):
                found.add(messages.cancel(id=id_).status)
                if number == 100:
                    half.set()
            return found

        def cancel_many() -> bool:
            """Large ones, each a call of its own."""
            half.wait(60)
            return bool(messages.cancel(id=ids[400:800]).all_ok)

        def count() -> int:
            half.wait(60)
            return sum(messages.get(id=id_)["state"] == "scheduled" for id_ in ids[800:])

        cancels = pool.submit(cancel_all)
        assert half.wait(60)
        cluster.brokers[busy].pause()
        try:
            many, counted = pool.submit(cancel_many), pool.submit(count)
            assert many.result(60)
            assert counted.result(60) == 200
            assert cancels.result(60) == {"ok"}
        finally:
            cluster.brokers[busy].resume()
        assert client.topic("t").counts["scheduled"] == 200
