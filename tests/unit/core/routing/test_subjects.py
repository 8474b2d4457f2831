"""Subjects and patterns: what is one, and what is refused by name."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fasti.core.routing.subjects import check_pattern, check_subjects
from fasti.errors import InvalidArgument


@pytest.mark.parametrize(
    "pattern",
    [
        "orders",
        "orders.eu.created",
        "*",
        ">",
        "orders.*",
        "*.*.x",
        "orders.>",
        "*.>",
        "größe.ok-1_2",
    ],
)
def test_patterns(pattern: str) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        ">.a",
        "a.>.b",
        "a*",
        "*a",
        "a.b>",
        ">>",
        "**",
        "a b",
        "a\nb",
        "a\x00b",
        "a\u200bb",
        "a\u00a0b",
        "a\u2028",
        "a." * 200 + "a",
    ],
)
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_pattern(pattern)
    assert refusal.value.details["field"] == "pattern"


def test_subjects() -> None:
    check_subjects(pa.array(["orders", None, "orders.eu.created", "größe.x", "a." * 127 + "a"]))
    check_subjects(pa.array([None, None], pa.string()))
    check_subjects(pa.array([], pa.string()))


@pytest.mark.parametrize(
    "subject",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "*",
        "a.*",
        ">",
        "a.>",
        "a b",
        "a\nb",
        "a\x00",
        "a\u200b",
        "a" * 256,
    ],
)
def test_what_is_no_subject(subject: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_subjects(pa.array(["fine", subject]))
    assert refusal.value.details["field"] == "subject"
