from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from fasti.client.durations import as_datetime, aware_us, duration_us, moment_us
from fasti.errors import InvalidArgument


@pytest.mark.parametrize(
    ("written", "length_us"),
    [
        ("5m", 300_000_000),
        ("1h30m", 5_400_000_000),
        ("100ms", 100_000),
        ("1.5s", 1_500_000),
        ("7d", 604_800_000_000),
        ("250us", 250),
        ("1h 30m", 5_400_000_000),
        (timedelta(seconds=2), 2_000_000),
        (3, 3_000_000),
        (0.25, 250_000),
        (0, 0),
    ],
)
def test_a_length_is_what_people_write(written: object, length_us: int) -> None:
    assert duration_us(written) == length_us  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "written",
    ["", "5", "5x", "m", "-5m", "5m3", -1, float("nan"), float("inf"), None, True, b"5m", 1e40],
)
def test_what_is_no_length_is_refused_by_name(written: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        duration_us(written, "delay")  # type: ignore[arg-type]
    assert refused.value.field == "delay"


def test_a_moment_is_an_aware_datetime_or_microseconds() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))
    assert moment_us(noon) == moment_us(datetime(2030, 1, 1, 11, tzinfo=UTC))
    assert as_datetime(moment_us(noon)) == noon
    assert moment_us(17) == 17
    assert as_datetime((1 << 62) - 1).year == 9999


def test_a_naive_datetime_is_refused_and_told_why() -> None:
    with pytest.raises(InvalidArgument, match="no time zone"):
        aware_us(datetime(2030, 1, 1), "at")  # noqa: DTZ001
    with pytest.raises(InvalidArgument, match="due="):
        aware_us(17, "at")
    with pytest.raises(InvalidArgument):
        moment_us("tomorrow")
