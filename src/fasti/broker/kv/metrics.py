"""Metrics of key-value topics: how many entries there are, of a bounded number of topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fasti.broker.metrics.counts import TOPICS_MAX
from fasti.core.kv.commands import KvDescribe
from fasti.core.queries import ReadTopics
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_TIMEOUT_S = 10.0


def collect(shard: Shard) -> Iterator[Metric]:
    """All that there are; none if the shard doesn't answer."""
    entries = GaugeMetricFamily("fasti_kv_entries", "Entries that are there.", labels=["topic"])
    expiring = GaugeMetricFamily(
        "fasti_kv_expiring_entries", "Entries that have a time to live.", labels=["topic"]
    )
    removed = CounterMetricFamily(
        "fasti_kv_removed_entries",
        "Entries that were deleted or have expired, also before this start.",
        labels=["topic"],
    )
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        "entries": entries,
        "expiring": expiring,
        "removed": removed,
    }
    try:
        topics = shard.ask(ReadTopics(kind="kv")).result(_TIMEOUT_S)
        for topic in sorted(topic.name for topic in topics)[:TOPICS_MAX]:
            reply = shard.call(KvDescribe(topic), _TIMEOUT_S)
            # One that was deleted since is left out.
            if reply.error is None:
                for field, family in families.items():
                    family.add_metric([topic], reply.value[field])
    except (FastiError, TimeoutError):
        pass  # `fasti_up` says so.
    yield from families.values()
