"""When schedules happen, around the days on which clocks change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fasti.broker.cron.occurrences import Occurrences, Timing, preview
from fasti.core.cron.schedule import Schedule
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, SECOND_US

_US = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // _US


def shown(at_us: int) -> str:
    return (_EPOCH + at_us * _US).strftime("%m-%dT%H:%M:%S")


def between(begin: str, end: str, cron: str, zone: str, **policies: str) -> list[str]:
    schedule = Schedule("t", cron=cron, timezone=zone, **policies)
    occurrences = Occurrences(Timing.of(schedule))
    found = []
    for at_us in occurrences.after(us(begin)):
        if at_us > us(end):
            break
        found.append(at_us)
    backwards = []
    for at_us in occurrences.until(us(end)):
        if at_us <= us(begin):
            break
        backwards.append(at_us)
    assert backwards[::-1] == found
    return [shown(at_us) for at_us in found]


PARIS = "Europe/Paris"
SPRING = ("2026-03-28T12:00:00", "2026-03-30T12:00:00")
AUTUMN = ("2026-10-24T12:00:00", "2026-10-26T12:00:00")


@pytest.mark.parametrize(
    ("days", "cron", "policies", "expected"),
    [
        # 02:00 to 03:00 is missing on 29 March: 02:30 moves to 03:00 local, 01:00 UTC.
        (SPRING, "30 2 * * *", {}, ["03-29T01:00:00", "03-30T00:30:00"]),
        (SPRING, "30 2 * * *", {"gap": "skip"}, ["03-30T00:30:00"]),
        # Several in the gap, and one at its end, are one.
        (SPRING, "0,20,40 2,3 29 3 *", {}, ["03-29T01:00:00", "03-29T01:20:00", "03-29T01:40:00"]),
        (SPRING, "0 1 * * *", {}, ["03-29T00:00:00", "03-29T23:00:00"]),
        (SPRING, "0 9 * * *", {}, ["03-29T07:00:00", "03-30T07:00:00"]),
        # 02:00 to 03:00 comes twice on 25 October.
        (AUTUMN, "30 2 * * *", {}, ["10-25T00:30:00", "10-26T01:30:00"]),
        (AUTUMN, "30 2 * * *", {"fold": "second"}, ["10-25T01:30:00", "10-26T01:30:00"]),
        (
            AUTUMN,
            "30 2 * * *",
            {"fold": "both"},
            ["10-25T00:30:00", "10-25T01:30:00", "10-26T01:30:00"],
        ),
        (
            AUTUMN,
            "0,30 2 25 * *",
            {"fold": "both"},
            ["10-25T00:00:00", "10-25T00:30:00", "10-25T01:00:00", "10-25T01:30:00"],
        ),
        (AUTUMN, "0 3 * * *", {}, ["10-25T02:00:00", "10-26T02:00:00"]),
    ],
)
def test_paris(
    days: tuple[str, str], cron: str, policies: dict[str, str], expected: list[str]
) -> None:
    assert between(*days, cron, PARIS, **policies) == expected


@pytest.mark.parametrize("policies", [{}, {"gap": "skip", "fold": "both"}])
def test_every_hour_follows_elapsed_time(policies: dict[str, str]) -> None:
    spring = between("2026-03-28T23:30:00", "2026-03-29T03:30:00", "0 * * * *", PARIS, **policies)
    assert spring == ["03-29T00:00:00", "03-29T01:00:00", "03-29T02:00:00", "03-29T03:00:00"]
    autumn = between("2026-10-24T23:30:00", "2026-10-25T03:30:00", "0 * * * *", PARIS, **policies)
    assert autumn == ["10-25T00:00:00", "10-25T01:00:00", "10-25T02:00:00", "10-25T03:00:00"]


def test_every_second_through_a_fold_comes_once_each() -> None:
    occurrences = Occurrences(Timing.of(Schedule("t", cron="* * * * * *", timezone=PARIS)))
    begin = us("2026-10-25T00:59:50")
    found = list(islice(occurrences.after(begin), 20))
    assert found == [begin + 1_000_000 * n for n in range(1, 21)]


@pytest.mark.parametrize(
    ("days", "policies", "expected"),
    [
        (("2026-03-08T00:00:00", "2026-03-09T12:00:00"), {}, ["03-08T07:00:00", "03-09T06:30:00"]),
        (("2026-03-08T00:00:00", "2026-03-09T12:00:00"), {"gap": "skip"}, ["03-09T06:30:00"]),
        (("2026-11-01T00:00:00", "2026-11-02T12:00:00"), {}, ["11-01T05:30:00", "11-02T06:30:00"]),
        (
            ("2026-11-01T00:00:00", "2026-11-02T12:00:00"),
            {"fold": "both"},
            ["11-01T05:30:00", "11-01T06:30:00", "11-02T06:30:00"],
        ),
    ],
)
def test_new_york(days: tuple[str, str], policies: dict[str, str], expected: list[str]) -> None:
    # The hour that is missing is 02:00, the one that comes twice 01:00.
    cron = "30 2 * * *" if days[0].startswith("2026-03") else "30 1 * * *"
    assert between(*days, cron, "America/New_York", **policies) == expected


@pytest.mark.parametrize(
    ("days", "cron", "policies", "expected"),
    [
        # Half an hour: on 4 October 02:00 (+10:30) is followed by 02:30 (+11:00), 15:30 UTC.
        (("2026-10-03T12:00:00", "2026-10-03T18:00:00"), "15 2 * * *", {}, ["10-03T15:30:00"]),
        (("2026-10-03T12:00:00", "2026-10-03T18:00:00"), "15 2 * * *", {"gap": "skip"}, []),
        (("2026-10-03T12:00:00", "2026-10-03T18:00:00"), "30 2 * * *", {}, ["10-03T15:30:00"]),
        # On 5 April 02:00 (+11:00) is followed by 01:30 (+10:30): 01:45 comes twice.
        (("2026-04-04T12:00:00", "2026-04-04T18:00:00"), "45 1 * * *", {}, ["04-04T14:45:00"]),
        (
            ("2026-04-04T12:00:00", "2026-04-04T18:00:00"),
            "45 1 * * *",
            {"fold": "both"},
            ["04-04T14:45:00", "04-04T15:15:00"],
        ),
        (
            ("2026-04-04T14:00:00", "2026-04-04T17:00:00"),
            "45 * * * *",
            {},
            ["04-04T14:45:00", "04-04T15:15:00", "04-04T16:15:00"],
        ),
    ],
)
def test_lord_howe(
    days: tuple[str, str], cron: str, policies: dict[str, str], expected: list[str]
) -> None:
    assert between(*days, cron, "Australia/Lord_Howe", **policies) == expected


def test_a_day_that_never_was() -> None:
    # Samoa had no 30 December 2011: the clock leapt from the 29th to the 31st.
    days = ("2011-12-29T12:00:00", "2012-01-01T12:00:00")
    shifted = between(*days, "0 12 * * *", "Pacific/Apia")
    assert shifted == ["12-29T22:00:00", "12-30T10:00:00", "12-30T22:00:00", "12-31T22:00:00"]
    skipped = between(*days, "0 12 * * *", "Pacific/Apia", gap="skip")
    assert skipped == ["12-29T22:00:00", "12-30T22:00:00", "12-31T22:00:00"]


@pytest.mark.parametrize(
    ("macro", "expected"),
    [
        ("@hourly", "01-01T01:00:00"),
        ("@daily", "01-02T00:00:00"),
        ("@midnight", "01-02T00:00:00"),
        ("@weekly", "01-04T00:00:00"),
        ("@monthly", "02-01T00:00:00"),
        ("@yearly", "01-01T00:00:00"),
        ("0 9 L * *", "01-31T09:00:00"),
        ("0 9 * * FRI#2", "01-09T09:00:00"),
        ("30 0 9 * * *", "01-01T09:00:30"),
    ],
)
def test_expressions_in_utc(macro: str, expected: str) -> None:
    found = preview(Schedule("t", cron=macro), us("2026-01-01T00:00:00"), 1)
    assert shown(found[0][0]) == expected


def test_intervals_count_from_the_start_or_from_the_epoch() -> None:
    now = us("2026-01-01T10:07:00")
    quarter = Schedule("t", every_us=900_000_000)
    assert [shown(at) for at, _ in preview(quarter, now, 2)] == ["01-01T10:15:00", "01-01T10:30:00"]
    begun = Schedule("t", every_us=900_000_000, start_us=us("2026-01-01T10:02:00"))
    assert [shown(at) for at, _ in preview(begun, now, 2)] == ["01-01T10:17:00", "01-01T10:32:00"]
    later = Schedule("t", every_us=900_000_000, start_us=us("2026-01-02T10:02:00"))
    assert [shown(at) for at, _ in preview(later, now, 1)] == ["01-02T10:02:00"]
    occurrences = Occurrences(Timing.of(begun))
    assert [shown(at) for at in islice(occurrences.until(now), 2)] == [
        "01-01T10:02:00",
        "01-01T09:47:00",
    ]


def test_a_preview_ends_with_the_schedule_and_shows_both_times() -> None:
    schedule = Schedule(
        "t", cron="30 2 * * *", timezone=PARIS, fold="both", end_us=us("2026-10-25T02:00:00")
    )
    assert preview(schedule, us("2026-10-24T12:00:00"), 5) == [
        (us("2026-10-25T00:30:00"), "2026-10-25T02:30:00+02:00"),
        (us("2026-10-25T01:30:00"), "2026-10-25T02:30:00+01:00"),
    ]


@pytest.mark.parametrize(
    ("definition", "field", "words"),
    [
        ({"cron": "61 * * * *"}, "cron", "bad minute"),
        ({"cron": "* * * *"}, "cron", "wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "cron", "bad day-of-month"),
        ({"cron": "@reboot"}, "cron", "@daily"),
        ({"cron": "MON#2/3 * * * *"}, "cron", "bad minute"),
        ({"cron": "0 9 * * *", "timezone": "Europe/Pariss"}, "timezone", "Europe/Paris"),
        ({"cron": "0 9 * * *", "timezone": "/etc/passwd"}, "timezone", "no time zone"),
        ({"cron": "0 9 * * *", "timezone": "Europe"}, "timezone", "no time zone"),
        ({"cron": "0 9 * * *", "timezone": ""}, "timezone", "no time zone"),
    ],
)
def test_what_makes_no_sense_is_refused(definition: dict[str, str], field: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as refused:
        Timing.of(Schedule("t", **definition))
    assert refused.value.field == field


def test_what_was_worked_out_is_remembered_and_forgotten() -> None:
    occurrences = Occurrences(Timing.of(Schedule("t", cron="* * * * * *")))
    begin = us("2026-01-01T00:00:00")
    for second in range(100):
        at_us = begin + second * 1_000_000
        assert occurrences.first_after(at_us) == at_us + 1_000_000
        occurrences.forget(at_us)
    assert len(occurrences._moments) < 40
    # An earlier question than what is remembered is answered all the same.
    assert occurrences.first_after(begin) == begin + 1_000_000


def test_a_leap_over_years_is_no_walk_through_them() -> None:
    occurrences = Occurrences(Timing.of(Schedule("t", cron="* * * * * *", timezone=PARIS)))
    begin, later = us("2000-01-01T00:00:00"), us("2026-01-01T00:00:00")
    assert occurrences.first_after(begin) == begin + 1_000_000
    walked = 0
    after = occurrences.after

    def counted(moment: int) -> Iterator[int]:
        nonlocal walked
        for found in after(moment):
            walked += 1
            yield found

    occurrences.after = counted  # type: ignore[method-assign]
    assert occurrences.first_after(later) == later + 1_000_000
    assert next(occurrences.until(later)) == later
    assert walked < 10


_ZONES = ["UTC", PARIS, "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]


@settings(max_examples=60, deadline=None)
@given(
    day=st.integers(0, 365),
    minute=st.sampled_from(["0", "15", "*/20", "45"]),
    hour=st.sampled_from(["*", "*/3", "0", "1", "2", "3", "1,2,3"]),
    zone=st.sampled_from(_ZONES),
    gap=st.sampled_from(["shift", "skip"]),
    fold=st.sampled_from(["first", "second", "both"]),
)
def test_beside_a_walk_through_every_minute(
    day: int, minute: str, hour: str, zone: str, gap: str, fold: str
) -> None:
    """The same occurrences as somebody finds who looks at the wall clock every minute."""
    begin = us("2026-01-01T00:00:00") + day * 86_400_000_000
    end = begin + 36 * 3_600_000_000
    schedule = Schedule("t", cron=f"{minute} {hour} * * *", timezone=zone, gap=gap, fold=fold)
    occurrences = Occurrences(Timing.of(schedule))
    found = []
    for at_us in occurrences.after(begin):
        if at_us > end:
            break
        found.append(at_us)
    assert found == _walk(schedule, begin, end)
    backwards = []
    for at_us in occurrences.until(end):
        if at_us <= begin:
            break
        backwards.append(at_us)
    assert backwards[::-1] == found


def _walk(schedule: Schedule, begin: int, end: int) -> list[int]:
    zone = ZoneInfo(schedule.timezone)
    minute, hour = schedule.cron.split()[:2]
    minutes = set(range(0, 60, 20)) if minute.startswith("*") else {int(minute)}
    hours = set(range(0, 24, 3 if "/" in hour else 1))
    if not hour.startswith("*"):
        hours = {int(each) for each in hour.split(",")}
    found = set()
    at = _EPOCH + (begin - 7_200_000_000) * _US
    shown_before = at.astimezone(zone).replace(tzinfo=None) - timedelta(minutes=1)
    while (at_us := (at - _EPOCH) // _US) <= end:
        local = at.astimezone(zone)
        wall = local.replace(tzinfo=None)
        twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
        happens = wall.minute in minutes and wall.hour in hours
        if happens and twice and not hour.startswith("*") and schedule.fold != "both":
            happens = local.fold == (0 if schedule.fold == "first" else 1)
        if not hour.startswith("*") and schedule.gap == "shift":
            missing = shown_before + timedelta(minutes=1)
            while missing < wall:
                happens |= missing.minute in minutes and missing.hour in hours
                missing += timedelta(minutes=1)
        if happens and at_us > begin:
            found.add(at_us)
        shown_before = wall
        at += timedelta(minutes=1)
    return sorted(found)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("timing", [{"every_us": SECOND_US}, {"cron": "59 23 31 12 *"}])
def test_the_calendar_has_an_end_and_a_beginning(zone: str, timing: dict[str, Any]) -> None:
    """Nothing is out of range there, and what is asked for beyond it ends soon."""
    last_us = 253_370_764_800_000_000  # 1 January 9999
    for after_us in (0, 1, last_us - 1, last_us, last_us + 1, DUE_MAX_US - 1, DUE_MAX_US):
        for start_us in (0, DUE_MAX_US - 5):
            schedule = Schedule("t", timezone=zone, start_us=start_us, **timing)
            assert all(at_us <= last_us for at_us, _ in preview(schedule, after_us, 5))
            occurrences = Occurrences(Timing.of(schedule))
            assert all(at_us <= last_us for at_us in islice(occurrences.until(after_us), 5))
            occurrences.first_after(after_us)
    assert preview(Schedule("t", timezone=zone, **timing), last_us, 5) == []
