"""Times and lengths on the command line: what is taken, what is refused, how they are shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import typer

from fasti.cli import moments


@pytest.fixture
def paris(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("5m", 300_000_000),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("50ms", 50_000),
        ("7d", 604_800_000_000),
        ("1w", 604_800_000_000),
        ("1.5s", 1_500_000),
        ("2", 2_000_000),
        ("250us", 250),
        ("0", 0),
    ],
)
def test_lengths(text: str, us: int) -> None:
    assert moments.length_us(text) == us


@pytest.mark.parametrize("text", ["", "m", "5x", "-5m", "1h5", "five", "5m!", "nan"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        moments.length_us(text)


@pytest.mark.parametrize("us", [0, 1, 50_000, 1_500_000, 5_400_000_000, 90_061_001_001])
def test_a_length_is_shown_as_one_writes_it(us: int) -> None:
    assert moments.length_us(moments.shown_length(us)) == us


def test_a_time_with_its_zone() -> None:
    expected = datetime(2026, 12, 24, 17, tzinfo=UTC)
    assert moments.moment("2026-12-24T18:00+01:00") == expected
    assert moments.moment("2026-12-24T17:00Z") == expected
    assert moments.microseconds(expected) == 1_798_131_600_000_000


@pytest.mark.usefixtures("paris")
def test_a_time_without_a_zone_is_refused_with_both_that_could_be_meant() -> None:
    with pytest.raises(typer.BadParameter) as refused:
        moments.moment("2026-12-24T18:00")
    assert "2026-12-24T18:00+01:00" in refused.value.message
    assert "2026-12-24T18:00Z" in refused.value.message


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="ISO 8601"):
        moments.moment("tomorrow")


def test_a_time_by_its_distance() -> None:
    before = datetime.now(UTC)
    assert moments.moment_or_distance("+2h") - before >= timedelta(hours=2)
    assert moments.moment_or_distance("-1d") < before
    assert moments.moment_or_distance("2026-12-24T17:00Z").year == 2026


@pytest.mark.usefixtures("paris")
def test_people_see_local_time_and_programs_utc() -> None:
    at_us = 1_798_131_600_123_456
    assert moments.shown_moment(at_us) == "2026-12-24 18:00:00.123 CET"
    assert moments.shown_moment(at_us, digits=0) == "2026-12-24 18:00:00 CET"
    assert moments.iso(at_us) == "2026-12-24T17:00:00.123456Z"


def test_a_time_beyond_the_calendar_is_shown_as_a_number() -> None:
    far_us = 1 << 61
    assert str(far_us) in moments.shown_moment(far_us)
    assert moments.iso(far_us) == str(far_us)
