"""The charts of the report, made of its figures: lateness, throughput, forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fasti.pipeline.charts import WIDE, Chart, ChartLine, length, moment, number, short
from fasti.pipeline.charts_spread import Spread
from fasti.pipeline.figures import Figures
from fasti.pipeline.figures_read import LENGTHS, Row, Series

_FEW = 5
# What the page has room for beside each other, so that letters are as large as elsewhere.
HALF, THIRD = (540, 380), (354, 380)
_TWO_THIRDS = (716, 380)
# Where one is so many times as high as the other, one scale would press the other flat.
_FAR_APART = 4
PERCENTILES = (
    ("p50", "p50_us"),
    ("p95", "p95_us"),
    ("p99", "p99_us"),
    ("p99.9", "p999_us"),
    ("max", "max_us"),
)
_COUNTS = (
    ("in", "messages_in"),
    ("fell due", "due"),
    ("out", "messages_out"),
    ("failed", "failed"),
    ("redelivered", "redelivered"),
    ("dead", "dead"),
    ("cancelled", "cancelled"),
)


def lateness(figures: Figures) -> Chart:
    """How late messages were, over time."""
    by_start = dict(figures.lateness)
    starts = [start for start, _ in figures.throughput]
    rows: list[Row | None] = [by_start.get(start) for start in starts]

    def values(column: str) -> list[float | None]:
        return [None if row is None else max(row[column], 1) for row in rows]

    median = values("p50_us")
    worst = max(row["p99_us"] for row in rows if row is not None)
    return Chart(
        "Lateness over time",
        f"The highest p99 of a {figures.bucket} is {length(worst)}.",
        "late by",
        starts,
        figures.length_us,
        [
            ChartLine("p99", values("p99_us"), "p99", above=median),
            ChartLine("max", values("max_us"), "max"),
            ChartLine("p50", median, "p50"),
        ],
        ["nothing delivered" if row is None else _late_tip(row) for row in rows],
        length,
        logarithmic=True,
        height=280,
        widths=_TWO_THIRDS if figures.spread else (WIDE, 380),
        shaded=_silences(figures),
    )


def _late_tip(row: Row) -> str:
    percentiles = [f"{name} {length(row[column])}" for name, column in PERCENTILES]
    return "\n".join([f"{number(row['count'])} delivered", *percentiles, f"early {row['early']}"])


def _silences(figures: Figures) -> list[tuple[int, int, str]]:
    return [
        (silence.begin_us, silence.end_us, f"silent, {length(silence.end_us - silence.begin_us)}")
        for silence in figures.silences
    ]


def spread(figures: Figures) -> Spread:
    """Of a young lake: how many messages were how late."""
    assert figures.today is not None
    row = figures.today[1]
    half, most, last = row["p50_us"], row["p99_us"], row["max_us"]
    summary = (
        f"Half of {number(row['count'])} messages by {length(half)}, 99 % by {length(most)}, all by "
        f"{length(last)}."
    )
    marks = [("half by", half), ("99 % by", most), ("all by", last)]
    label = "How many messages were how late"
    return Spread(label, summary, figures.spread, marks, length, widths=THIRD)


@dataclass(frozen=True)
class Throughput:
    """What came in, fell due and went out: in one chart, or in two where one scale would not do."""

    charts: list[Chart]
    # Texts and styles.
    legend: list[tuple[str, str]]
    # The table behind it: the periods in which there was anything.
    columns: list[str]
    rows: list[tuple[int, list[int]]]


def throughput(figures: Figures) -> Throughput | None:
    """None if nothing came in or went out."""
    series = figures.throughput
    shown = ("messages_in", "messages_out", "failed")
    if not any(row[name] for _, row in series for name in shown):
        return None
    due = figures.counts_due
    lines = _through_lines(series, due)
    highs = [max(value or 0 for value in line.values) for line in lines]
    low, high = sorted(max(value, 1) for value in highs[:2])
    parts: list[tuple[str, Sequence[ChartLine], int]] = [("messages", lines, 260)]
    if high > _FAR_APART * low:
        went = "fell due and went out" if due else "went out"
        parts = [("came in", lines[:1], 150), (went, lines[1:], 240)]
    bars = " bars" if lines[0].bars else ""
    legend = [("came in", f"in{bars}"), ("delivered and acknowledged", f"out{bars}")]
    legend += [("fell due", "fell")] if due else []
    legend += [("failed attempts", "failed")] if highs[-1] else []
    columns = [(name, column) for name, column in _COUNTS if column in series[0][1]]
    counts = [(start, [row[column] for _, column in columns]) for start, row in series]
    return Throughput(
        [_through_chart(figures, *part) for part in parts],
        legend,
        ["from", *(f"{name}>" for name, _ in columns)],
        [(start, values) for start, values in counts if any(values)],
    )


def _through_lines(series: Series, due: bool) -> list[ChartLine]:
    """In, out, and the rest."""
    values = {name: [row[name] for _, row in series] for name in series[0][1]}
    # A line through a few points among nothing would tell of slopes that never were.
    few = due or sum(any(row.values()) for _, row in series) <= _FEW
    lines = [
        ChartLine("in", values["messages_in"], "in", bars=few),
        ChartLine("out", values["messages_out"], "out", bars=few, filled=True, share=0.6),
    ]
    if due:
        lines.append(ChartLine("fell due", values["due"], "fell"))
    return [*lines, ChartLine("failed", values["failed"], "failed", bars=True, share=0.25)]


def _through_chart(figures: Figures, label: str, lines: Sequence[ChartLine], height: int) -> Chart:
    starts = [start for start, _ in figures.throughput]
    tips = [
        "\n".join(f"{name} {number(row[column])}" for name, column in _COUNTS if column in row)
        for _, row in figures.throughput
    ]
    first = [value or 0 for value in lines[0].values]
    most = max(range(len(first)), key=first.__getitem__)
    return Chart(
        f"Throughput: {label}",
        f"Most {lines[0].name}: {number(first[most])} in the {figures.bucket} from "
        f"{moment(starts[most])}; {number(sum(first))} together.",
        f"{label} per {figures.bucket}",
        starts,
        figures.length_us,
        lines,
        tips,
        short,
        height=height,
        shaded=_silences(figures) if len(lines) > 1 else (),
    )


def forecast(label: str, series: Series, grain: str, widths: tuple[int, int]) -> Chart:
    """What is pending, by when it falls due."""
    starts, rows = [start for start, _ in series], [row for _, row in series]
    capacity = rows[0]["capacity"]
    limit = float("inf") if capacity is None else capacity
    pending = [row["pending"] for row in rows]
    most = max(range(len(rows)), key=pending.__getitem__)
    level = None
    if capacity is not None:
        level = (f"capacity {short(capacity)} per {grain}", float(capacity))
    return Chart(
        label,
        f"{number(sum(pending))} together; most, {number(pending[most])}, in the {grain} from "
        f"{moment(starts[most])}.",
        f"due per {grain}",
        starts,
        LENGTHS[grain],
        [
            ChartLine("due", [n if n <= limit else 0 for n in pending], "due", bars=True),
            ChartLine("over", [n if n > limit else 0 for n in pending], "over", bars=True),
            ChartLine("overdue", [row["overdue"] for row in rows], "overdue", bars=True),
        ],
        [_ahead_tip(row) for row in rows],
        short,
        height=200,
        level=level,
        widths=widths,
    )


def _ahead_tip(row: Row) -> str:
    lines = [f"{number(row['pending'])} due"]
    if row["overdue"]:
        lines.append(f"{number(row['overdue'])} of them overdue")
    if row["capacity"] is not None:
        lines.append(f"capacity {number(row['capacity'])}")
        if row["queued"]:
            lines.append(f"{number(row['queued'])} would wait longer")
    return "\n".join(lines)
