"""Which filters the broker does, and that what is pushed is what was meant: no Spark needed."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from fasti.spark.filters import Pushed, pushed

MOMENT = datetime(2026, 11, 16, 9, tzinfo=UTC)
MOMENT_US = int(MOMENT.timestamp()) * 1_000_000


def one(view: str, *filters: Filter) -> tuple[Pushed, list[Filter]]:
    return pushed(view, list(filters))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (EqualTo(("id",), 7), (7, 8)),
        (EqualNullSafe(("id",), 7), (7, 8)),
        (GreaterThan(("id",), 7), (8, None)),
        (GreaterThanOrEqual(("id",), 7), (7, None)),
        (LessThan(("id",), 7), (None, 7)),
        (LessThanOrEqual(("id",), 7), (None, 8)),
    ],
)
def test_comparisons_of_numbers_are_done_by_the_broker(
    made: Filter, expected: tuple[int | None, int | None]
) -> None:
    found, rest = one("messages", made)
    assert rest == []
    assert (found.low("id"), found.high("id")) == expected


def test_moments_are_counted_in_microseconds_with_and_without_a_zone() -> None:
    local = MOMENT.astimezone().replace(microsecond=5)
    for moment in (MOMENT, MOMENT.replace(tzinfo=None), local.replace(microsecond=0)):
        found, rest = one("messages", GreaterThanOrEqual(("due",), moment))
        assert rest == []
        assert found.low("due") == MOMENT_US
    before_time = datetime(1, 1, 2, tzinfo=UTC)
    found, _ = one("messages", GreaterThan(("due",), before_time))
    low = found.low("due")
    assert low is not None
    assert low < 0


def test_the_narrowest_bounds_count() -> None:
    bounds = [GreaterThan(("id",), 3), GreaterThan(("id",), 9), LessThan(("id",), 20)]
    for order in itertools.permutations([*bounds, LessThanOrEqual(("id",), 15)]):
        found, rest = one("messages", *order)
        assert (found.low("id"), found.high("id"), rest) == (10, 16, [])


def test_bounds_that_leave_nothing_are_noticed() -> None:
    assert one("messages", GreaterThan(("id",), 9), LessThan(("id",), 5))[0].nothing
    assert one("messages", EqualTo(("state",), "dead"), EqualTo(("state",), "ready"))[0].nothing
    assert one("messages", In(("id",), ()))[0].nothing
    assert one("messages", EqualTo(("state",), "asleep"))[0].nothing
    assert not one("messages", EqualTo(("state",), "dead"))[0].nothing


def test_a_list_of_numbers_narrows_and_goes_back_to_spark() -> None:
    wanted = In(("id",), (5, 90, None, 7))
    found, rest = one("messages", wanted)
    assert rest == [wanted]
    assert (found.low("id"), found.high("id")) == (5, 91)
    found, rest = one("messages", In(("id",), (5,)))
    assert rest == []


def test_words_are_those_that_all_filters_allow() -> None:
    found, rest = one(
        "messages", In(("state",), ("ready", "dead", None)), EqualTo(("owner",), "billing")
    )
    assert rest == []
    assert found.words == {"state": {"ready", "dead"}, "owner": {"billing"}}
    found, _ = one("messages", In(("key",), ("a", "b")), In(("key",), ("b", "c")))
    assert found.words == {"key": {"b"}}
    # An owner that is left out is null, which nothing equals.
    assert one("messages", EqualTo(("owner",), ""))[0].nothing


def test_too_many_words_are_left_to_spark() -> None:
    many = In(("key",), tuple(f"k{n}" for n in range(1001)))
    found, rest = one("messages", many)
    assert rest == [many]
    assert found.words == {}


@pytest.mark.parametrize(
    ("view", "made"),
    [
        ("messages", EqualTo(("payload",), b"x")),
        ("messages", EqualTo(("headers", "lang"), "en")),
        ("messages", Not(EqualTo(("state",), "dead"))),
        ("messages", IsNull(("owner",))),
        ("messages", IsNotNull(("owner",))),
        ("messages", EqualTo(("due",), "yesterday")),
        ("messages", EqualTo(("id",), 1.5)),
        ("messages", EqualTo(("id",), True)),
        ("messages", EqualTo(("id",), (1 << 63) - 1)),
        ("messages", EqualTo(("state",), None)),
        ("messages", EqualNullSafe(("owner",), None)),
        ("messages", In(("id",), (1, "two"))),
        ("messages", StringStartsWith(("key",), "user-")),
        ("kv", StringStartsWith(("key",), "a\0b")),
        ("log", EqualTo(("key",), "a")),
        ("changes", EqualTo(("id",), 1)),
    ],
)
def test_what_the_broker_can_not_do_goes_back(view: str, made: Filter) -> None:
    found, rest = one(view, made)
    assert rest == [made]
    assert not found.ranges
    assert not found.words
    assert not found.prefix


@pytest.mark.parametrize(
    ("view", "columns"),
    [
        ("messages", ["id", "due", "state", "version"]),
        ("log", ["offset", "created"]),
        ("kv", ["key", "version"]),
        ("changes", ["position", "at", "op"]),
    ],
)
def test_what_is_never_null_need_not_be_asked(view: str, columns: list[str]) -> None:
    assert one(view, *(IsNotNull((name,)) for name in columns))[1] == []


def test_times_of_logs_and_changes_narrow_only() -> None:
    for view, column in (("log", "created"), ("changes", "at")):
        made = GreaterThan((column,), MOMENT)
        found, rest = one(view, made)
        assert rest == [made]
        assert found.low(column) == MOMENT_US + 1


def test_a_prefix_of_keys_is_taken_once() -> None:
    first, second = StringStartsWith(("key",), "user-"), StringStartsWith(("key",), "user-7")
    found, rest = one("kv", first, second)
    assert found.prefix == "user-"
    assert rest == [second]


NUMBERS = [GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo]


def holds(each: Any, value: int) -> bool:
    return {
        GreaterThan: value > each.value,
        GreaterThanOrEqual: value >= each.value,
        LessThan: value < each.value,
        LessThanOrEqual: value <= each.value,
        EqualTo: value == each.value,
    }[type(each)]


def test_all_pairs_of_comparisons_agree_with_looking_at_each_value() -> None:
    values = range(-2, 8)
    for kind, other in itertools.product(NUMBERS, NUMBERS):
        for low, high in itertools.product(range(6), range(6)):
            for column, made in (
                ("id", int),
                ("due", lambda n: MOMENT + timedelta(microseconds=n)),
            ):
                both = [kind((column,), made(low)), other((column,), made(high))]
                found, rest = one("messages", *both)
                assert rest == []
                plain = [kind(("id",), low), other(("id",), high)]
                expected = [n for n in values if all(holds(each, n) for each in plain)]
                base = 0 if column == "id" else MOMENT_US
                least, most = found.clip(column, base - 2, base + 8)
                assert [n for n in values if least <= n + base < most] == expected
