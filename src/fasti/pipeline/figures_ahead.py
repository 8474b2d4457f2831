"""What is coming: gold's `backlog` as the forecast of a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fasti.model import DAY_US, HOUR_US, MINUTE_US
from fasti.pipeline.figures_read import (
    LENGTHS,
    Row,
    Series,
    added,
    filled,
    of_topics,
    periods,
    total,
)
from fasti.pipeline.lake import Lake

# How far each grain is shown.
SPANS_US = {"minute": HOUR_US, "hour": 48 * HOUR_US, "day": 30 * DAY_US}
FORECASTS_MAX = 6
_EMPTY = {"pending": 0, "overdue": 0, "queued": 0}


@dataclass(frozen=True)
class Forecast:
    """The forecast, as of a moment."""

    pending: int
    overdue: int
    # What has been due for more than a minute: how many, of how many topics, and since when.
    stuck: tuple[int, int, int] | None
    # All topics together, for each grain.
    grains: dict[str, Series]
    # Pending behind the last day of those.
    later: int
    # By the hour for some topics, those that are over and then those with most; and how many there are.
    by_topic: dict[str, Series]
    topics: int
    # The hour in which most falls due: when it begins, and how many.
    peak: tuple[int, int] | None
    # Of each topic with pending messages: pending, overdue, over.
    sums: dict[str, Row]

    @property
    def over(self) -> list[str]:
        """Topics with an hour in which more falls due than their consumers have shown."""
        return sorted(name for name, row in self.sums.items() if row["over"])


def ahead(lake: Lake, as_of_us: int) -> Forecast:
    """Reads gold's `backlog`."""
    rows = {grain: periods(lake, "backlog", grain) for grain in LENGTHS}
    hours = rows["hour"]
    sums = {row["topic"]: row for row in added(hours, ["topic"], ["pending", "overdue"])}
    over = hours.filter(hours.column("over")).column("topic") if hours.num_rows else []
    names_over = {str(name) for name in over}
    for name, row in sums.items():
        row["over"] = name in names_over
    order = sorted(sums, key=lambda name: (not sums[name]["over"], -sums[name]["pending"], name))
    alone = order[0] if len(order) == 1 else None
    grains = {grain: _together(rows[grain], grain, as_of_us, alone) for grain in LENGTHS}
    pending = sum(row["pending"] for row in sums.values())
    return Forecast(
        pending=pending,
        overdue=total(hours, "overdue"),
        stuck=_stuck(rows["minute"], as_of_us),
        grains=grains,
        later=max(0, pending - sum(row["pending"] for _, row in grains["day"])),
        by_topic={
            name: _series(of_topics(hours, [name]).to_pylist(), "hour", as_of_us)
            for name in order[:FORECASTS_MAX]
        },
        topics=len(order),
        peak=_peak(added(hours, ["start"], ["pending", "overdue"]), as_of_us),
        sums=sums,
    )


def _together(rows: pa.Table, grain: str, as_of_us: int, alone: str | None) -> Series:
    """All topics. What consumers can do is shown only of a single one: others can't do its work."""
    if alone is not None:
        return _series(rows.to_pylist(), grain, as_of_us)
    return _series(added(rows, ["start"], ["pending", "overdue"]), grain, as_of_us)


def _series(rows: Iterable[Row], grain: str, as_of_us: int) -> Series:
    """From the period that runs; what is overdue stands in that one."""
    length_us = LENGTHS[grain]
    begin_us = as_of_us // length_us * length_us
    end_us = begin_us + SPANS_US[grain]
    shown: dict[int, Row] = {}
    capacity: Any = None
    for row in sorted(rows, key=lambda row: int(row["start"])):
        capacity = row.get("capacity")
        start = max(row["start"], begin_us)
        if start < end_us:
            period = shown.setdefault(start, dict(_EMPTY))
            period["pending"] += row["pending"]
            period["overdue"] += row["overdue"]
            period["queued"] = row.get("queued") or 0
    rows_shown = {start: {**row, "capacity": capacity} for start, row in shown.items()}
    empty = {**_EMPTY, "capacity": capacity}
    return filled(rows_shown, length_us, begin_us, end_us - length_us, empty)


def _stuck(minutes: pa.Table, as_of_us: int) -> tuple[int, int, int] | None:
    """A message that fell due a moment ago is not waiting yet."""
    if not minutes.num_rows:
        return None
    old = pc.less_equal(minutes.column("start"), as_of_us - 2 * MINUTE_US)
    waiting = minutes.filter(pc.and_(old, pc.greater(minutes.column("overdue"), 0)))
    if not waiting.num_rows:
        return None
    topics = pc.count_distinct(waiting.column("topic")).as_py()
    return total(waiting, "overdue"), int(topics), int(pc.min(waiting.column("start")).as_py())


def _peak(hours: Iterable[Row], as_of_us: int) -> tuple[int, int] | None:
    """Of the hours that are not over; None if nothing falls due in them."""
    counts = {
        row["start"]: row["pending"] - row["overdue"]
        for row in hours
        if row["start"] + HOUR_US > as_of_us
    }
    best = max(counts.items(), key=lambda hour: (hour[1], -hour[0]), default=None)
    return best if best and best[1] else None
