"""The page and its charts are made from the data, and say where a peer is ahead."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks.peers import page
from benchmarks.peers.charts import Bar, bar_chart, readable
from benchmarks.peers.registry import FASTI
from benchmarks.peers.results import Results, load
from tests.unit.benchmarks.peers_rig import a_run

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.2468, "0.247"),
        (12.34, "12.3"),
        (999.4, "999"),
        (999.6, "1,000"),
        (4_560, "4,560"),
        (36_420, "36.4 k"),
        (214_600, "215 k"),
        (1_440_000, "1.44 M"),
    ],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert readable(value) == text


def test_a_chart_is_an_image_with_a_bar_for_each_and_words_escaped() -> None:
    bars = [Bar("a <b> & c", 1_000, 900, 1_100, ours=True), Bar("other", 10, 10, 10)]
    root = ElementTree.fromstring(bar_chart("rates & more", "per second", bars))
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert "a <b> & c" in words
    assert "rates & more" in words
    drawn = [
        (element.get("class"), float(element.get("width", "0")))
        for element in root.iter(f"{SVG}rect")
        if element.get("class") in ("ours", "bar")
    ]
    assert [kind for kind, _ in drawn] == ["ours", "bar"]
    assert drawn[0][1] > drawn[1][1]
    style = next(root.iter(f"{SVG}style")).text or ""
    assert "prefers-color-scheme: dark" in style


def test_a_chart_of_equal_or_no_values_stays_within_its_frame() -> None:
    for values in ((5.0, 5.0), (0.0, 0.0)):
        bars = [Bar("x", value, value, value) for value in values]
        root = ElementTree.fromstring(bar_chart("t", "ms", bars))
        for element in root.iter(f"{SVG}rect"):
            assert 0 <= float(element.get("width", "0")) <= float(root.get("width", "0"))


def test_the_page_says_plainly_where_a_peer_is_ahead_and_what_is_missing() -> None:
    cells = {
        (FASTI, "send"): [{"p50_ms": 1.0, "p99_ms": 2.0}],
        ("beanstalkd", "send"): [{"p50_ms": 0.25, "p99_ms": 4.0}],
        (FASTI, "both"): [{"per_s": 1_000}],
        ("celery", "both"): [{"cannot": "a worker takes jobs one by one"}],
    }
    run = a_run(cells, skipped={"postgresql": "apt-get install postgresql"})
    text = page.page(Results([run]))
    behind = text[text.index("## Where a peer is ahead") : text.index("## How it was taken")]
    assert "send until acknowledged, p50 ms: beanstalkd, -f0 4 times" in behind
    assert "p99 ms: beanstalkd" not in behind
    assert "- Celery ETA on Redis: a worker takes jobs one by one" in text
    assert "- not measured in this data: Celery ETA on Redis" in text
    assert "- PostgreSQL, SKIP LOCKED: apt-get install postgresql" in text
    assert "| send until acknowledged, p99 | 2 ms | ≤ 1.5 ms | **not reached** |" in text
    assert "not measured" in text


def test_charts_are_drawn_of_what_was_measured_and_the_page_shows_them() -> None:
    cells = {
        (FASTI, "send"): [{"p50_ms": 1.0, "p99_ms": 2.0}],
        ("beanstalkd", "send"): [{"p50_ms": 0.25, "p99_ms": 4.0}],
        # Nothing to compare with.
        (FASTI, "schedule"): [{"per_s": 1_000}],
    }
    results = Results([a_run(cells)])
    names = {path.name for path, _ in page.charts(results)}
    assert names == {"send.svg"}
    assert set(re.findall(r"\(benchmarks/([\w-]+\.svg)\)", page.page(results))) == names


def test_the_page_in_the_docs_is_that_of_its_data() -> None:
    results = Results(load([page.DATA]))
    assert page.PAGE.read_text() == page.page(results), "run fasti bench peers-page"
    made = dict(page.charts(results))
    assert {path.name for path in page.CHARTS.glob("*.svg")} == {path.name for path in made}
    for path, text in made.items():
        assert path.read_text() == text, "run fasti bench peers-page"
