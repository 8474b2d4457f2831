"""Metrics of logs and their groups: how much there is, and how far behind who is.

Bounded: first every log and every group has one place in the page, all its partitions added up
(`partition="(all)"`), the largest first; if there is room left (metrics/series.py), those of few
partitions have series for each partition instead. Sums over partitions are right either way.

Read from the engine between its steps, a topic at a time: sums are kept up with every event, and
single partitions are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fasti.broker.metrics.families import Families
from fasti.broker.metrics.scrape import Scrape
from fasti.core.log.commands import DescribeGroups, DescribeLog, LogSums, SumLog
from fasti.core.log.retention import REASONS

# In the label, where all partitions are added up.
ALL = "(all)"
# Logs with more partitions than this have sums only.
PARTITIONS_SHOWN_MAX = 128

_TABLE = """
fasti_log_rows{topic,partition}                 Rows that are there.
fasti_log_bytes{topic,partition}                Bytes of those rows, about.
fasti_log_earliest_offset{topic,partition}      The first offset that is there.
fasti_log_end_offset{topic,partition}           The offset that the next row gets.
fasti_log_dropped_rows_total{topic,why}         Rows dropped since the start, by why.
fasti_group_lag{topic,group,partition}          Rows that the group has not finished.
fasti_group_leased{topic,group,partition}       Rows that its consumers have.
fasti_group_dead{topic,group,partition}         Rows that failed for good.
fasti_group_behind_rows{topic,group,partition}  Rows that were dropped before it had finished them.
fasti_group_window_full{topic,group,partition}  Whether nothing new is handed out because too much is unfinished.
fasti_watchers                                  Readers that follow logs, and watchers.
"""
# By the field that they show.
_OF_LOGS = {
    "rows": "fasti_log_rows",
    "bytes": "fasti_log_bytes",
    "earliest": "fasti_log_earliest_offset",
    "end": "fasti_log_end_offset",
}
_OF_GROUPS = {
    "lag": "fasti_group_lag",
    "leased": "fasti_group_leased",
    "dead": "fasti_group_dead",
    "behind": "fasti_group_behind_rows",
    "window_full": "fasti_group_window_full",
}


def collect(scrape: Scrape) -> Families:
    """All that there is room for."""
    page = _Page(scrape)
    page.fill()
    page.families.add("fasti_watchers", scrape.shard.feed.watchers)
    return page.families


class _Page:
    """One scrape's families of logs and groups."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape, self._bound = scrape, scrape.bound
        self.families = Families(_TABLE)

    def fill(self) -> None:
        replies = self._scrape.ask_all(self._scrape.of_kind("log"), SumLog)
        sums: dict[str, LogSums] = {topic.name: reply.value for topic, reply in replies}
        by_size = sorted(sums, key=lambda topic: -sums[topic].size_bytes)
        shown = [t for t in by_size if self._bound.take(len(_OF_LOGS) + len(REASONS))]
        lags = [
            (lag, topic, group) for topic in shown for group, (lag, _) in sums[topic].groups.items()
        ]
        lags.sort(key=lambda row: -row[0])
        groups: dict[str, list[str]] = {}
        for _, topic, group in lags:
            if self._bound.take(len(_OF_GROUPS)):
                groups.setdefault(topic, []).append(group)
        for topic in shown:
            self._add(topic, sums[topic], groups.get(topic, []))

    def _add(self, topic: str, sums: LogSums, groups: list[str]) -> None:
        for why in REASONS:
            dropped = sums.dropped.get(why, 0)
            self.families.add("fasti_log_dropped_rows_total", topic, why, dropped)
        if self._has_room(sums, len(_OF_LOGS)):
            for partition in self._scrape.ask(DescribeLog(topic)) or ():
                values = partition | {"rows": partition["end"] - partition["earliest"]}
                self._show(_OF_LOGS, values, topic, str(partition["partition"]))
        else:
            ends = {"earliest": sums.earliest, "end": sums.end}
            rows = {"rows": sums.end - sums.earliest, "bytes": sums.size_bytes}
            self._show(_OF_LOGS, ends | rows, topic, ALL)
        for group in groups:
            self._add_group(topic, sums, group)

    def _add_group(self, topic: str, sums: LogSums, group: str) -> None:
        if self._has_room(sums, len(_OF_GROUPS)):
            for described in self._scrape.ask(DescribeGroups(topic, group)) or ():
                for partition in described["partitions"]:
                    number = str(partition["partition"])
                    self._show(_OF_GROUPS, partition, topic, group, number)
            return
        lag, its = sums.groups[group]
        values = {"lag": lag, "leased": its.leased, "dead": its.dead, "behind": its.behind}
        values["window_full"] = its.full > 0
        self._show(_OF_GROUPS, values, topic, group, ALL)

    def _show(self, families: dict[str, str], values: Mapping[str, Any], *labels: str) -> None:
        for field, name in families.items():
            self.families.add(name, *labels, values[field])

    def _has_room(self, sums: LogSums, families: int) -> bool:
        """Whether there is room for single partitions; the place of their sum is theirs already."""
        more = (sums.partitions - 1) * families
        if sums.partitions > PARTITIONS_SHOWN_MAX:
            self._bound.left_out += more
            return False
        return self._bound.take(more)
