"""The report of a young lake: by the second, what really happened, and no more than gold says."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from fasti.model import SECOND_US
from fasti.pipeline import charts, figures_seconds
from fasti.pipeline.figures import Figures, figures
from fasti.pipeline.lake import Lake
from fasti.pipeline.state import LakeState
from tests.unit.pipeline.test_report import Page, page_of
from tests.unit.pipeline.young_rig import BEGIN, Story, half_a_minute, micros, percentiles, period

COUNTS = ("messages_in", "messages_out", "failed", "dead", "cancelled", "due")


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, Lake]:
    story = half_a_minute()
    return story, story.write(tmp_path_factory.mktemp("young"))


def per_second(moments: list[datetime]) -> Counter[int]:
    return Counter(micros(at.replace(microsecond=0)) for at in moments)


def test_each_second_has_what_happened_in_it(young: tuple[Story, Lake]) -> None:
    story, lake = young
    found = figures(lake)
    assert (found.grain, found.bucket, found.length_us) == ("second", "second", SECOND_US)
    starts = [start for start, _ in found.throughput]
    assert starts == list(range(starts[0], starts[-1] + 1, SECOND_US))
    for name in COUNTS:
        expected = per_second([at for at, _ in story.told[name]])
        shown = {start: row[name] for start, row in found.throughput if row[name]}
        assert shown == {start: n for start, n in expected.items() if start in starts}, name


def test_each_second_has_its_own_percentiles(young: tuple[Story, Lake]) -> None:
    story, lake = young
    found = figures(lake)
    by_second: dict[int, list[int]] = {}
    for at, _, us in story.late:
        by_second.setdefault(micros(at.replace(microsecond=0)), []).append(us)
    assert dict(found.lateness) == {
        start: percentiles(values) for start, values in by_second.items()
    }
    assert found.today is not None
    assert found.today[1] == percentiles([us for _, _, us in story.late])


def test_seconds_add_up_to_gold(young: tuple[Story, Lake]) -> None:
    """What charts show is what the tables say."""
    _, lake = young
    found = figures(lake)
    for name in COUNTS[:-1]:
        assert sum(row[name] for _, row in found.throughput) == found.totals[name], name
    late = lake.gold("lateness").arrow().to_pylist()
    day = next(row for row in late if row["topic"] == "*" and row["grain"] == "day")
    assert found.today is not None
    assert found.today[1] == {name: day[name] for name in found.today[1]}
    for topic in found.topics:
        assert sum(topic.recent) == topic.counts["messages_out"]


def test_the_spread_has_every_message_once(young: tuple[Story, Lake]) -> None:
    story, lake = young
    bars = figures(lake).spread
    for bar in bars:
        inside = [us for _, _, us in story.late if bar.above_us < max(us, 1) <= bar.up_to_us]
        assert bar.count == len(inside)
    assert sum(bar.count for bar in bars) == len(story.late)
    assert all(a.up_to_us == b.above_us for a, b in pairwise(bars))


def test_the_page_says_what_the_tables_say(young: tuple[Story, Lake], tmp_path: Path) -> None:
    story, lake = young
    page, _ = page_of(lake, tmp_path)
    shown = " ".join(" ".join(page.text).split())
    row = percentiles([us for _, _, us in story.late])
    assert "per second" in shown
    assert f"All {row['count']:,} messages:" in shown
    for name in ("p50_us", "p95_us", "p99_us", "p999_us", "max_us"):
        assert charts.length(row[name]) in shown
    columns, rows = table_behind(page, "Throughput")
    assert columns == ["from", "in", "fell due", "out", "failed", "dead", "cancelled"]
    for name, column in (("messages_in", 1), ("messages_out", 3), ("failed", 4), ("cancelled", 6)):
        assert sum(int(cells[column].replace(",", "")) for cells in rows) == len(story.told[name])
    _, rows = table_behind(page, "Lateness")
    assert sum(int(cells[1].replace(",", "")) for cells in rows) == len(story.late)
    _, rows = table_behind(page, "Forecast")
    hours = Counter(period(due, "hour") for due, _ in story.pending)
    assert sorted(int(cells[2]) for cells in rows if cells[0] == "hour") == sorted(hours.values())


def table_behind(page: Page, title: str) -> tuple[list[str], list[list[str]]]:
    """The table that a section has beside its chart."""
    start = next(n for n, (tag, told) in enumerate(page.cells) if (tag, told) == ("h2", title))
    inside: list[tuple[str, str]] = []
    for tag, told in page.cells[start + 1 :]:
        if tag == "h2":
            break
        inside.append((tag, told))
    columns = [told for tag, told in inside if tag == "th"]
    cells = [told for tag, told in inside if tag == "td"]
    return columns, [cells[n : n + len(columns)] for n in range(0, len(cells), len(columns))]


def test_a_silence_is_told_with_what_it_did(young: tuple[Story, Lake], tmp_path: Path) -> None:
    """Nothing happens for some seconds, and twenty messages fall due in them."""
    story, lake = young
    found = figures(lake)
    assert len(found.silences) == 1
    silence = found.silences[0]
    moments = [micros(row["at"]) for row in story.rows]
    assert not [at for at in moments if silence.begin_us < at < silence.end_us]
    assert {silence.begin_us, silence.end_us} < set(moments)
    due = [micros(at) for at, _ in story.told["due"]]
    assert silence.due == sum(silence.begin_us <= at < silence.end_us for at in due) == 20
    # Lateness is counted from when a message was due.
    rest = [
        us for at, _, us in story.late if not silence.begin_us <= micros(at) - us < silence.end_us
    ]
    assert len(rest) == len(story.late) - 20
    assert found.otherwise == percentiles(rest)
    page, text = page_of(lake, tmp_path)
    shown = " ".join(" ".join(page.text).split())
    assert "20 messages fell due" in shown
    assert charts.length(percentiles(rest)["p99_us"]) in shown
    assert 'class="shade"' in text


def test_slow_consumers_and_quiet_times_are_no_silence(tmp_path: Path) -> None:
    slow = Story(("mail",))
    for number in range(1, 20):
        slow.message(number, 0.0, 0.0, 2.0 * number, "done")
    assert figures(slow.write(tmp_path / "slow")).silences == []
    quiet = Story(("mail",))
    for number in (1, 2, 3):
        # On time, with nothing to do before.
        quiet.message(number, 9.0 * number, 0.0, 0.002, "done")
    assert figures(quiet.write(tmp_path / "quiet")).silences == []


def minutes(count: float, step_s: float = 2.0) -> Story:
    story = Story(("mail",))
    for number in range(1, int(count * 60 / step_s) + 1):
        story.message(number, number * step_s, 0.0, 0.002, "done")
    return story


@pytest.mark.parametrize(
    ("long", "bucket"),
    [(1.5, "second"), (3, "2 seconds"), (8, "5 seconds"), (19, "10 seconds"), (21, "minute")],
)
def test_the_bucket_grows_with_the_lake(tmp_path: Path, long: float, bucket: str) -> None:
    story = minutes(long)
    lake = story.write(tmp_path / "lake")
    found = figures(lake)
    assert found.bucket == bucket
    assert len(found.throughput) <= 122
    assert sum(row["messages_out"] for _, row in found.throughput) == len(story.late)
    page, _ = page_of(lake, tmp_path)
    assert f"per {bucket}" in " ".join(" ".join(page.text).split())


def by_the_minute(found: Figures) -> bool:
    return (found.grain, found.spread, found.silences) == ("minute", [], [])


def test_too_many_rows_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = half_a_minute(count=40)
    lake = story.write(tmp_path / "lake")
    rows = lake.bronze.rows() + lake.messages.rows()
    monkeypatch.setattr(figures_seconds, "ROWS_MAX", rows)
    assert figures(lake).grain == "second"
    monkeypatch.setattr(figures_seconds, "ROWS_MAX", rows - 1)
    found = figures(lake)
    assert by_the_minute(found)
    assert sum(row["messages_out"] for _, row in found.throughput) == len(story.late)
    page_of(lake, tmp_path)


def test_gold_that_is_behind_silver_is_shown_as_it_is(tmp_path: Path) -> None:
    """Seconds of what gold hasn't counted would contradict it."""
    lake = half_a_minute(count=40).write(tmp_path / "lake")
    state = LakeState.of(lake)
    state.gold = {name: place - 1 for name, place in state.gold.items()}
    state.save(lake)
    assert by_the_minute(figures(lake))


def test_bronze_that_is_ahead_doesnt_count(tmp_path: Path) -> None:
    story = half_a_minute(count=40)
    lake = story.write(tmp_path / "lake")
    before = figures(lake)
    last = lake.bronze.arrow().sort_by("position").slice(len(story.rows) - 1)
    ahead = last.set_column(
        last.schema.get_field_index("position"), "position", [[len(story.rows) + 1]]
    )
    lake.bronze.append(ahead)
    assert figures(lake).throughput == before.throughput


def test_one_message_is_enough(tmp_path: Path) -> None:
    story = Story(("mail",))
    story.message(1, 0.0, 0.0, 0.000_5, "done")
    lake = story.write(tmp_path / "lake")
    found = figures(lake)
    assert found.today is not None
    assert found.today[1]["max_us"] == 500
    page, _ = page_of(lake, tmp_path)
    assert "1 message delivered" in " ".join(page.text)


def test_logs_alone_have_no_messages(tmp_path: Path) -> None:
    """Silver has no rows of logs: what came in and went out is known, how late isn't."""
    story = Story(("events",))
    for number in range(1, 11):
        at = story.happens(number / 2, "appended", number)
        story.told["messages_in"].append((at, "events"))
        at = story.happens(number / 2 + 0.1, "acked", number, started=at, consumer="anna")
        story.told["messages_out"].append((at, "events"))
    lake = story.write(tmp_path / "lake", logs=True)
    assert lake.messages.files() == []
    found = figures(lake)
    assert (found.grain, found.lateness, found.today) == ("second", [], None)
    sums = [sum(row[name] for _, row in found.throughput) for name in ("messages_in", "due")]
    assert sums == [10, 0]
    page_of(lake, tmp_path)


def test_nothing_delivered_yet_reads_well(tmp_path: Path) -> None:
    story = Story(("mail",))
    for number in range(1, 30):
        story.message(number, number / 10, 4_000.0, 0.0, "pending")
    lake = story.write(tmp_path / "lake")
    found = figures(lake)
    assert (found.grain, found.today, found.spread) == ("second", None, [])
    page, _ = page_of(lake, tmp_path)
    shown = " ".join(page.text)
    assert "Nothing was delivered in this time." in shown
    assert "Nothing falls due in the next hour." in shown
    assert "None" not in shown


def test_a_night_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    """The figures of a young lake are of all of it, not of the day that has just begun."""
    story = Story(("mail",))
    midnight = BEGIN.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    before = (midnight - BEGIN).total_seconds() - 10
    draw = random.Random(3)
    for number in range(1, 60):
        story.message(number, before + number / 3, 0.0, draw.uniform(0.001, 0.01), "done")
    found = figures(story.write(tmp_path / "lake"))
    assert found.today is not None
    assert found.today[1] == percentiles([us for _, _, us in story.late])
