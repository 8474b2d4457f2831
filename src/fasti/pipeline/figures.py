"""The figures of a report, read from gold without Spark.

Which grain a chart has follows from how far back the lake goes: seconds of a young one (see
`figures_seconds`), else minutes of the last three hours, hours of the last week, or days of the last
ninety.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from fasti.errors import NotFound
from fasti.model import DAY_US, HOUR_US, MINUTE_US, SECOND_US
from fasti.pipeline.figures_ahead import Forecast, ahead
from fasti.pipeline.figures_read import (
    ALL,
    LENGTHS,
    Row,
    Series,
    added,
    but_all,
    filled,
    last_of_each,
    of_topics,
    periods,
    total,
)
from fasti.pipeline.figures_seconds import Bar, Silence, seconds
from fasti.pipeline.lake import Lake
from fasti.pipeline.state import LakeState

# Of so many topics a report says what they did over time.
TOPICS_MAX = 50
_SPANS = (("minute", 3 * HOUR_US), ("hour", 7 * DAY_US), ("day", 90 * DAY_US))
_COUNTS = ("messages_in", "messages_out", "failed", "redelivered", "dead", "cancelled")
# Findings that mean that a message isn't where it should be.
LOST = ("gap", "unaccounted", "never_produced", "count")
_LEAST_US = 14 * MINUTE_US


@dataclass
class TopicFigures:
    """What a report says of one topic."""

    name: str
    counts: Row = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    # Of the last day on which anything was delivered.
    lateness: Row | None = None
    early: int = 0
    pending: int = 0
    overdue: int = 0
    over: bool = False
    recent: list[int] = field(default_factory=list)


@dataclass
class Figures:
    """Everything that a report shows."""

    lake: str
    as_of_us: int
    # What charts over time are made of: their periods' name and length.
    grain: str
    length_us: int
    state: LakeState
    # Those that an operator should look at first, then those with most deliveries.
    topics: list[TopicFigures]
    totals: Row
    # All topics together.
    lateness: Series
    throughput: Series
    # How late messages were, of a young lake: as counts of ever longer times.
    spread: list[Bar]
    # The last day with deliveries, or all of a young lake: when it began, and its lateness.
    today: tuple[int, Row] | None
    ahead: Forecast
    reasons: list[Row]
    attempts: list[tuple[int, int]]
    consumers: list[Row]
    findings: list[Row]
    finding_count: int
    # How many there are of each kind.
    kinds: dict[str, int]
    # Of a young lake: when nothing happened though messages were due, and the lateness of all others.
    silences: list[Silence] = field(default_factory=list)
    otherwise: Row | None = None

    @property
    def pending(self) -> int:
        """Messages that wait for their time, or for a consumer."""
        return self.ahead.pending

    @property
    def early(self) -> int:
        """Deliveries before due: those of messages that are done, and all findings of the audit."""
        counted = sum(topic.early for topic in self.topics)
        return max(counted, self.kinds.get("early", 0))

    @property
    def lost(self) -> int:
        """Findings that mean that something isn't where it should be."""
        return sum(count for kind, count in self.kinds.items() if kind in LOST)

    @property
    def bucket(self) -> str:
        """The length of a period, as "per ..." wants it."""
        if self.grain != "second" or self.length_us == SECOND_US:
            return self.grain
        return f"{self.length_us // SECOND_US} seconds"

    @property
    def counts_due(self) -> bool:
        """Whether `throughput` tells how many messages fell due: only that of a young lake does."""
        return bool(self.throughput) and "due" in self.throughput[0][1]

    def headlines(self) -> Row:
        """The figures at the top, as plain values."""
        late = self.today[1] if self.today else None
        peak = self.ahead.peak
        return {
            "delivered": self.totals["messages_out"],
            "produced": self.totals["messages_in"],
            "p50_us": late["p50_us"] if late else None,
            "p99_us": late["p99_us"] if late else None,
            "max_us": late["max_us"] if late else None,
            "early": self.early,
            "lost": self.lost,
            "backlog": self.pending,
            "overdue": self.ahead.overdue,
            "next_peak_us": peak[0] if peak else None,
            "next_peak_messages": peak[1] if peak else None,
            "dead": self.totals["dead"],
            "findings": self.finding_count,
            "audited": bool(self.state.audit),
            "as_of_us": self.as_of_us,
        }


def figures(lake: Lake, findings_max: int = 500) -> Figures:
    """Reads them. Raises `not_found` if the pipeline has never run there."""
    state = LakeState.of(lake)
    if not state.gold:
        raise NotFound(
            f"there are no gold tables in {lake.root}: run `fasti pipeline once --lake {lake.root}`"
        )
    days = periods(lake, "throughput", "day")
    late_days = periods(lake, "lateness", "day")
    coming = ahead(lake, state.as_of_us)
    topics = _topics(days, late_days, coming)
    audit = lake.gold("audit").arrow() if lake.gold("audit").exists() else pa.table({})
    result = Figures(
        lake=str(lake.root),
        as_of_us=state.as_of_us,
        grain="",
        length_us=0,
        state=state,
        topics=topics,
        totals={name: total(days, name) for name in _COUNTS},
        lateness=[],
        throughput=[],
        spread=[],
        today=_today(late_days),
        ahead=coming,
        reasons=_reasons(lake),
        attempts=_attempts(lake),
        consumers=_consumers(lake),
        findings=audit.slice(0, findings_max).to_pylist(),
        finding_count=audit.num_rows,
        kinds=_kinds(audit),
    )
    first_us = int(pc.min(days.column("start")).as_py()) if days.num_rows else state.as_of_us
    _over_time(result, lake, first_us)
    return result


def _over_time(result: Figures, lake: Lake, first_us: int) -> None:
    """Charts over time: of seconds if there are any, else of the grain that fits."""
    result.grain, begin_us, oldest_us = _window(lake, result.as_of_us, first_us)
    shown = result.topics[:TOPICS_MAX]
    young = seconds(lake, result.state, oldest_us) if result.grain == "minute" else None
    if young is not None:
        result.grain, result.length_us, result.spread = "second", young.length_us, young.spread
        result.lateness, result.throughput = young.lateness, young.throughput
        result.silences, result.otherwise = young.silences, young.otherwise
        result.today = None if young.whole is None else (young.throughput[0][0], young.whole)
        for topic in shown:
            topic.recent = young.recent.get(topic.name, [])
        return
    length_us = result.length_us = LENGTHS[result.grain]
    late = of_topics(periods(lake, "lateness", result.grain, begin_us), [ALL])
    if late.num_rows:
        result.lateness = [(row["start"], row) for row in late.sort_by("start").to_pylist()]
    recent = periods(lake, "throughput", result.grain, begin_us)
    sums = {row["start"]: row for row in added(recent, ["start"], _COUNTS)}
    none = dict.fromkeys(_COUNTS, 0)
    result.throughput = filled(sums, length_us, begin_us, result.as_of_us, none)
    by_topic: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in of_topics(recent, [topic.name for topic in shown]).to_pylist():
        by_topic[row["topic"]][row["start"]] = row
    for topic in shown:
        series = filled(by_topic[topic.name], length_us, begin_us, result.as_of_us, none)
        topic.recent = [row["messages_out"] for _, row in series]


def _window(lake: Lake, as_of_us: int, first_us: int) -> tuple[str, int, int]:
    """The grain of charts, where they begin, at a whole period, and the oldest of their periods."""
    minutes = periods(lake, "throughput", "minute", max(first_us, as_of_us - _SPANS[0][1]))
    oldest = int(pc.min(minutes.column("start")).as_py()) if minutes.num_rows else as_of_us
    hours = periods(lake, "throughput", "hour")
    begun_us = int(pc.min(hours.column("start")).as_py()) if hours.num_rows else oldest
    # A day that began long ago may have begun for us just now.
    if begun_us >= oldest - HOUR_US:
        # A quarter of an hour at least, so that one minute has something around it.
        latest = (as_of_us - _LEAST_US) // MINUTE_US * MINUTE_US
        return "minute", min(oldest, latest), oldest
    for grain, span_us in _SPANS[1:]:
        if begun_us >= as_of_us - span_us or grain == "day":
            length = LENGTHS[grain]
            return grain, max(begun_us, as_of_us - span_us) // length * length, begun_us
    raise AssertionError("days are the last")


def _topics(days: pa.Table, late_days: pa.Table, coming: Forecast) -> list[TopicFigures]:
    topics: dict[str, TopicFigures] = {}

    def of(name: str) -> TopicFigures:
        return topics.setdefault(name, TopicFigures(name))

    for row in added(days, ["topic"], _COUNTS):
        of(row.pop("topic")).counts = row
    late = but_all(late_days)
    for name, row in last_of_each(late).items():
        of(name).lateness = row
    for row in added(late, ["topic"], ["early"]):
        of(row["topic"]).early = row["early"]
    for name, row in coming.sums.items():
        topic = of(name)
        topic.pending, topic.overdue, topic.over = row["pending"], row["overdue"], row["over"]
    return sorted(topics.values(), key=_order)


def _order(topic: TopicFigures) -> tuple[bool, bool, int, str]:
    return (not topic.early, not topic.over, -topic.counts["messages_out"], topic.name)


def _today(late_days: pa.Table) -> tuple[int, Row] | None:
    row = last_of_each(of_topics(late_days, [ALL])).get(ALL)
    return None if row is None else (row["start"], row)


def _kinds(audit: pa.Table) -> dict[str, int]:
    if not audit.num_rows:
        return {}
    counts = pc.value_counts(audit.column("kind")).to_pylist()
    return {row["values"]: row["counts"] for row in sorted(counts, key=lambda r: -r["counts"])}


def _reasons(lake: Lake) -> list[Row]:
    rows = added(periods(lake, "retries", "day"), ["op", "reason"], ["count"])
    return sorted(rows, key=lambda row: (-row["count"], row["op"], row["reason"]))


def _attempts(lake: Lake) -> list[tuple[int, int]]:
    rows: Sequence[Row] = added(periods(lake, "attempts", "day"), ["attempts"], ["count"])
    return sorted((row["attempts"], row["count"]) for row in rows)


def _consumers(lake: Lake) -> list[Row]:
    names = ("leased", "acked", "errors", "released", "busy_us")
    rows = added(periods(lake, "consumers", "day"), ["topic", "consumer"], names)
    return sorted(rows, key=lambda row: (-row["acked"], row["topic"], row["consumer"]))
