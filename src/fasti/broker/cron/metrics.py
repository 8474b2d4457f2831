"""Metrics of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from fasti.core.cron.commands import ScheduleSums, SumSchedules
from fasti.core.queries import ReadTopics
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

# More topics than these are not told apart by a scrape.
_TOPICS_MAX = 1_000
_TIMEOUT_S = 10.0


def collect(shard: Shard) -> Iterator[Metric]:
    """All that there are."""
    try:
        topics = shard.ask(ReadTopics(kind="cron")).result(_TIMEOUT_S)
        names = sorted(topic.name for topic in topics)[:_TOPICS_MAX]
        replies = shard.submit([SumSchedules(name) for name in names]).result(_TIMEOUT_S)
    except (FastiError, TimeoutError):
        return
    there = GaugeMetricFamily(
        "fasti_schedules", "Schedules, and whether they rest.", labels=["topic", "state"]
    )
    fired = CounterMetricFamily(
        "fasti_schedule_fired", "Messages that schedules emitted.", labels=["topic"]
    )
    skipped = CounterMetricFamily(
        "fasti_schedule_skipped", "Occurrences that a policy passed over.", labels=["topic"]
    )
    for name, reply in zip(names, replies, strict=True):
        # One that was deleted since is left out.
        if reply.error is None:
            sums: ScheduleSums = reply.value
            there.add_metric([name, "active"], sums.schedules - sums.paused)
            there.add_metric([name, "paused"], sums.paused)
            fired.add_metric([name], sums.emitted)
            skipped.add_metric([name], sums.skipped)
    yield there
    yield fired
    yield skipped
    counts = shard.fire_counts
    yield CounterMetricFamily(
        "fasti_schedule_misfired", "Occurrences that were missed, since the start.", counts.misfired
    )
    yield CounterMetricFamily(
        "fasti_schedule_failures", "Attempts to fire that failed and are repeated.", counts.failed
    )
    yield CounterMetricFamily(
        "fasti_schedule_target_missing",
        "Of those, because the target topic was not there.",
        counts.target_missing,
    )
    late = HistogramMetricFamily(
        "fasti_schedule_late_seconds",
        "From an occurrence until its message was durable; 0 if emitted ahead.",
    )
    late.add_metric([], counts.late.cumulative(), counts.late.total)
    yield late
