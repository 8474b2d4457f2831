"""Metrics of logs and their groups: how much there is, and how far behind who is.

Bounded: so many topics, and of each so many groups, have series of their own; of the others there
are none. Read from the engine between its steps, a topic at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fasti.broker.metrics.counts import TOPICS_MAX
from fasti.core.log.body import log_of
from fasti.core.log.commands import DescribeGroups, DescribeLog
from fasti.core.log.retention import REASONS
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

GROUPS_MAX = 100
_TIMEOUT_S = 10.0

# By the field that they show.
_OF_LOGS = {
    "rows": ("fasti_log_rows", "Rows that are there."),
    "bytes": ("fasti_log_bytes", "Bytes of those rows, about."),
    "earliest": ("fasti_log_earliest_offset", "The first offset that is there."),
    "end": ("fasti_log_end_offset", "The offset that the next row gets."),
}
_OF_GROUPS = {
    "lag": ("fasti_group_lag", "Rows that the group has not finished."),
    "leased": ("fasti_group_leased", "Rows that its consumers have."),
    "dead": ("fasti_group_dead", "Rows that failed for good."),
    "behind": ("fasti_group_behind_rows", "Rows that were dropped before it had finished them."),
    "window_full": (
        "fasti_group_window_full",
        "Whether nothing new is handed out because too much is unfinished.",
    ),
}


def collect(shard: Shard) -> Iterator[Metric]:
    """All that there are; none if the shard doesn't answer."""
    logs = _families(_OF_LOGS, ["topic", "partition"])
    groups = _families(_OF_GROUPS, ["topic", "group", "partition"])
    dropped = CounterMetricFamily(
        "fasti_log_dropped_rows", "Rows dropped since the start, by why.", labels=["topic", "why"]
    )
    try:
        for topic in _logs(shard):
            _add_dropped(shard, topic, dropped)
            _add_log(shard, topic, logs)
            _add_groups(shard, topic, groups)
    except (FastiError, TimeoutError):
        pass  # `fasti_up` says so.
    yield from logs.values()
    yield dropped
    yield from groups.values()
    yield GaugeMetricFamily(
        "fasti_watchers", "Readers that follow logs, and watchers.", shard.feed.watchers
    )


def _families(named: dict[str, tuple[str, str]], labels: list[str]) -> dict[str, GaugeMetricFamily]:
    return {
        field: GaugeMetricFamily(name, text, labels=labels) for field, (name, text) in named.items()
    }


def _logs(shard: Shard) -> list[str]:
    names = shard.run(
        lambda: sorted(
            topic.name
            for topic in shard.engine.state.topics.values()
            if topic.settings.kind == "log"
        )[:TOPICS_MAX]
    )
    found: list[str] = names.result(_TIMEOUT_S)
    return found


def _described(shard: Shard, command: Any) -> list[dict[str, Any]]:
    reply = shard.call(command, _TIMEOUT_S)
    # One that was deleted since is left out.
    return reply.value if reply.error is None else []


def _add_log(shard: Shard, topic: str, families: dict[str, GaugeMetricFamily]) -> None:
    for each in _described(shard, DescribeLog(topic)):
        labels = [topic, str(each["partition"])]
        values = each | {"rows": each["end"] - each["earliest"]}
        for field, family in families.items():
            family.add_metric(labels, values[field])


def _add_dropped(shard: Shard, topic: str, family: CounterMetricFamily) -> None:
    def counted() -> dict[str, int]:
        known = shard.engine.state.by_name.get(topic)
        return {} if known is None or known.settings.kind != "log" else dict(log_of(known).dropped)

    found: dict[str, int] = shard.run(counted).result(_TIMEOUT_S)
    for why in REASONS:
        family.add_metric([topic, why], found.get(why, 0))


def _add_groups(shard: Shard, topic: str, families: dict[str, GaugeMetricFamily]) -> None:
    for group in _described(shard, DescribeGroups(topic))[:GROUPS_MAX]:
        for each in group["partitions"]:
            labels = [topic, group["group"], str(each["partition"])]
            for field, family in families.items():
                family.add_metric(labels, float(each[field]))
