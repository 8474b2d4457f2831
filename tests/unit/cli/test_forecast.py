"""`fasti forecast`: bars that add up."""

from __future__ import annotations

import pytest

from tests.unit.cli.rig import Shell


@pytest.fixture(autouse=True)
def filled(shell: Shell) -> None:
    shell.good("produce", "emails", "x", "-n", "40", "--at", "2100-01-01T10:30Z")
    shell.good("produce", "emails", "x", "-n", "10", "--at", "2100-01-01T12:00Z")


SPAN = ["--from", "2100-01-01T10:00Z", "--to", "2100-01-01T13:00Z"]


def test_counts_for_programs(shell: Shell) -> None:
    found = shell.good("forecast", "emails", *SPAN)
    assert [bucket["count"] for bucket in found["buckets"]] == [40, 0, 10]
    assert found["buckets"][0]["start"] == "2100-01-01T10:00:00.000000Z"
    finer = shell.good("forecast", "emails", *SPAN, "--bucket", "30m")
    assert [bucket["count"] for bucket in finer["buckets"]] == [0, 40, 0, 0, 10, 0]


def test_bars_for_people(shell: Shell) -> None:
    lines = shell("forecast", "emails", *SPAN).out.splitlines()
    assert [line.count("█") for line in lines[:3]] == [60, 0, 15]
    assert lines[3].startswith("50 messages fall due")


def test_by_default_what_comes_next(shell: Shell) -> None:
    shell.good("produce", "emails", "x", "-n", "3", "--delay", "1m")
    found = shell.good("forecast", "emails")
    assert len(found["buckets"]) == 24
    assert sum(bucket["count"] for bucket in found["buckets"]) == 3


def test_what_makes_no_picture_is_refused(shell: Shell) -> None:
    for more in (["--bucket", "0s"], ["--to", "-1h"], ["--bucket", "1ms"]):
        assert shell("forecast", "emails", *SPAN, *more).code == 2


def test_bars_beyond_the_calendar(shell: Shell) -> None:
    found = shell("forecast", "emails", "--from", "9999-12-31T10:00Z", "--bucket", "1d")
    assert found.code == 2
    assert "calendar" in found.err
    assert shell("forecast", "emails", "--to", "+10000000d").code == 2
