"""What a scrape tells of damage: files, messages that died of it, and scrubs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from fasti.broker.shard import Shard


def collect(shard: Shard) -> Iterator[Metric]:
    """For the broker's collector, at each scrape."""
    yield GaugeMetricFamily(
        "fasti_damaged_files",
        "Files of the data directory in which damage was found since it was opened.",
        len(shard.store.payloads.damages),
    )
    yield CounterMetricFamily(
        "fasti_corrupt_messages",
        "Messages that can't be read any more, and became dead with the reason corrupt.",
        sum(shard.damage.corrupt.values()),
    )
