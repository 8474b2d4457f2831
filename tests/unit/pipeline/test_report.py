"""The report: its figures stand in it, it fetches nothing, and nobody's text becomes markup."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest

from examples.demo.command import print_piped
from examples.demo.pipeline import Piped
from fasti.errors import NotFound
from fasti.pipeline import charts, report
from fasti.pipeline.figures import figures
from fasti.pipeline.lake import Lake
from fasti.pipeline.state import LakeState
from tests.unit.pipeline.gold_rig import AS_OF, SCHEMAS, busy, fill
from tests.unit.pipeline.young_rig import half_a_minute

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        # Headings and cells of tables, with their whole text.
        self.cells: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("h2", "th", "td"):
            self.cells.append((tag, ""))
        if tag not in ("meta", "link", "line", "rect", "circle", "polyline", "polygon", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text.append(data)
        if {"h2", "th", "td"} & set(self._open):
            tag, told = self.cells[-1]
            self.cells[-1] = (tag, told + data)

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


def findings(count: int) -> pa.Table:
    kinds = ("early", "gap", "count", "illegal")
    rows = [
        {"topic": "mail", "partition": 0, "id": n, "kind": kinds[n % 4], "what": f"what-{n}-",
         "position": n}
        for n in range(1, count + 1)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, pa.schema(list(SCHEMAS["audit"].items())))


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


@pytest.mark.parametrize("kind", ["old", "young", "findings"])
def test_it_is_whole_in_itself(tmp_path: Path, kind: str) -> None:
    """No address anywhere that a browser would follow, and a policy that would forbid it."""
    lake = half_a_minute(count=40).write(tmp_path / "lake") if kind == "young" else None
    lake = lake or busy(tmp_path / "lake")
    if kind == "findings":
        lake.gold("audit").overwrite(findings(200))
    page, text = page_of(lake, tmp_path)
    for _, attributes in page.tags:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            assert attributes.get(name) in (None, "data:,", "#audit")
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
    young = half_a_minute((HOSTILE, "bills"), count=40).write(tmp_path / "young")
    day = {"grain": "day", "start": AS_OF.replace(hour=0, minute=0, second=0)}
    work = dict.fromkeys(("leased", "acked", "errors", "released", "busy_us"), 5)
    tables: dict[str, list[dict[str, Any]]] = {
        "retries": [{"topic": "t", "op": "nacked", "reason": HOSTILE, **day, "count": 7}],
        "consumers": [{"topic": "t", "consumer": HOSTILE, **day, **work}],
        "audit": [{"topic": HOSTILE, "id": 1, "kind": "early", "what": HOSTILE, "position": 4}],
    }
    other = Lake(tmp_path / "other")
    fill(other, tables)
    for each in (lake, young, other):
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
    assert (found.early, found.lost, found.finding_count) == (1, 2, 3)
    page, _ = page_of(lake, tmp_path)
    shown = " ".join(page.text)
    assert "3 findings." in shown
    assert "what-2" in shown
    assert any("tile bad" in str(a.get("class")) for _, a in page.tags)


def test_what_is_wrong_stands_first(tmp_path: Path) -> None:
    """Before any figure: what the audit found, how many of each kind, and the first of them."""
    lake = busy(tmp_path / "lake")
    well, _ = page_of(lake, tmp_path)
    assert verdict(well)[0] == "warn"
    lake.gold("audit").overwrite(findings(200))
    page, text = page_of(lake, tmp_path)
    kind, shown = verdict(page)
    assert kind == "bad"
    assert "200 findings of the audit: 50 " in shown
    assert "what-1-" in shown
    assert "what-4-" not in shown
    assert "and 197 more" in shown
    titles = [told for tag, told in page.cells if tag == "h2"]
    assert titles[:2] == ["Audit", "Lateness"]
    assert [told for tag, told in well.cells if tag == "h2"][-1] == "Audit"
    assert "<title>200 findings – Fasti report</title>" in text
    # A hundred of them are shown, and it says where the others are.
    assert ("what-100-" in text, "what-101-" in text) == (True, False)
    assert "fasti pipeline tables show audit" in text


def verdict(page: Page) -> tuple[str, str]:
    """The kind of the first thing in the page, and what it says."""
    place = next(n for n, (tag, _) in enumerate(page.tags) if tag == "main")
    words = str(page.tags[place + 1][1]["class"]).split()
    assert words[0] == "verdict"
    told = " ".join(" ".join(page.text).split())
    return words[1], told[: told.index("Lateness p99")]


def test_one_glance_tells_how_it_is(tmp_path: Path) -> None:
    """Well, not audited, something to look at: the sign says it, and the sentence why."""
    lake = half_a_minute(count=40).write(tmp_path / "lake")
    kind, shown = verdict(page_of(lake, tmp_path)[0])
    assert kind == "good"
    assert "Nothing early, nothing lost." in shown
    assert f"{figures(lake).totals['messages_out']} messages delivered" in shown
    state = LakeState.of(lake)
    state.audit = {}
    state.save(lake)
    kind, shown = verdict(page_of(lake, tmp_path)[0])
    assert kind == "unknown"
    assert "Not audited yet" in shown
    kind, shown = verdict(page_of(busy(tmp_path / "busy"), tmp_path)[0])
    assert kind == "warn"
    assert "40 messages of 1 topic have been due for more than a minute" in shown
    assert "than consumers have shown they can do: bills, mail." in shown


def test_what_fell_due_just_now_is_nothing_to_look_at(tmp_path: Path) -> None:
    """On a busy broker something always falls due at the moment of the report."""
    lake = Lake(tmp_path / "lake")
    row = {"topic": "mail", "as_of": AS_OF, "pending": 9, "overdue": 9, "capacity": None}
    row |= {"over": False, "queued": 0}
    starts = {"minute": AS_OF.replace(second=0), "hour": AS_OF.replace(minute=0, second=0)}
    starts["day"] = starts["hour"].replace(hour=0)
    fill(lake, {"backlog": [{**row, "grain": g, "start": at} for g, at in starts.items()]})
    assert figures(lake).ahead.stuck is None
    assert verdict(page_of(lake, tmp_path)[0])[0] == "good"
    old = {**row, "grain": "minute", "start": starts["minute"] - timedelta(minutes=2)}
    fill(lake, {"backlog": [old]})
    assert figures(lake).ahead.stuck == (9, 1, round(old["start"].timestamp()) * 1_000_000)


@pytest.mark.parametrize("kind", ["old", "young"])
def test_who_cant_see_the_charts_gets_them_too(tmp_path: Path, kind: str) -> None:
    """Each chart has a name and a sentence, and each section with charts a table."""
    lake = busy(tmp_path / "lake") if kind == "old" else half_a_minute().write(tmp_path / "lake")
    page, text = page_of(lake, tmp_path)
    drawn = [a for tag, a in page.tags if tag == "svg" and a.get("class") == "chart"]
    assert len(drawn) >= 8
    assert all(a.get("role") == "img" and len(str(a.get("aria-label"))) > 20 for a in drawn)
    assert text.count("<desc>") == len(drawn)
    for section in re.findall("<section.*?</section>", text, re.DOTALL):
        if 'class="chart"' in section:
            assert "<summary>The figures as a table</summary>" in section
    # Small drawings in rows of tables say nothing that the row doesn't.
    rest = [a for tag, a in page.tags if tag == "svg" and a.get("class") != "chart"]
    assert all(a.get("aria-hidden") == "true" for a in rest)


def test_rows_of_topics_say_what_gold_says(tmp_path: Path) -> None:
    lake = busy(tmp_path / "lake")
    page, _ = page_of(lake, tmp_path)
    cells = [told for _, told in page.cells]
    throughput = lake.gold("throughput").arrow().to_pylist()
    lateness = lake.gold("lateness").arrow().to_pylist()
    for topic in ("mail", "bills", "reminders"):
        days = [r for r in throughput if (r["topic"], r["grain"]) == (topic, "day")]
        late = [r for r in lateness if (r["topic"], r["grain"]) == (topic, "day")]
        last = max(late, key=lambda row: row["start"])
        place = next(n for n, told in enumerate(cells) if told.split(" ")[0] == topic)
        shown = cells[place + 2 : place + 7]
        assert shown[0] == f"{sum(row['messages_in'] for row in days):,}"
        assert shown[1] == f"{sum(row['messages_out'] for row in days):,}"
        assert shown[2:] == [charts.length(last[c]) for c in ("p50_us", "p99_us", "max_us")]


def test_many_topics_and_long_names_fit(tmp_path: Path) -> None:
    """Those that somebody should look at come first, whatever else they did."""
    names = tuple(f"{HOSTILE}{n:03}{'x' * 150}" for n in range(70))
    lake = busy(tmp_path / "lake", topics=names)
    lake.gold("audit").overwrite(findings(2_000))
    found = figures(lake)
    over = [topic.over for topic in found.topics]
    assert any(over)
    assert over == sorted(over, reverse=True)
    page, text = page_of(lake, tmp_path)
    assert len(text) < 2_000_000
    shown = " ".join(page.text)
    assert "50 of 70" in shown
    assert "and 64 more topics" in shown


def test_three_months_are_days(tmp_path: Path) -> None:
    lake, rows, late = Lake(tmp_path / "lake"), [], []
    counts = dict.fromkeys(
        ("messages_in", "messages_out", "failed", "redelivered", "dead", "cancelled"), 1_000
    )
    for topic in range(20):
        for back in range(100):
            for grain in ("hour", "day"):
                start = AS_OF.replace(hour=0, minute=0, second=0) - timedelta(days=back)
                rows.append({"topic": f"t{topic}", "grain": grain, "start": start, **counts})
    for back in range(100):
        start = AS_OF.replace(hour=0, minute=0, second=0) - timedelta(days=back)
        us = dict.fromkeys(("count", "p50_us", "p95_us", "p99_us", "p999_us", "max_us"), 9)
        late.append({"topic": "*", "grain": "day", "start": start, **us, "early": 0})
    fill(lake, {"throughput": rows, "lateness": late})
    found = figures(lake)
    assert (found.bucket, len(found.throughput), len(found.lateness)) == ("day", 91, 91)
    assert found.totals["messages_out"] == 20 * 100 * 1_000
    _, text = page_of(lake, tmp_path)
    assert len(text) < 2_000_000


def test_a_page_that_loads_itself_again_knows_its_age(tmp_path: Path) -> None:
    """So that a wall doesn't show yesterday's figures as if they were of now."""
    found = figures(busy(tmp_path / "lake"))
    assert '<body data-made="1700000000000" data-every="60">' in report.page(
        found, 60, 1700000000000
    )
    assert "<body>" in report.page(found)


def test_the_demo_ends_with_its_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that a browser takes, whatever the directory is called."""
    page, found = report.write(busy(tmp_path / "a lake"))
    print_piped(Piped(tmp_path / "a lake", {**found.headlines(), "report": str(page)}))
    last = capsys.readouterr().out.splitlines()[-1].split()[-1]
    assert last.endswith("/a%20lake/report.html")
    assert Path(unquote(urlsplit(last).path)) == page


def test_without_gold_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="fasti pipeline once"):
        report.write(Lake(tmp_path))


def test_it_needs_no_spark(tmp_path: Path) -> None:
    """In a process of its own, because other tests of this one may have loaded it."""
    import subprocess

    lake = half_a_minute(count=40).write(tmp_path / "lake")
    assert figures(lake).grain == "second"
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
