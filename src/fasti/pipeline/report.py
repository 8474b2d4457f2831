"""The report: one HTML page of a lake's figures, complete in itself.

Nothing is fetched: style, script and charts are in the page, and its content policy allows nothing
else. The templates escape every text, such as names of topics and consumers and reasons, and the script
only writes text. What is wrong stands first. Needs no Spark.
"""

from __future__ import annotations

import base64
import hashlib
import time
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from fasti.extras import required
from fasti.pipeline import charts, report_charts
from fasti.pipeline.figures import TOPICS_MAX, Figures, figures
from fasti.pipeline.lake import Lake

if TYPE_CHECKING:
    from jinja2 import Environment

# Names and reasons are users' own, and can be long.
_TEXT_MAX = 200
# A sign for each case: findings of the audit, early deliveries, nothing yet, not audited, all well.
_SIGNS = {"findings": "bad", "early": "bad", "empty": "unknown", "unaudited": "unknown"}
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


def write(
    lake: Lake, path: Path | None = None, refresh_s: int | None = None
) -> tuple[Path, Figures]:
    """Writes the page, by default `report.html` in the lake. Raises `not_found` without gold.

    With `refresh_s` the page loads itself again after so long, for a screen on a wall.
    """
    shown = figures(lake)
    target = (lake.root / "report.html" if path is None else path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    fresh.write_text(page(shown, refresh_s, time.time_ns() // 1_000_000), encoding="utf-8")
    fresh.replace(target)
    return target, shown


def page(shown: Figures, refresh_s: int | None = None, made_ms: int = 0) -> str:
    """The whole page."""
    template = _environment().get_template("report.html")
    templates = files("fasti.pipeline").joinpath("templates")
    script = templates.joinpath("report.js").read_text(encoding="utf-8")
    case = _case(shown)
    warns = shown.ahead.stuck is not None or shown.ahead.over
    return template.render(
        figures=shown,
        charts=report_charts,
        case=case,
        kind=_SIGNS.get(case, "warn" if warns else "good"),
        ops=_OPS,
        topics_max=TOPICS_MAX,
        style=templates.joinpath("report.css").read_text(encoding="utf-8"),
        script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        refresh_s=refresh_s,
        made_ms=made_ms,
        version=version("fasti"),
    )


def _case(shown: Figures) -> str:
    if shown.finding_count:
        return "findings"
    if shown.early:
        return "early"
    if not shown.topics:
        return "empty"
    return "well" if shown.state.audit else "unaudited"


@cache
def _environment() -> Environment:
    with required("spark", "the report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    environment = Environment(
        loader=PackageLoader("fasti.pipeline"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clip": _clip,
        "duration": charts.length,
        "many": _many,
        "moment": charts.moment,
        "number": charts.number,
        "percent": _percent,
        "sparkline": charts.sparkline,
    }
    return environment


def _clip(text: str) -> str:
    """No longer than a cell should be."""
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def _many(count: int, noun: str) -> str:
    """1 topic, 2,000 topics."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _percent(count: int, total: int) -> str:
    """Three significant digits; 100 % only if it is all of them."""
    share = 100 * count / max(total, 1)
    if count < total and share > 99.9:
        return "> 99.9 %"
    return f"{share:.3g} %" if share >= 0.01 or not count else "< 0.01 %"
