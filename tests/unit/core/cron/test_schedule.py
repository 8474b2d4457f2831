"""Definitions of schedules: equal ones are equal texts, and what can't be is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.core.cron.schedule import FOLDS, GAPS, MISFIRES, OVERLAPS, Schedule, check_schedule
from fasti.errors import InvalidArgument
from fasti.model import Limits

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
SCHEDULES = st.builds(
    Schedule,
    target=TEXTS,
    cron=TEXTS,
    every_us=st.integers(0, 1 << 40),
    start_us=st.integers(0, 1 << 50),
    payload=st.binary(max_size=30),
    template=st.booleans(),
    headers=st.dictionaries(TEXTS, TEXTS, max_size=3),
    gap=st.sampled_from(GAPS),
    fold=st.sampled_from(FOLDS),
    misfire=st.sampled_from(MISFIRES),
    overlap=st.sampled_from(OVERLAPS),
)


@given(SCHEDULES)
def test_there_and_back(schedule: Schedule) -> None:
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert Schedule.from_dict(schedule.to_dict()) == schedule


def test_equal_definitions_are_equal_texts() -> None:
    one = Schedule("t", cron="@daily", headers={"a": "1", "b": "2"}, overlap="allow")
    other = Schedule.from_dict({"headers": {"b": "2", "a": "1"}, "target": "t", "cron": "@daily"})
    assert (
        one.to_json()
        == other.to_json()
        == ('{"cron":"@daily","headers":{"a":"1","b":"2"},"target":"t"}')
    )


def test_the_timing_is_what_decides_when() -> None:
    schedule = Schedule("t", cron="@daily")
    same = Schedule("u", cron="@daily", payload=b"x", overlap="skip", misfire="all", jitter_us=5)
    assert schedule.timing == same.timing
    for change in ({"cron": "@hourly"}, {"timezone": "Asia/Tokyo"}, {"end_us": 5}, {"gap": "skip"}):
        assert Schedule(**{"target": "t", "cron": "@daily", **change}).timing != schedule.timing


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "target"),
        ({"target": 5}, "target"),
        ({"target": "t", "payload": "?"}, "payload"),
        ({"target": "t", "template": 1}, "template"),
        ({"target": "t", "priority": "1"}, "priority"),
        ({"target": "t", "headers": {"a": None}}, "headers"),
        ({"target": "t", "when": "now"}, "when"),
    ],
)
def test_plain_values_of_the_wrong_kind(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Schedule.from_dict(given)
    assert refused.value.field == field


def test_the_size_of_a_definition_is_bounded() -> None:
    schedule, small = Schedule("t", cron="@daily", payload=b"x" * 1_000), Limits()
    check_schedule(schedule, small)
    small = Limits(schedule_bytes_max=1_000)
    with pytest.raises(InvalidArgument, match="schedule_bytes_max"):
        check_schedule(schedule, small)
