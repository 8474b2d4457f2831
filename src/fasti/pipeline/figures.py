"""The figures of a report, read from gold without Spark.

Which grain a chart has follows from how far back the lake goes: minutes of the last three hours, hours
of the last week, or days of the last ninety.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from fasti.errors import NotFound
from fasti.model import DAY_US, HOUR_US, MINUTE_US
from fasti.pipeline.lake import Lake
from fasti.pipeline.state import State

LENGTHS = {"minute": MINUTE_US, "hour": HOUR_US, "day": DAY_US}
_SPANS = (("minute", 3 * HOUR_US), ("hour", 7 * DAY_US), ("day", 90 * DAY_US))
_COUNTS = ("messages_in", "messages_out", "failed", "redelivered", "dead", "cancelled")
_LATE = ("count", "p50_us", "p95_us", "p99_us", "p999_us", "max_us", "early")
ALL = "*"
# Findings that mean that a message isn't where it should be.
LOST = ("gap", "unaccounted", "never_produced", "count")
_LEAST_US = 14 * MINUTE_US
# Of the forecast, by the hour.
AHEAD_US = 48 * HOUR_US

Row = dict[str, Any]
Series = list[tuple[int, Row]]
"""Periods in order of time: when each began, in microseconds, and its figures."""


@dataclass
class Topic:
    """What a report says of one topic."""

    name: str
    counts: Row = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    # Of the last day on which anything was delivered.
    lateness: Row | None = None
    pending: int = 0
    overdue: int = 0
    over: bool = False
    recent: list[int] = field(default_factory=list)


@dataclass
class Figures:
    """Everything that a report shows."""

    lake: str
    as_of_us: int
    grain: str
    begin_us: int
    state: State
    topics: list[Topic]
    totals: Row
    # All topics together.
    lateness: Series
    throughput: Series
    # The last day with deliveries: when it began, and its lateness.
    today: tuple[int, Row] | None
    # Pending by due hour, per topic; those with most first.
    forecast: dict[str, Series]
    pending: int
    overdue: int
    peak: tuple[int, int] | None
    reasons: list[Row]
    attempts: list[tuple[int, int]]
    consumers: list[Row]
    findings: list[Row]
    found: int

    @property
    def early(self) -> int:
        """Deliveries before due: those of messages that are done, and all that the audit found."""
        told = sum(each.lateness["early"] for each in self.topics if each.lateness is not None)
        return max(told, sum(row["kind"] == "early" for row in self.findings))

    @property
    def lost(self) -> int:
        """Findings that mean that something isn't where it should be."""
        return sum(row["kind"] in LOST for row in self.findings)

    def headlines(self) -> Row:
        """The figures at the top, as plain values."""
        late = self.today[1] if self.today else None
        return {
            "delivered": self.totals["messages_out"],
            "produced": self.totals["messages_in"],
            "p50_us": late["p50_us"] if late else None,
            "p99_us": late["p99_us"] if late else None,
            "max_us": late["max_us"] if late else None,
            "early": self.early,
            "lost": self.lost,
            "backlog": self.pending,
            "overdue": self.overdue,
            "next_peak_us": self.peak[0] if self.peak else None,
            "next_peak_messages": self.peak[1] if self.peak else None,
            "dead": self.totals["dead"],
            "findings": self.found,
            "audited": bool(self.state.audit),
            "as_of_us": self.as_of_us,
        }


def figures(lake: Lake, findings_max: int = 500) -> Figures:
    """Reads them. Raises `not_found` if the pipeline has never run there."""
    state = State.of(lake)
    if not state.gold:
        raise NotFound(
            f"there are no gold tables in {lake.root}: run `fasti pipeline once --lake {lake.root}`"
        )
    days = _rows(lake, "throughput", "day")
    first_us = min((row["start"] for row in days), default=state.as_of_us)
    grain, begin_us = _window(lake, state.as_of_us, first_us)
    recent = _rows(lake, "throughput", grain, begin_us)
    late_days = _rows(lake, "lateness", "day")
    backlog = _rows(lake, "backlog", "hour")
    found = lake.gold("audit").arrow() if lake.gold("audit").exists() else pa.table({})
    pending = _pending(backlog)
    today = max((row for row in late_days if row["topic"] == ALL), key=_start, default=None)
    peak = _peak(backlog, state.as_of_us)
    return Figures(
        lake=str(lake.root),
        as_of_us=state.as_of_us,
        grain=grain,
        begin_us=begin_us,
        state=state,
        topics=_topics(days, late_days, backlog, recent, grain, begin_us, state.as_of_us),
        totals={name: sum(row[name] for row in days) for name in _COUNTS},
        lateness=[
            (row["start"], row)
            for row in sorted(_rows(lake, "lateness", grain, begin_us), key=_start)
            if row["topic"] == ALL
        ],
        throughput=_summed(recent, grain, begin_us, state.as_of_us),
        today=None if today is None else (today["start"], today),
        forecast=_forecast(backlog, state.as_of_us),
        pending=sum(pending.values()),
        overdue=sum(row["overdue"] for row in backlog),
        peak=peak,
        reasons=_reasons(_rows(lake, "retries", "day")),
        attempts=_attempts(_rows(lake, "attempts", "day")),
        consumers=_consumers(_rows(lake, "consumers", "day")),
        findings=found.slice(0, findings_max).to_pylist(),
        found=found.num_rows,
    )


def _start(row: Row) -> int:
    return int(row["start"])


def _rows(lake: Lake, name: str, grain: str, begin_us: int = 0) -> list[Row]:
    """Rows of one grain from a moment on; `start` in microseconds."""
    table = lake.gold(name)
    if not table.exists():
        return []
    since = pa.scalar(begin_us, pa.timestamp("us", tz="UTC"))
    day = since.as_py().date().isoformat()
    files = [each for each in table.files() if str(each.partition.get("day", "9")) >= day]
    if not files:
        return []
    found = ds.dataset([str(table.path / each.path) for each in files], format="parquet").to_table(
        filter=(pc.field("grain") == grain) & (pc.field("start") >= since)
    )
    place = found.schema.get_field_index("start")
    starts = found.column("start").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    found = found.set_column(place, "start", starts)
    return list(found.to_pylist())


def _window(lake: Lake, as_of_us: int, first_us: int) -> tuple[str, int]:
    """The grain of charts over time, and where they begin: at a whole period."""
    minutes = _rows(lake, "throughput", "minute", max(first_us, as_of_us - _SPANS[0][1]))
    oldest = min((row["start"] for row in minutes), default=as_of_us)
    # A day that began long ago may have begun for us just now.
    before = [r for r in _rows(lake, "throughput", "hour") if r["start"] < oldest - HOUR_US]
    if not before:
        # A quarter of an hour at least, so that one minute has something around it.
        latest = (as_of_us - _LEAST_US) // MINUTE_US * MINUTE_US
        return "minute", min(oldest, latest)
    begun_us = min(row["start"] for row in before)
    for grain, span_us in _SPANS[1:]:
        if begun_us >= as_of_us - span_us or grain == "day":
            length = LENGTHS[grain]
            return grain, max(begun_us, as_of_us - span_us) // length * length
    raise AssertionError("days are the last")


def _filled(found: dict[int, Row], grain: str, begin_us: int, end_us: int, empty: Row) -> Series:
    """Every period, also those in which nothing happened."""
    starts = range(begin_us, max(end_us, begin_us) + 1, LENGTHS[grain])
    return [(start, found.get(start, empty)) for start in starts]


def _summed(rows: Sequence[Row], grain: str, begin_us: int, end_us: int) -> Series:
    sums: dict[int, Row] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
    for row in rows:
        for name in _COUNTS:
            sums[row["start"]][name] += row[name]
    return _filled(sums, grain, begin_us, end_us, dict.fromkeys(_COUNTS, 0))


def _topics(
    days: Sequence[Row],
    late_days: Sequence[Row],
    backlog: Sequence[Row],
    recent: Sequence[Row],
    grain: str,
    begin_us: int,
    end_us: int,
) -> list[Topic]:
    topics: dict[str, Topic] = {}

    def of(name: str) -> Topic:
        return topics.setdefault(name, Topic(name))

    for row in days:
        counts = of(row["topic"]).counts
        for name in _COUNTS:
            counts[name] += row[name]
    for row in sorted(late_days, key=_start):
        if row["topic"] != ALL:
            of(row["topic"]).lateness = row
    for row in backlog:
        topic = of(row["topic"])
        topic.pending += row["pending"]
        topic.overdue += row["overdue"]
        topic.over |= row["over"]
    by_topic: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in recent:
        by_topic[row["topic"]][row["start"]] = row
    for name, topic in topics.items():
        filled = _filled(by_topic[name], grain, begin_us, end_us, {"messages_out": 0})
        topic.recent = [row["messages_out"] for _, row in filled]
    return sorted(topics.values(), key=lambda each: (-each.counts["messages_out"], each.name))


def _pending(backlog: Sequence[Row]) -> dict[str, int]:
    pending: dict[str, int] = defaultdict(int)
    for row in backlog:
        pending[row["topic"]] += row["pending"]
    return pending


def _forecast(backlog: Sequence[Row], as_of_us: int) -> dict[str, Series]:
    """By the hour for the next two days; what is overdue stands in the hour that runs."""
    begin_us = as_of_us // HOUR_US * HOUR_US
    pending = _pending(backlog)
    found: dict[str, dict[int, Row]] = {name: {} for name in pending}
    capacity: dict[str, Any] = {}
    for row in sorted(backlog, key=_start):
        capacity[row["topic"]] = row["capacity"]
        start = max(row["start"], begin_us)
        if start < begin_us + AHEAD_US:
            hour = found[row["topic"]].setdefault(start, {"pending": 0, "overdue": 0, "queued": 0})
            hour["pending"] += row["pending"]
            hour["overdue"] += row["overdue"]
            hour["queued"] = row["queued"] or 0
    forecast = {}
    for name in sorted(pending, key=lambda each: (-pending[each], each)):
        empty = {"pending": 0, "overdue": 0, "queued": 0, "capacity": capacity[name]}
        hours = {s: {**row, "capacity": capacity[name]} for s, row in found[name].items()}
        forecast[name] = _filled(hours, "hour", begin_us, begin_us + AHEAD_US - HOUR_US, empty)
    return forecast


def _peak(backlog: Sequence[Row], as_of_us: int) -> tuple[int, int] | None:
    """The hour from now on in which most falls due: when it begins, and how many."""
    hours: dict[int, int] = defaultdict(int)
    for row in backlog:
        if row["start"] + HOUR_US > as_of_us:
            hours[row["start"]] += row["pending"] - row["overdue"]
    best = max(hours.items(), key=lambda each: (each[1], -each[0]), default=None)
    return best if best and best[1] else None


def _reasons(rows: Sequence[Row]) -> list[Row]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        counts[row["op"], row["reason"]] += row["count"]
    return [
        {"op": op, "reason": reason, "count": count}
        for (op, reason), count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    ]


def _attempts(rows: Sequence[Row]) -> list[tuple[int, int]]:
    counts: dict[int, int] = defaultdict(int)
    for row in rows:
        counts[row["attempts"]] += row["count"]
    return sorted(counts.items())


def _consumers(rows: Sequence[Row]) -> list[Row]:
    names = ("leased", "acked", "errors", "released", "busy_us")
    sums: dict[tuple[str, str], Row] = defaultdict(lambda: dict.fromkeys(names, 0))
    for row in rows:
        mine = sums[row["topic"], row["consumer"]]
        for name in names:
            mine[name] += row[name]
    found = [{"topic": topic, "consumer": who, **row} for (topic, who), row in sums.items()]
    return sorted(found, key=lambda row: (-row["acked"], row["topic"], row["consumer"]))
