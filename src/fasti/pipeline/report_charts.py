"""The sections of the report that show something over time: lateness, throughput, forecast."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fasti.pipeline.charts import WIDE, Chart, Line, length, moment, number, short
from fasti.pipeline.charts_spread import Spread
from fasti.pipeline.figures import Figures
from fasti.pipeline.figures_ahead import Ahead
from fasti.pipeline.figures_read import LENGTHS, Row, Series
from fasti.pipeline.report_markup import badge, behind, empty, legend, section, time_of

_FEW = 5
# What the page has room for beside each other, so that letters are as large as elsewhere.
_HALF, _TWO_THIRDS, _THIRD, _NARROW = 540, 716, 354, 380
# Where one is so many times as high as the other, one scale would press the other flat.
_FAR_APART = 4
_PERCENTILES = (
    ("p50", "p50_us"),
    ("p95", "p95_us"),
    ("p99", "p99_us"),
    ("p99.9", "p999_us"),
    ("max", "max_us"),
)


def lateness(found: Figures) -> str:
    """How late messages were, over time, and of a young lake how that is spread."""
    note = (
        "From the moment a message is due, or produced if that is later, to the moment user code gets "
        f"it. All topics, per <b>{found.bucket}</b>; the scale is logarithmic."
    )
    if not found.lateness:
        return section("Lateness", note, empty("Nothing was delivered in this time."))
    chart = _late_chart(found, _TWO_THIRDS if found.spread else WIDE)
    content = chart.svg()
    if found.spread:
        content = (
            f'<div class="two"><div><h3>Over time</h3>{content}</div>'
            f"<div><h3>All of them</h3>{_spread(found)}</div></div>"
        )
    signs = legend(("median", "p50"), ("up to 99 %", "ribbon"), ("latest of all", "max"))
    rows = [
        (time_of(start), number(row["count"]), *(escape(length(row[c])) for _, c in _PERCENTILES))
        for start, row in found.lateness
    ]
    names = ("from", "messages>", *(f"{name}>" for name, _ in _PERCENTILES))
    return section("Lateness", note, signs, content, _in_words(found), behind(names, rows))


def _late_chart(found: Figures, width: int) -> Chart:
    by_start = dict(found.lateness)
    starts = [start for start, _ in found.throughput]
    rows: list[Row | None] = [by_start.get(start) for start in starts]

    def values(column: str) -> list[float | None]:
        return [None if row is None else max(row[column], 1) for row in rows]

    median = values("p50_us")
    worst = max((row for row in rows if row is not None), key=lambda row: int(row["p99_us"]))
    return Chart(
        "Lateness over time",
        f"The highest p99 of a {found.bucket} is {length(worst['p99_us'])}.",
        "late by",
        starts,
        found.length_us,
        [
            Line("p99", values("p99_us"), "p99", above=median),
            Line("max", values("max_us"), "max"),
            Line("p50", median, "p50"),
        ],
        ["nothing delivered" if row is None else _late_tip(row) for row in rows],
        length,
        logarithmic=True,
        height=280,
        widths=(width, _NARROW),
        shaded=_shaded(found),
    )


def _shaded(found: Figures) -> list[tuple[int, int, str]]:
    return [
        (each.begin_us, each.end_us, f"silent, {length(each.end_us - each.begin_us)}")
        for each in found.silences
    ]


def _spread(found: Figures) -> str:
    assert found.today is not None
    row = found.today[1]
    marks = [("half by", row["p50_us"]), ("99 % by", row["p99_us"]), ("all by", row["max_us"])]
    told = f"Half of {number(row['count'])} messages by {length(row['p50_us'])}, 99 % by "
    told += f"{length(row['p99_us'])}, all by {length(row['max_us'])}."
    label = "How many messages were how late"
    return Spread(label, told, found.spread, marks, length, widths=(_THIRD, _NARROW)).svg()


def _in_words(found: Figures) -> str:
    """The percentiles of the last day, or of all."""
    if found.today is None:
        return ""
    start, row = found.today
    told = [
        f"<span><b>{name}</b> {escape(length(row[column]))}</span>" for name, column in _PERCENTILES
    ]
    which = "All" if found.spread else f"{moment(start, 'date')} (UTC),"
    return f'<p class="figures">{which} {number(row["count"])} messages: {" · ".join(told)}</p>'


def _late_tip(row: Row) -> str:
    told = [f"{name} {length(row[column])}" for name, column in _PERCENTILES]
    return "\n".join([f"{number(row['count'])} delivered", *told, f"early {row['early']}"])


_COUNTS = (
    ("in", "messages_in"),
    ("fell due", "due"),
    ("out", "messages_out"),
    ("failed", "failed"),
    ("redelivered", "redelivered"),
    ("dead", "dead"),
    ("cancelled", "cancelled"),
)


def throughput(found: Figures) -> str:
    """What came in, fell due and went out."""
    series = found.throughput
    due = bool(series) and "due" in series[0][1]
    what = "came in, fell due and went out" if due else "came in and went out"
    note = f"Messages that {what}, and attempts that failed, per <b>{found.bucket}</b>."
    shown = ("messages_in", "messages_out", "failed")
    if not any(row[name] for _, row in series for name in shown):
        return section("Throughput", note, empty("Nothing came in or went out in this time."))
    lines = _through_lines(series, due)
    highs = [max(value or 0 for value in line.values) for line in lines]
    far = max(highs[0], 1) > _FAR_APART * max(highs[1], 1)
    far |= max(highs[1], 1) > _FAR_APART * max(highs[0], 1)
    if far:
        note += " What came in has a scale of its own."
        parts = [
            ("came in", lines[:1], 150),
            ("fell due and went out" if due else "went out", lines[1:], 240),
        ]
    else:
        parts = [("messages", lines, 260)]
    charts = [_through_chart(found, name, each, high) for name, each, high in parts]
    signs = [("came in", "in bars" if lines[0].bars else "in")]
    signs += [("delivered and acknowledged", "out bars" if lines[1].bars else "out")]
    signs += [("fell due", "fell")] if due else []
    signs += [("failed attempts", "failed")] if highs[-1] else []
    names = [(name, column) for name, column in _COUNTS if column in series[0][1]]
    rows = [
        (time_of(start), *(number(row[column]) for _, column in names))
        for start, row in series
        if any(row[column] for _, column in names)
    ]
    figures = behind(("from", *(f"{name}>" for name, _ in names)), rows)
    return section("Throughput", note, legend(*signs), *charts, figures)


def _through_lines(series: Series, due: bool) -> list[Line]:
    """In, out, and the rest."""
    values = {name: [row[name] for _, row in series] for name in series[0][1]}
    # A line through a few points among nothing would tell of slopes that never were.
    few = due or sum(any(row.values()) for _, row in series) <= _FEW
    lines = [
        Line("in", values["messages_in"], "in", bars=few),
        Line("out", values["messages_out"], "out", bars=few, filled=True, share=0.6),
    ]
    if due:
        lines.append(Line("fell due", values["due"], "fell"))
    return [*lines, Line("failed", values["failed"], "failed", bars=True, share=0.25)]


def _through_chart(found: Figures, label: str, lines: Sequence[Line], height: int) -> str:
    starts = [start for start, _ in found.throughput]
    tips = [
        "\n".join(f"{name} {number(row[column])}" for name, column in _COUNTS if column in row)
        for _, row in found.throughput
    ]
    first = [value or 0 for value in lines[0].values]
    most = max(range(len(first)), key=first.__getitem__)
    told = f"Most {lines[0].name}: {number(first[most])} in the {found.bucket} from "
    told += f"{moment(starts[most])}; {number(sum(first))} together."
    chart = Chart(
        f"Throughput: {label}",
        told,
        f"{label} per {found.bucket}",
        starts,
        found.length_us,
        lines,
        tips,
        short,
        height=height,
        shaded=_shaded(found) if len(lines) > 1 else (),
    )
    return chart.svg()


_SPANS = (
    ("minute", "Next hour", "next hour"),
    ("hour", "Next two days", "next two days"),
    ("day", "Next 30 days", "next 30 days"),
)


def forecast(found: Figures) -> str:
    """What is pending, by when it falls due."""
    ahead = found.ahead
    note = (
        "What is pending, by when it falls due, from the moment of this report. The dashed line is the "
        "most that the topic's consumers have shown in a minute of the last seven days, for as long as a "
        "bar is."
    )
    if not ahead.pending:
        nothing = empty("Nothing is pending: no message waits for its time.")
        return section("Forecast", note, nothing)
    signs = [("falls due", "due")]
    signs += [("more than shown capacity", "over")] if ahead.over else []
    signs += [("overdue", "overdue")] if ahead.overdue else []
    signs += [("shown capacity", "level")]
    panels = "".join(_panel(ahead, *span) for span in _SPANS)
    rest = f"<p>{number(ahead.later)} more fall due later.</p>" if ahead.later else ""
    content = [legend(*signs), f'<div class="three">{panels}</div>', rest]
    if ahead.topics > 1:
        content.append(_by_topic(ahead))
    rows = [
        (grain, time_of(start), number(row["pending"]), number(row["overdue"]))
        for grain, *_ in _SPANS
        for start, row in ahead.grains[grain]
        if row["pending"]
    ]
    return section("Forecast", note, *content, behind(("per", "from", "due>", "overdue>"), rows))


def _panel(ahead: Ahead, grain: str, title: str, words: str) -> str:
    series = ahead.grains[grain]
    total = sum(row["pending"] for _, row in series)
    head = f"<h3>{title}: {number(total)}</h3>"
    if not total:
        return f"<div>{head}{empty(f'Nothing falls due in the {words}.')}</div>"
    chart = _ahead_chart(f"Forecast, {words}", series, grain, (_THIRD, _NARROW))
    return f"<div>{head}{chart}</div>"


def _by_topic(ahead: Ahead) -> str:
    charts = []
    for name, series in ahead.by_topic.items():
        rows = [row for _, row in series]
        capacity, total = rows[0]["capacity"], sum(row["pending"] for row in rows)
        note = ""
        if capacity is None:
            note = badge("no capacity shown yet")
        elif any(row["pending"] > capacity for row in rows):
            note = badge("more than shown capacity", "warn")
        head = f"<h3>{escape(name)}: {number(total)} {note}</h3>"
        if not total:
            chart = empty(f"{number(ahead.sums[name]['pending'])} fall due later than that.")
        else:
            chart = _ahead_chart(f"Forecast of {name}", series, "hour", (_HALF, _NARROW))
        charts.append(f"<div>{head}{chart}</div>")
    more = ahead.topics - len(charts)
    rest = f"<p>and {number(more)} more topics, see below.</p>" if more > 0 else ""
    title = "<h3 class='apart'>The next two days, topic by topic</h3>"
    return f'{title}<div class="many">{"".join(charts)}</div>{rest}'


def _ahead_chart(label: str, series: Series, grain: str, widths: tuple[int, int]) -> str:
    starts, rows = [start for start, _ in series], [row for _, row in series]
    capacity = rows[0]["capacity"]
    limit = float("inf") if capacity is None else capacity
    pending = [row["pending"] for row in rows]
    most = max(range(len(rows)), key=pending.__getitem__)
    told = f"{number(sum(pending))} together; most, {number(pending[most])}, in the {grain} from "
    level = None
    if capacity is not None:
        level = (f"capacity {short(capacity)} per {grain}", float(capacity))
    chart = Chart(
        label,
        f"{told}{moment(starts[most])}.",
        f"due per {grain}",
        starts,
        LENGTHS[grain],
        [
            Line("due", [n if n <= limit else 0 for n in pending], "due", bars=True),
            Line("over", [n if n > limit else 0 for n in pending], "over", bars=True),
            Line("overdue", [row["overdue"] for row in rows], "overdue", bars=True),
        ],
        [_ahead_tip(row) for row in rows],
        short,
        height=200,
        level=level,
        widths=widths,
    )
    return chart.svg()


def _ahead_tip(row: Row) -> str:
    lines = [f"{number(row['pending'])} due"]
    if row["overdue"]:
        lines.append(f"{number(row['overdue'])} of them overdue")
    if row["capacity"] is not None:
        lines.append(f"capacity {number(row['capacity'])}")
        if row["queued"]:
            lines.append(f"{number(row['queued'])} would wait longer")
    return "\n".join(lines)
