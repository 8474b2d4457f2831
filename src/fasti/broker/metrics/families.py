"""Families of metrics as tables: a line of text for each, with its name, its labels and its help.

A name that ends in `_total` is a counter's, one that ends in `_bucket` a histogram's, every other one
a gauge's. Each room of the broker has a table of its own and fills it anew for each scrape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

_LINE = re.compile(r"(?P<name>\w+)(\{(?P<labels>[\w,]+)\})? +(?P<text>.+)")


class Families:
    """The families of a table, in its order, and the series that were added."""

    def __init__(self, table: str) -> None:
        self._families: dict[str, Any] = dict(_parse(line) for line in table.strip().splitlines())

    def add(self, name: str, *series: Any) -> None:
        """One more series: a value for each label, and then its own.

        That of a histogram is a `Distribution`.
        """
        *labels, value = series
        family = self._families[name]
        if isinstance(family, HistogramMetricFamily):
            family.add_metric(labels, value.cumulative(), value.total)
        else:
            family.add_metric(labels, value)

    def add_all(self, name: str, series: Mapping[str, float]) -> None:
        """Series of a family with one label, by its value."""
        for label in sorted(series):
            self.add(name, label, series[label])

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


def _parse(line: str) -> tuple[str, Metric]:
    parts = _LINE.fullmatch(line.strip())
    assert parts is not None, f"{line!r} is not a line of a table of metrics"
    name, text = parts["name"], parts["text"]
    labels = parts["labels"].split(",") if parts["labels"] else []
    if name.endswith("_bucket"):
        return name, HistogramMetricFamily(name.removesuffix("_bucket"), text, labels=labels)
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return name, kind(name, text, labels=labels)
