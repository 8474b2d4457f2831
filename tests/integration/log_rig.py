"""What the tests of logs by the SDK share."""

from __future__ import annotations

from typing import Any

from fasti.client.client import Client


def fill(client: Client, partitions: int = 1, rows: int = 10, **settings: Any) -> None:
    """The log `events`: each partition has `rows` rows whose payloads say where they are."""
    client.create_topic("events", kind="log", partitions=partitions, **settings)
    with client.producer("events") as producer:
        for partition in range(partitions):
            payloads = [b"%d:%d" % (partition, offset) for offset in range(rows)]
            assert producer.send_batch(payloads, partition=partition).all_ok
