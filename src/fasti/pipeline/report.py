"""The report: one HTML page of a lake's figures, whole in itself.

Nothing is fetched: style, script and charts are in the page, and its content policy allows nothing else.
Whatever came from users (names of topics and consumers, reasons) is escaped; the script only writes text.
Needs no Spark.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from fasti.pipeline.charts import Chart, Line, length, moment, number, short, sparkline
from fasti.pipeline.figures import LENGTHS, Figures, Row, figures
from fasti.pipeline.lake import Lake

_TOPICS_MAX, _FORECASTS_MAX, _REASONS_MAX, _CONSUMERS_MAX = 50, 6, 12, 30
_FEW = 5
_BLOCKS = ("due", "over", "overdue", "failed")
# Half the width of the page each, so that letters are as large as elsewhere.
_HALF = (540, 380)


def write(
    lake: Lake, path: Path | None = None, refresh_s: int | None = None
) -> tuple[Path, Figures]:
    """Writes the page, by default `report.html` in the lake. Raises `not_found` without gold.

    With `refresh_s` the page loads itself again after so long, for a screen on a wall.
    """
    found = figures(lake)
    target = (lake.root / "report.html" if path is None else path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.new")
    beside.write_text(page(found, refresh_s), encoding="utf-8")
    beside.replace(target)
    return target, found


def page(found: Figures, refresh_s: int | None = None) -> str:
    """The whole page."""
    home = files("fasti.pipeline")
    style = home.joinpath("report.css").read_text(encoding="utf-8")
    script = home.joinpath("report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    body = "".join(
        [
            _header(found),
            "<main>",
            _tiles(found),
            _lateness(found),
            _throughput(found),
            _forecast(found),
            _topics(found),
            '<div class="columns">',
            _retries(found),
            _consumers(found),
            "</div>",
            _audit(found),
            "</main>",
            _footer(found),
        ]
    )
    again = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"{again}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>Fasti report</title><style>{style}</style></head>'
        f"<body>{body}<script>{script}</script></body></html>\n"
    )


def _time(at_us: int, kind: str = "full") -> str:
    """A moment that the script writes in the reader's zone."""
    told = moment(at_us)
    return f'<time data-t="{at_us // 1000}" data-f="{kind}" title="{told}">{told}</time>'


def _header(found: Figures) -> str:
    return (
        "<header><h1>Fasti</h1>"
        f"<p>as of {_time(found.as_of_us)}</p><p>{escape(found.lake)}</p>"
        '<p class="zone" id="zone">Times in UTC</p></header>'
    )


# The headline


def _tiles(found: Figures) -> str:
    told = found.headlines()
    late = found.today
    peak = found.peak
    over = sum(topic.over for topic in found.topics)
    tiles = [
        _tile(
            "Delivered", number(told["delivered"]), f"of {number(told['produced'])} that came in"
        ),
        _tile(
            "p99 lateness",
            length(told["p99_us"]),
            f"on {_day(late[0])}, p50 {length(told['p50_us'])}"
            if late
            else "nothing delivered yet",
        ),
        _tile("Early", number(told["early"]), "deliveries before due", _good(told["early"] == 0)),
        _tile(
            "Lost",
            number(told["lost"]) if told["audited"] else "–",
            "by the audit" if told["audited"] else "not audited yet",
            _good(told["lost"] == 0) if told["audited"] else "",
        ),
        _tile(
            "Backlog",
            number(told["backlog"]),
            f"{number(told['overdue'])} overdue" if told["overdue"] else "pending, none overdue",
            "warn" if told["overdue"] else "",
        ),
        _tile(
            "Next peak",
            number(peak[1]) if peak else "–",
            f"due in the hour from {_time(peak[0], 'hour')}" if peak else "nothing is scheduled",
            "warn" if over else "",
        ),
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _day(at_us: int) -> str:
    return moment(at_us, "date")


def _good(is_good: bool) -> str:
    return "good" if is_good else "bad"


def _tile(name: str, value: str, note: str, kind: str = "") -> str:
    return (
        f'<div class="tile {kind}"><span class="name">{escape(name)}</span>'
        f"<b>{escape(value)}</b><span>{note}</span></div>"
    )


# Over time


def _section(title: str, note: str, *content: str) -> str:
    told = f"<p>{note}</p>" if note else ""
    return f"<section><h2>{escape(title)}</h2>{told}{''.join(content)}</section>"


def _legend(*names: tuple[str, str]) -> str:
    items = "".join(
        f'<li><i class="{style}k{" block" if style in _BLOCKS else ""}"></i>{escape(name)}</li>'
        for name, style in names
    )
    return f'<ul class="legend">{items}</ul>'


def _empty(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'


def _lateness(found: Figures) -> str:
    note = (
        "From the moment a message is due, or produced if that is later, to the moment user code gets "
        f"it. All topics, per {found.grain}; the scale is logarithmic."
    )
    if not found.lateness:
        return _section("Lateness", note, _empty("Nothing was delivered in this time."))
    by_start = dict(found.lateness)
    starts = [start for start, _ in found.throughput]
    rows: list[Row | None] = [by_start.get(start) for start in starts]
    names = (("p50", "p50_us"), ("p95", "p95_us"), ("p99", "p99_us"), ("max", "max_us"))
    lines = [
        Line(name, [None if row is None else max(row[column], 1) for row in rows], name)
        for name, column in names
    ]
    tips = ["nothing delivered" if row is None else _late_tip(row) for row in rows]
    chart = Chart(
        "Lateness over time: percentiles",
        starts,
        LENGTHS[found.grain],
        list(reversed(lines)),
        tips,
        length,
        logarithmic=True,
        height=280,
    )
    legend = _legend(("median", "p50"), ("95 %", "p95"), ("99 %", "p99"), ("latest of all", "max"))
    return _section("Lateness", note, legend, chart.svg(), _last_day(found))


def _last_day(found: Figures) -> str:
    """The percentiles of the last day, in words."""
    if found.today is None:
        return ""
    start, row = found.today
    names = (("p50", "p50_us"), ("p95", "p95_us"), ("p99", "p99_us"), ("p99.9", "p999_us"))
    told = [f"<b>{name}</b> {escape(length(row[c]))}" for name, c in (*names, ("max", "max_us"))]
    day = f"{_day(start)} (UTC), {number(row['count'])} messages"
    return f'<p class="figures">{day}: {" · ".join(told)}</p>'


def _late_tip(row: Row) -> str:
    lines = [f"{number(row['count'])} delivered"]
    for name, column in (("p50", "p50_us"), ("p95", "p95_us"), ("p99", "p99_us")):
        lines.append(f"{name} {length(row[column])}")
    lines += [f"p99.9 {length(row['p999_us'])}", f"max {length(row['max_us'])}"]
    return "\n".join([*lines, f"early {row['early']}"])


def _throughput(found: Figures) -> str:
    note = f"Messages that came in and went out, and attempts that failed, per {found.grain}."
    series = found.throughput
    if not any(
        row[name] for _, row in series for name in ("messages_in", "messages_out", "failed")
    ):
        return _section("Throughput", note, _empty("Nothing came in or went out in this time."))
    values = {
        name: [row[name] for _, row in series] for name in ("messages_in", "messages_out", "failed")
    }
    tips = [
        f"in {number(row['messages_in'])}\nout {number(row['messages_out'])}\n"
        f"failed {number(row['failed'])}\nredelivered {number(row['redelivered'])}\n"
        f"dead {number(row['dead'])}\ncancelled {number(row['cancelled'])}"
        for _, row in series
    ]
    # A line through a few points among nothing would tell of slopes that never were.
    few = sum(any(row.values()) for _, row in series) <= _FEW
    lines = [
        Line("in", values["messages_in"], "in", bars=few),
        Line("out", values["messages_out"], "out", bars=few, filled=True, share=0.44),
        Line("failed", values["failed"], "failed", bars=True, share=0.2 if few else 0.72),
    ]
    starts = [start for start, _ in series]
    chart = Chart("Messages in and out", starts, LENGTHS[found.grain], lines, tips, short)
    legend = _legend(("in", "in"), ("out", "out"), ("failed attempts", "failed"))
    return _section("Throughput", note, legend, chart.svg())


def _forecast(found: Figures) -> str:
    note = (
        "What is pending, by the hour in which it falls due, for the next two days. The dashed line "
        "is the most that the topic's consumers have shown in a minute of the last seven days, times 60."
    )
    shown = list(found.forecast.items())[:_FORECASTS_MAX]
    if not shown:
        return _section(
            "Forecast", note, _empty("Nothing is pending: no message waits for its time.")
        )
    legend = _legend(
        ("due", "due"),
        ("more than shown capacity", "over"),
        ("overdue", "overdue"),
        ("shown capacity", "level"),
    )
    charts = "".join(_forecast_of(name, series, len(shown) == 1) for name, series in shown)
    more = len(found.forecast) - len(shown)
    rest = f"<p>and {number(more)} more topics, see below.</p>" if more > 0 else ""
    kind = "many one" if len(shown) == 1 else "many"
    return _section("Forecast", note, legend, f'<div class="{kind}">{charts}</div>', rest)


def _forecast_of(name: str, series: Sequence[tuple[int, Row]], alone: bool) -> str:
    starts = [start for start, _ in series]
    rows = [row for _, row in series]
    capacity = rows[0]["capacity"]
    limit = float("inf") if capacity is None else capacity
    lines = [
        Line("due", [r["pending"] if r["pending"] <= limit else 0 for r in rows], "due", bars=True),
        Line(
            "over", [r["pending"] if r["pending"] > limit else 0 for r in rows], "over", bars=True
        ),
        Line("overdue", [row["overdue"] for row in rows], "overdue", bars=True),
    ]
    tips = [_forecast_tip(row) for row in rows]
    level = None if capacity is None else (f"capacity {short(capacity)}/h", float(capacity))
    widths = (1120, 380) if alone else _HALF
    chart = Chart(
        f"Forecast of {name}",
        starts,
        LENGTHS["hour"],
        lines,
        tips,
        short,
        height=220 if alone else 190,
        level=level,
        widths=widths,
    )
    total = sum(row["pending"] for row in rows)
    badge = ""
    if capacity is None:
        badge = ' <span class="badge">no capacity shown yet</span>'
    elif any(row["pending"] > limit for row in rows):
        badge = ' <span class="badge warn">more than shown capacity</span>'
    return f"<div><h3>{escape(name)}: {number(total)}{badge}</h3>{chart.svg()}</div>"


def _forecast_tip(row: Row) -> str:
    lines = [f"{number(row['pending'])} due"]
    if row["overdue"]:
        lines.append(f"{number(row['overdue'])} of them overdue")
    if row["capacity"] is not None:
        lines.append(f"capacity {number(row['capacity'])}")
        if row["queued"]:
            lines.append(f"{number(row['queued'])} would wait longer")
    return "\n".join(lines)


# Tables


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are HTML already; columns whose names end with `>` are numbers."""
    kinds = ["n" if name.endswith(">") else "" for name in columns]
    head = "".join(
        f'<th class="{kind}">{escape(name.removesuffix(">"))}</th>'
        for name, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _topics(found: Figures) -> str:
    if not found.topics:
        return _section("Topics", "", _empty("There are no topics with messages yet."))
    columns = ["topic", "out over time", "in>", "out>", "p50>", "p99>", "max>", "early>"]
    columns += ["failed>", "dead>", "pending>"]
    rows = []
    for topic in found.topics[:_TOPICS_MAX]:
        late = topic.lateness or {}
        name = escape(topic.name)
        if topic.over:
            name += ' <span class="badge warn">over capacity</span>'
        early = late.get("early", 0)
        rows.append(
            (
                name,
                sparkline(topic.recent),
                number(topic.counts["messages_in"]),
                number(topic.counts["messages_out"]),
                *(escape(length(late.get(c))) for c in ("p50_us", "p99_us", "max_us")),
                f'<span class="badge bad">{early}</span>' if early else "0",
                number(topic.counts["failed"]),
                number(topic.counts["dead"]),
                number(topic.pending),
            )
        )
    more = len(found.topics) - len(rows)
    note = "Counts since the lake began; lateness of the last day with deliveries (UTC)."
    note += (
        f" The {_TOPICS_MAX} with most deliveries of {number(len(found.topics))}." if more else ""
    )
    return _section("Topics", note, _table(columns, rows))


_OPS = {
    "nacked": "failed",
    "expired": "lease expired",
    "released": "given back",
    "rejected": "dead: rejected",
    "exhausted": "dead: out of attempts",
    "lapsed": "dead: too late",
    "redriven": "redriven",
    "purged": "purged",
}


def _retries(found: Figures) -> str:
    note = "What failed and why, and how many attempts it took until done."
    if not found.reasons and not found.attempts:
        return _section("Retries", note, _empty("No attempt has ended yet."))
    parts = []
    shown = found.reasons[:_REASONS_MAX]
    if shown:
        highest = max(row["count"] for row in shown)
        rows = [
            (
                escape(str(_OPS.get(row["op"], row["op"]))),
                escape(row["reason"]) or "–",
                _bar(row["count"], highest, "failed" if row["op"] in _OPS else ""),
                number(row["count"]),
            )
            for row in shown
        ]
        parts.append(_table(("what", "reason", "", "count>"), rows))
        if len(found.reasons) > len(shown):
            parts.append(f"<p>and {number(len(found.reasons) - len(shown))} more reasons.</p>")
    else:
        parts.append(_empty("Nothing has failed."))
    if found.attempts:
        highest = max(count for _, count in found.attempts)
        total = sum(count for _, count in found.attempts)
        rows = [
            (
                f"{attempts} attempt{'s' if attempts != 1 else ''}",
                _bar(count, highest),
                number(count),
                f"{100 * count / total:.2f} %",
            )
            for attempts, count in found.attempts[:_REASONS_MAX]
        ]
        parts.append(_table(("done after", "", "messages>", "share>"), rows))
    return _section("Retries", note, *parts)


def _bar(value: int, highest: int, style: str = "") -> str:
    width = max(2, round(90 * value / max(highest, 1)))
    return f'<span class="bar {style}" style="width:{width}px"></span>'


def _consumers(found: Figures) -> str:
    note = "Who did the work. Errors: failed, rejected, or the lease expired."
    if not found.consumers:
        return _section("Consumers", note, _empty("No consumer has had a message yet."))
    rows = []
    for row in found.consumers[:_CONSUMERS_MAX]:
        ended = row["acked"] + row["errors"]
        share = 100 * row["errors"] / ended if ended else 0.0
        kind = "bad" if share >= 10 else "warn" if share >= 1 else ""
        told = f"{share:.2g} %" if row["errors"] else "0"
        rows.append(
            (
                escape(row["consumer"]) or "–",
                escape(row["topic"]),
                number(row["acked"]),
                number(row["errors"]),
                f'<span class="badge {kind}">{told}</span>' if row["errors"] else told,
                escape(length(row["busy_us"] / ended)) if ended else "–",
            )
        )
    more = len(found.consumers) - len(rows)
    rest = f"<p>and {number(more)} more.</p>" if more > 0 else ""
    columns = ("consumer", "topic", "done>", "errors>", "share>", "per message>")
    return _section("Consumers", note, _table(columns, rows), rest)


def _audit(found: Figures) -> str:
    note = (
        "Every transition of every message held against its lifecycle, and the broker's own counts "
        "against what its feed adds up to."
    )
    state = found.state
    if not state.audit:
        verdict = '<div class="verdict unknown"><b>Not audited yet.</b></div>'
        return _section("Audit", note, verdict)
    looked = f"{number(state.transitions)} transitions"
    agree = ""
    if state.compared:
        topics = f"{number(len(state.compared))} topic{'s' if len(state.compared) != 1 else ''}"
        agree = f" Compared with the broker's counts of {topics}."
    told = f"{looked} looked at, {_time(state.audited_us)}.{agree}"
    if not found.found:
        verdict = f'<div class="verdict"><b>No findings.</b> {told}</div>'
        return _section("Audit", note, verdict)
    count = f"{number(found.found)} finding{'s' if found.found != 1 else ''}"
    verdict = f'<div class="verdict bad"><b>{count}.</b> {told}</div>'
    rows = [
        (
            f'<span class="badge bad">{escape(row["kind"])}</span>',
            escape(row["topic"] or "–"),
            "–" if row["id"] is None else str(row["id"]),
            escape(row["what"]),
            "–" if row["position"] is None else number(row["position"]),
        )
        for row in found.findings[:100]
    ]
    table = _table(("kind", "topic", "id>", "what", "position>"), rows)
    more = found.found - len(rows)
    rest = (
        f"<p>and {number(more)} more: `fasti pipeline tables show audit`.</p>" if more > 0 else ""
    )
    return _section("Audit", note, verdict, table, rest)


def _footer(found: Figures) -> str:
    return (
        f"<footer><p>Made by fasti {escape(version('fasti'))} from the gold tables of "
        f"{escape(found.lake)}. Minutes, hours and days are of UTC. Percentiles are exact, by nearest "
        "rank. Point at a chart, or focus it and use the arrow keys, to see its figures.</p></footer>"
    )
