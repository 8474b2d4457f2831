"""The report: its figures stand in it, it fetches nothing, and nobody's text becomes markup."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.gold_rig import AS_OF, busy, fill

from fasti.errors import NotFound
from fasti.pipeline import charts, report
from fasti.pipeline.figures import figures
from fasti.pipeline.lake import Lake

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "line", "rect", "circle", "polyline", "polygon", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text.append(data)

    def whole(self) -> None:
        assert self._open == []

    def count(self, tag: str) -> int:
        return sum(each == tag for each, _ in self.tags)


def page_of(lake: Lake, tmp_path: Path) -> tuple[Page, str]:
    path, _ = report.write(lake, tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    page.whole()
    return page, text


def test_the_figures_stand_in_it(tmp_path: Path) -> None:
    lake = busy(tmp_path / "lake")
    found = figures(lake)
    told = found.headlines()
    page, _ = page_of(lake, tmp_path)
    shown = " ".join(page.text)
    for name in ("delivered", "backlog", "next_peak_messages", "overdue"):
        assert f"{told[name]:,}" in shown
    assert charts.length(told["p99_us"]) in shown
    assert (told["early"], told["lost"]) == (0, 0)
    for topic in found.topics:
        assert topic.name in shown
        assert f"{topic.counts['messages_out']:,}" in shown
    assert "No findings." in shown
    assert "smtp: connection refused" in shown
    assert "worker-2" in shown
    assert "more than shown capacity" in shown


def test_it_is_whole_in_itself(tmp_path: Path) -> None:
    """No address anywhere that a browser would follow, and a policy that would forbid it."""
    page, text = page_of(busy(tmp_path / "lake"), tmp_path)
    for _, attributes in page.tags:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            assert attributes.get(name) in (None, "data:,")
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"https?://", text)
    assert page.count("script") == 1
    policies = [a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a]
    assert len(policies) == 1
    assert "default-src 'none'" in str(policies[0])


def test_nobodys_text_becomes_markup(tmp_path: Path) -> None:
    """Names of topics and consumers, reasons and findings are what users wrote."""
    plain, _ = page_of(busy(tmp_path / "plain"), tmp_path)
    lake = busy(tmp_path / "lake", topics=(HOSTILE, "bills", "reminders"))
    day = {"grain": "day", "start": AS_OF.replace(hour=0, minute=0, second=0)}
    work = dict.fromkeys(("leased", "acked", "errors", "released", "busy_us"), 5)
    tables: dict[str, list[dict[str, Any]]] = {
        "retries": [{"topic": "t", "op": "nacked", "reason": HOSTILE, **day, "count": 7}],
        "consumers": [{"topic": "t", "consumer": HOSTILE, **day, **work}],
        "audit": [{"topic": HOSTILE, "id": 1, "kind": "early", "what": HOSTILE, "position": 4}],
    }
    other = Lake(tmp_path / "other")
    fill(other, tables)
    for each in (lake, other):
        page, text = page_of(each, tmp_path)
        assert page.count("script") == 1
        assert page.count("img") == 0
        assert not any(name.startswith("on") for _, a in page.tags for name in a)
        assert HOSTILE not in text
        assert any(HOSTILE in part for part in page.text) or HOSTILE in "".join(page.text)
    assert plain.count("img") == 0


def test_an_empty_lake_reads_well(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    fill(lake, {})
    page, _ = page_of(lake, tmp_path)
    shown = " ".join(page.text)
    for text in (
        "Nothing was delivered in this time.",
        "Nothing came in or went out in this time.",
        "Nothing is pending",
        "No attempt has ended yet.",
        "No consumer has had a message yet.",
        "There are no topics",
    ):
        assert text in shown
    assert "None" not in shown


def test_findings_are_shown(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = [
        {"topic": "mail", "partition": 0, "id": n, "kind": kind, "what": f"what-{n}", "position": n}
        for n, kind in enumerate(["early", "gap", "count"], 1)
    ]
    fill(lake, {"audit": rows})
    found = figures(lake)
    assert (found.early, found.lost, found.found) == (1, 2, 3)
    page, _ = page_of(lake, tmp_path)
    shown = " ".join(page.text)
    assert "3 findings." in shown
    assert "what-2" in shown
    assert any("tile bad" in str(a.get("class")) for _, a in page.tags)


def test_without_gold_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="fasti pipeline once"):
        report.write(Lake(tmp_path))


def test_it_needs_no_spark(tmp_path: Path) -> None:
    """In a process of its own, because other tests of this one may have loaded it."""
    import subprocess

    lake = busy(tmp_path / "lake")
    code = (
        "import sys, pathlib; from fasti.pipeline import report; from fasti.pipeline.lake import Lake;"
        f"report.write(Lake({str(lake.root)!r})); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("back", "grain"),
    [
        (timedelta(minutes=20), "minute"),
        (timedelta(hours=40), "hour"),
        (timedelta(days=30), "day"),
    ],
)
def test_the_grain_follows_from_how_far_the_lake_goes_back(
    tmp_path: Path, back: timedelta, grain: str
) -> None:
    lake = Lake(tmp_path / "lake")
    counts = dict.fromkeys(
        ("messages_in", "messages_out", "failed", "redelivered", "dead", "cancelled"), 3
    )
    rows = []
    for at in (AS_OF - back, AS_OF):
        minute = at.replace(second=0)
        for name, start in (
            ("minute", minute),
            ("hour", minute.replace(minute=0)),
            ("day", minute.replace(minute=0, hour=0)),
        ):
            rows.append({"topic": "t", "grain": name, "start": start, **counts})
    unique = {(row["grain"], row["start"]): row for row in rows}
    fill(lake, {"throughput": list(unique.values())})
    found = figures(lake)
    assert found.grain == grain
    assert sum(row["messages_out"] for _, row in found.throughput) in (3, 6)
    starts = [start for start, _ in found.throughput]
    assert starts == sorted(set(starts))


def test_lengths_and_numbers() -> None:
    values = (0, 999, 1_000, 1_450, 999_600, 5_586_610, 300e6, 9_000e6, 400_000e6)
    told = [charts.length(us) for us in values]
    assert told == [
        "0 µs", "999 µs", "1 ms", "1.45 ms", "1000 ms", "5.59 s", "5 min", "2.5 h", "4.63 d",
    ]  # fmt: skip
    assert charts.length(None) == "–"
    assert [charts.short(n) for n in (0, 12, 1_500, 2e6)] == ["0", "12", "1.5k", "2M"]


def test_axes_are_honest() -> None:
    scale = charts.linear([3, 47], ground=100, top=0)
    assert scale.ticks[0] == 0
    assert scale.place(0) == 100
    assert scale.ticks[-1] >= 47
    log = charts.logarithmic([150.0, 9_000.0], ground=100, top=0)
    assert log.ticks == [100, 1_000, 10_000]
    assert log.place(100) == 100
    assert log.place(10_000) == 0
    assert abs(log.place(1_000) - 50) < 1e-9
