"""Metrics of logs and their groups: how much there is, and how far behind who is.

Bounded: first every log and every group has one place in the page, all its partitions added up
(`partition="(all)"`), the largest first; if there is room left (metrics/series.py), those of few
partitions have series for each partition instead. Sums over partitions are right either way.

Read from the engine between its steps, a topic at a time: sums are kept up with every event, and
single partitions are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fasti.broker.metrics.series import SeriesBound
from fasti.core.log.commands import DescribeGroups, DescribeLog, LogSums, SumLog
from fasti.core.log.retention import REASONS
from fasti.core.queries import ReadTopics
from fasti.errors import FastiError

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

# In the label, where all partitions are added up.
ALL = "(all)"
# Logs with more partitions than this have sums only.
PARTITIONS_SHOWN_MAX = 128
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

Families = dict[str, GaugeMetricFamily]


def collect(shard: Shard, bound: SeriesBound) -> Iterator[Metric]:
    """All that there is room for; none if the shard doesn't answer."""
    page = _Page(shard, bound)
    # A shard that doesn't answer: `fasti_up` says so.
    with suppress(FastiError, TimeoutError):
        page.fill()
    yield from page.families()
    yield GaugeMetricFamily(
        "fasti_watchers", "Readers that follow logs, and watchers.", shard.feed.watchers
    )


class _Page:
    """One scrape's families of logs and groups."""

    def __init__(self, shard: Shard, bound: SeriesBound) -> None:
        self._shard, self._bound = shard, bound
        self._logs = _families(_OF_LOGS, ["topic", "partition"])
        self._groups = _families(_OF_GROUPS, ["topic", "group", "partition"])
        self._dropped = CounterMetricFamily(
            "fasti_log_dropped_rows",
            "Rows dropped since the start, by why.",
            labels=["topic", "why"],
        )

    def families(self) -> Iterator[Metric]:
        yield from self._logs.values()
        yield self._dropped
        yield from self._groups.values()

    def fill(self) -> None:
        sums = self._sums()
        by_size = sorted(sums, key=lambda topic: -sums[topic].size_bytes)
        shown = [t for t in by_size if self._bound.take(len(_OF_LOGS) + len(REASONS))]
        lags = [
            (lag, topic, group) for topic in shown for group, (lag, _) in sums[topic].groups.items()
        ]
        lags.sort(key=lambda each: -each[0])
        groups: dict[str, list[str]] = {}
        for _, topic, group in lags:
            if self._bound.take(len(_OF_GROUPS)):
                groups.setdefault(topic, []).append(group)
        for topic in shown:
            self._add(topic, sums[topic], groups.get(topic, []))

    def _sums(self) -> dict[str, LogSums]:
        logs = self._shard.ask(ReadTopics(kind="log")).result(_TIMEOUT_S)
        found: dict[str, LogSums] = {}
        for topic in sorted(log.name for log in logs):
            sums = self._asked(SumLog(topic))
            if sums is not None:
                found[topic] = sums
        return found

    def _add(self, topic: str, sums: LogSums, groups: list[str]) -> None:
        for why in REASONS:
            self._dropped.add_metric([topic, why], sums.dropped.get(why, 0))
        if self._has_room(sums, len(_OF_LOGS)):
            for each in self._asked(DescribeLog(topic)) or ():
                values = each | {"rows": each["end"] - each["earliest"]}
                _add_all(self._logs, [topic, str(each["partition"])], values)
        else:
            ends = {"earliest": sums.earliest, "end": sums.end}
            rows = {"rows": sums.end - sums.earliest, "bytes": sums.size_bytes}
            _add_all(self._logs, [topic, ALL], ends | rows)
        for group in groups:
            self._add_group(topic, sums, group)

    def _add_group(self, topic: str, sums: LogSums, group: str) -> None:
        if self._has_room(sums, len(_OF_GROUPS)):
            for described in self._asked(DescribeGroups(topic, group)) or ():
                for each in described["partitions"]:
                    _add_all(self._groups, [topic, group, str(each["partition"])], each)
            return
        lag, its = sums.groups[group]
        values = {"lag": lag, "leased": its.leased, "dead": its.dead, "behind": its.behind}
        _add_all(self._groups, [topic, group, ALL], values | {"window_full": its.full > 0})

    def _has_room(self, sums: LogSums, families: int) -> bool:
        """Whether there is room for single partitions; the place of their sum is theirs already."""
        more = (sums.partitions - 1) * families
        if sums.partitions > PARTITIONS_SHOWN_MAX:
            self._bound.left_out += more
            return False
        return self._bound.take(more)

    def _asked(self, command: Any) -> Any:
        reply = self._shard.call(command, _TIMEOUT_S)
        # One that was deleted since is left out.
        return reply.value if reply.error is None else None


def _families(named: dict[str, tuple[str, str]], labels: list[str]) -> Families:
    return {
        field: GaugeMetricFamily(name, text, labels=labels) for field, (name, text) in named.items()
    }


def _add_all(families: Families, labels: list[str], values: dict[str, Any]) -> None:
    for field, family in families.items():
        family.add_metric(labels, float(values[field]))
