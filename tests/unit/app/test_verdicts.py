"""What a handler's end means for its message."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from fasti.app.verdicts import (
    REASON_BYTES_MAX,
    Reject,
    Retry,
    Undecodable,
    Verdict,
    bounded,
    judge,
    over_time,
)
from fasti.errors import InvalidArgument


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ValueError("no address"), Verdict("nack", "ValueError: no address")),
        (ValueError(), Verdict("nack", "ValueError")),
        (Retry("30s"), Verdict("nack", "again later", 30_000_000, retry=True)),
        (Retry(), Verdict("nack", "again later", retry=True)),
        (Retry(delay=1.5, reason="busy"), Verdict("nack", "busy", 1_500_000, retry=True)),
        (Retry(due=7_000), Verdict("nack", "again later", due_us=7_000, retry=True)),
        (Retry("30s", count=False), Verdict("release", "again later", 30_000_000, retry=True)),
        (Retry(reason="x" * 9_000), Verdict("nack", bounded("x" * 9_000), retry=True)),
        (Reject("no such order"), Verdict("reject", "no such order")),
        (Reject(), Verdict("reject", "Reject")),
        (Undecodable("no JSON"), Verdict("reject", "no JSON")),
        (KeyboardInterrupt(), Verdict("release", "KeyboardInterrupt", stop=True)),
        (SystemExit(1), Verdict("release", "SystemExit", stop=True)),
    ],
)
def test_what_an_exception_means(error: BaseException, verdict: Verdict) -> None:
    assert judge(error) == verdict


def test_an_error_whose_text_cannot_be_made_is_still_a_failure() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert judge(Broken()) == Verdict("nack", "Broken: (its text can't be made)")


def test_reasons_are_bounded_between_characters() -> None:
    found = judge(ValueError("ü" * 2000))
    assert len(found.reason.encode()) <= REASON_BYTES_MAX
    assert found.reason.startswith("ValueError: üü")
    assert found.reason.endswith("ü …")
    assert bounded("short") == "short"
    # What UTF-8 can't hold would be refused by the broker, and the message never finished.
    assert bounded("a\ud800b") == "a?b"


def test_time_limits_are_named() -> None:
    assert over_time(1_500_000) == Verdict("nack", "time limit: not done after 1.5 s")


def test_a_bad_delay_is_told_where_it_is_raised() -> None:
    with pytest.raises(InvalidArgument, match="delay"):
        Retry("soon")
    with pytest.raises(InvalidArgument, match="due"):
        Retry("5s", due=7)


def test_retries_survive_pickling() -> None:
    copied = pickle.loads(pickle.dumps(Retry("5s", "busy")))
    assert (copied.when, str(copied), copied.count) == (5_000_000, "busy", True)
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    copied = pickle.loads(pickle.dumps(Retry(at=moment, count=False)))
    assert (copied.at, str(copied), copied.count) == (moment, "again later", False)
