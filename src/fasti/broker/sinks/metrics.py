"""Metrics of sinks: what is staged, and how far the latest of them are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from fasti.core.state import ShardState
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

# So many sinks have series of their own: those that published last.
_NAMED = 50
_TIMEOUT_S = 10.0

Seen = tuple[int, int, int, int, list[tuple[str, int, bool]]]


def collect(shard: Shard) -> Iterator[Metric]:
    """Read in the sequencer, between two steps."""
    try:
        found = shard.run(lambda: _look(shard.engine.state)).result(_TIMEOUT_S)
    except (FastiError, TimeoutError):
        return
    stages, rows, carrying, sinks, latest = found
    yield GaugeMetricFamily("fasti_stages", "Stages that nobody has published (yet).", stages)
    yield GaugeMetricFamily("fasti_staged_rows", "Rows of stages that are not published.", rows)
    yield GaugeMetricFamily(
        "fasti_stages_publishing", "Stages that are published and being carried out.", carrying
    )
    yield GaugeMetricFamily("fasti_sinks", "Sinks whose last batch is remembered.", sinks)
    batch = GaugeMetricFamily(
        "fasti_sink_batch", "The last batch of a sink that was published.", labels=["sink"]
    )
    busy = GaugeMetricFamily(
        "fasti_sink_busy", "Whether a sink's last batch is still carried out.", labels=["sink"]
    )
    for name, number, done in latest:
        batch.add_metric([name], number)
        busy.add_metric([name], 0 if done else 1)
    yield batch
    yield busy


def _look(state: ShardState) -> Seen:
    waiting = [stage for stage in state.stages.values() if not stage.published]
    sinks = sorted(state.sinks.all.values(), key=lambda sink: -sink.published_us)
    latest = [(sink.name, sink.batch, sink.done) for sink in sinks[:_NAMED]]
    counts = (len(waiting), sum(stage.total for stage in waiting), len(state.publishing))
    return *counts, len(sinks), latest
