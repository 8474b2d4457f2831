"""Metrics of bindings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from fasti.broker.metrics.counts import OTHER, TOPICS_MAX
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_TIMEOUT_S = 10.0


def collect(shard: Shard) -> Iterator[Metric]:
    """How many bindings there are, and what relays passed on to nobody."""
    try:
        found: list[tuple[str, int, bool, int]] = shard.run(
            lambda: [
                (topic.name, len(topic.bindings), topic.settings.relay, topic.unrouted)
                for topic in shard.engine.state.topics.values()
                if topic.bindings or topic.settings.relay
            ]
        ).result(_TIMEOUT_S)
    except (FastiError, TimeoutError):
        return
    bindings = GaugeMetricFamily(
        "fasti_bindings", "Bindings to other topics, by topic.", labels=["topic"]
    )
    unrouted = CounterMetricFamily(
        "fasti_unrouted",
        "What a relay got and no binding fitted, since the start: kept nowhere.",
        labels=["topic"],
    )
    rest = [0, 0]
    for number, (name, count, relay, lost) in enumerate(sorted(found)):
        if number >= TOPICS_MAX:
            rest = [rest[0] + count, rest[1] + lost]
            continue
        bindings.add_metric([name], count)
        if relay:
            unrouted.add_metric([name], lost)
    if len(found) > TOPICS_MAX:
        bindings.add_metric([OTHER], rest[0])
        unrouted.add_metric([OTHER], rest[1])
    yield bindings
    yield unrouted
