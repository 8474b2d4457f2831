"""Metrics of sinks: what is staged, and how far the latest of them are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from fasti.core.sinks.commands import SinkSums, SumSinks
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

# So many sinks have series of their own: those that published last.
_NAMED = 50
_TIMEOUT_S = 10.0


def collect(shard: Shard) -> Iterator[Metric]:
    """All sinks together, and the latest by name."""
    try:
        sums: SinkSums = shard.ask(SumSinks(_NAMED)).result(_TIMEOUT_S)
    except (FastiError, TimeoutError):
        return
    yield GaugeMetricFamily("fasti_stages", "Stages that nobody has published (yet).", sums.stages)
    yield GaugeMetricFamily(
        "fasti_staged_rows", "Rows of stages that are not published.", sums.rows
    )
    yield GaugeMetricFamily(
        "fasti_stages_publishing",
        "Stages that are published and being carried out.",
        sums.publishing,
    )
    yield GaugeMetricFamily("fasti_sinks", "Sinks whose last batch is remembered.", sums.sinks)
    batch = GaugeMetricFamily(
        "fasti_sink_batch", "The last batch of a sink that was published.", labels=["sink"]
    )
    busy = GaugeMetricFamily(
        "fasti_sink_busy", "Whether a sink's last batch is still carried out.", labels=["sink"]
    )
    for name, number, done in sums.latest:
        batch.add_metric([name], number)
        busy.add_metric([name], 0 if done else 1)
    yield batch
    yield busy
