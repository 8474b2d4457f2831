"""Metrics of bindings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from fasti.broker.metrics.counts import OTHER, TOPICS_MAX
from fasti.core.queries import ReadTopics, TopicView
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

_TIMEOUT_S = 10.0


def collect(shard: Shard) -> Iterator[Metric]:
    """How many bindings there are, and what relays passed on to nobody."""
    try:
        topics: list[TopicView] = shard.ask(ReadTopics()).result(_TIMEOUT_S)
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
    routing = [topic for topic in topics if topic.bindings or topic.settings.relay]
    routing.sort(key=lambda topic: topic.name)
    for topic in routing[:TOPICS_MAX]:
        bindings.add_metric([topic.name], len(topic.bindings))
        if topic.settings.relay:
            unrouted.add_metric([topic.name], topic.unrouted)
    if rest := routing[TOPICS_MAX:]:
        bindings.add_metric([OTHER], sum(len(topic.bindings) for topic in rest))
        unrouted.add_metric([OTHER], sum(topic.unrouted for topic in rest))
    yield bindings
    yield unrouted
