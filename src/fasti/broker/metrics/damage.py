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
    yield CounterMetricFamily(
        "fasti_scrubbed_bytes", "Read by scrubs since the start.", shard.scrubber.read_bytes
    )
    last = shard.scrubber.last
    if last is not None and last.finished_us is not None:
        yield GaugeMetricFamily(
            "fasti_scrub_finished_timestamp_seconds",
            "When the last scrub since the start was complete.",
            last.finished_us / 1e6,
        )
        yield GaugeMetricFamily(
            "fasti_scrub_findings", "Damaged files that it found.", len(last.findings)
        )
