"""The report: one HTML page of a lake's figures, whole in itself.

Nothing is fetched: style, script and charts are in the page, and its content policy allows nothing else.
Whatever came from users (names of topics and consumers, reasons) is escaped; the script only writes text.
What is wrong stands first. Needs no Spark.
"""

from __future__ import annotations

import base64
import hashlib
import time
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from fasti.pipeline import report_charts, report_tables
from fasti.pipeline.charts import length, moment, number
from fasti.pipeline.figures import Figures, figures
from fasti.pipeline.lake import Lake
from fasti.pipeline.report_markup import many, time_of
from fasti.pipeline.report_tables import clipped

_NAMED = 3


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
    beside.write_text(page(found, refresh_s, time.time_ns() // 1_000_000), encoding="utf-8")
    beside.replace(target)
    return target, found


def page(found: Figures, refresh_s: int | None = None, made_ms: int = 0) -> str:
    """The whole page."""
    home = files("fasti.pipeline")
    style = home.joinpath("report.css").read_text(encoding="utf-8")
    script = home.joinpath("report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    again = "" if refresh_s is None else f'<meta http-equiv="refresh" content="{refresh_s}">'
    every = "" if refresh_s is None else f' data-made="{made_ms}" data-every="{refresh_s}"'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"{again}"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{_title(found)}</title><style>{style}</style></head>'
        f"<body{every}>{_body(found)}<script>{script}</script></body></html>\n"
    )


def _body(found: Figures) -> str:
    audit = report_tables.audit(found)
    first, last = (audit, "") if found.found else ("", audit)
    return "".join(
        [
            _header(found),
            "<main>",
            _verdict(found),
            _tiles(found),
            first,
            report_charts.lateness(found),
            report_charts.throughput(found),
            report_charts.forecast(found),
            report_tables.topics(found),
            '<div class="columns">',
            report_tables.retries(found),
            report_tables.consumers(found),
            "</div>",
            last,
            "</main>",
            _footer(found),
        ]
    )


def _title(found: Figures) -> str:
    """What a tab of a browser says."""
    if found.found:
        return f"{many(found.found, 'finding')} – Fasti report"
    return f"{number(found.early)} early – Fasti report" if found.early else "Fasti report"


def _header(found: Figures) -> str:
    return (
        "<header><h1>Fasti</h1>"
        f"<p>as of {time_of(found.as_of_us)}</p><p>{escape(found.lake)}</p>"
        '<p class="zone" id="zone">Times in UTC</p></header>'
        '<p class="stale" id="stale" hidden></p>'
    )


# Is all well?

_SIGNS = {"good": "✓", "warn": "!", "bad": "✕", "unknown": "?"}


def _verdict(found: Figures) -> str:
    """One glance: a sign, a sentence, and what somebody should look at."""
    kind, told = _judged(found)
    items = _to_look_at(found)
    if kind == "good" and items:
        kind = "warn"
    rest = "".join(f"<li>{item}</li>" for item in [*_named(found), *items, *_silence(found)])
    return (
        f'<div class="verdict {kind}" role="status"><span class="sign" aria-hidden="true">'
        f"{_SIGNS[kind]}</span><div><p>{told}</p><p>{_delivered(found)}</p>"
        f"{f'<ul>{rest}</ul>' if rest else ''}</div></div>"
    )


def _judged(found: Figures) -> tuple[str, str]:
    """How it is, and why, as HTML."""
    state = found.state
    if found.found:
        kinds = ", ".join(f"{number(count)} {escape(kind)}" for kind, count in found.kinds.items())
        return "bad", f"<b>{many(found.found, 'finding')} of the audit:</b> {kinds}."
    if found.early:
        return "bad", f"<b>{many(found.early, 'message')} came early.</b>"
    if not found.topics:
        return "unknown", "<b>Nothing has happened yet.</b>"
    if not state.audit:
        return "unknown", "<b>Nothing early. Not audited yet</b>, so nobody knows what is lost."
    agrees = ""
    if state.compared:
        agrees = f" and agrees with the broker's counts of {many(len(state.compared), 'topic')}"
    looked = f"The audit followed {many(state.transitions, 'transition')}{agrees}."
    return "good", f"<b>Nothing early, nothing lost.</b> {looked}"


def _delivered(found: Figures) -> str:
    if not found.topics:
        return (
            "No message has come in since the lake began. Send some, and run "
            "<code>fasti pipeline once</code> again."
        )
    told = f"{many(found.totals['messages_out'], 'message')} delivered"
    if found.today is None:
        return f"{told}."
    start, row = found.today
    when = "" if found.spread else f". On {moment(start, 'date')} (UTC)"
    half, most, last = (length(row[name]) for name in ("p50_us", "p99_us", "max_us"))
    return (
        f"{told}{when}: half within <b>{half}</b> of being due, 99&nbsp;% within <b>{most}</b>, all "
        f"within <b>{last}</b>."
    )


def _silence(found: Figures) -> list[str]:
    """A time that makes all figures of lateness look bad, and what they would be without it."""
    if not found.silences:
        return []
    longest = found.silences[0]
    lasted, due = length(longest.end_us - longest.begin_us), sum(s.due for s in found.silences)
    more = len(found.silences) - 1
    others = f" (and {many(more, 'more time')})" if more else ""
    told = (
        f"<b>Nothing happened for {lasted}</b> from {time_of(longest.begin_us, 'second')}{others}, while "
        f"{many(due, 'message')} fell due: the broker or all consumers were away or busy."
    )
    if found.otherwise is not None:
        half, most = (length(found.otherwise[name]) for name in ("p50_us", "p99_us"))
        told += f" Of all others half came within <b>{half}</b>, 99&nbsp;% within <b>{most}</b>."
    return [told]


def _named(found: Figures) -> list[str]:
    """The first findings; all of them stand below."""
    told = [
        f"<b>{escape(row['kind'])}</b>, {clipped(row['topic'] or 'no topic')}: {clipped(row['what'])}"
        for row in found.findings[:_NAMED]
    ]
    more = found.found - len(told)
    return [*told, f'<a href="#audit">and {number(more)} more</a>'] if more > 0 else told


def _to_look_at(found: Figures) -> list[str]:
    """What isn't wrong, and may become so."""
    items, ahead = [], found.ahead
    if ahead.stuck is not None:
        count, topics, since_us = ahead.stuck
        have = "has" if count == 1 else "have"
        items.append(
            f"<b>{many(count, 'message')}</b> of {many(topics, 'topic')} {have} been due for more than "
            f"a minute, since {time_of(since_us, 'full')}."
        )
    if ahead.over:
        names = ", ".join(clipped(name) for name in ahead.over[:_NAMED])
        more = len(ahead.over) - _NAMED
        names += f" and {number(more)} more" if more > 0 else ""
        items.append(
            f"<b>More falls due in an hour</b> than consumers have shown they can do: {names}."
        )
    return items


def _tiles(found: Figures) -> str:
    told = found.headlines()
    late, peak, ahead = found.today, found.ahead.peak, found.ahead
    day = "" if late is None or found.spread else f", {moment(late[0], 'date')}"
    tiles = [
        _tile("Delivered", number(told["delivered"]), f"of {number(told['produced'])} in"),
        _tile(
            "Lateness p99",
            length(told["p99_us"]),
            f"p50 {length(told['p50_us'])}{day}" if late else "nothing delivered yet",
        ),
        _tile("Early", number(told["early"]), "before due", _good(told["early"] == 0)),
        _tile(
            "Lost",
            number(told["lost"]) if told["audited"] else "–",
            "by the audit" if told["audited"] else "not audited yet",
            _good(told["lost"] == 0) if told["audited"] else "",
        ),
        _tile(
            "Backlog",
            number(told["backlog"]),
            f"{number(told['overdue'])} overdue" if told["overdue"] else "none overdue",
            "warn" if ahead.stuck else "",
        ),
        _tile(
            "Next peak",
            number(peak[1]) if peak else "–",
            f"an hour, {time_of(peak[0], 'hour')}" if peak else "nothing is scheduled",
            "warn" if ahead.over else "",
        ),
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _good(is_good: bool) -> str:
    return "good" if is_good else "bad"


def _tile(name: str, value: str, note: str, kind: str = "") -> str:
    sign = f' <i aria-hidden="true">{_SIGNS[kind]}</i>' if kind else ""
    return (
        f'<div class="tile {kind}"><span class="name">{escape(name)}{sign}</span>'
        f"<b>{escape(value)}</b><span>{note}</span></div>"
    )


def _footer(found: Figures) -> str:
    tables = "gold tables" if not found.spread else "tables"
    return (
        f"<footer><p>Made by fasti {escape(version('fasti'))} from the {tables} of "
        f"{escape(found.lake)}. Charts over time are made per {found.bucket}; minutes, hours and days are "
        "of UTC. Percentiles are exact, by nearest rank. Point at a chart, or focus it and use the arrow "
        "keys, to see its figures.</p></footer>"
    )
