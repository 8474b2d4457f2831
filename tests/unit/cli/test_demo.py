"""The demo: its verdict is worked out from facts, whoever kept or broke which promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from examples.demo.command import print_verdict
from examples.demo.facts import Change, Facts


def story(
    *,
    deliver: tuple[tuple[int, int, int], ...] = ((1, 11, 110), (2, 12, 230), (2, 12, 310)),
    remaining: dict[int, int] | None = None,
    answered: bool = True,
) -> Facts:
    """Four messages: one delivered, one delivered again after the kill, one cancelled, one moved."""
    facts = Facts(window=(100, 400), killed_at_us=250, started_again_us=300)
    facts.happened(0, "it begins")
    facts.produced([1, 2, 3, 4], [100, 200, 300, 900], [11, 12, 13, 14], 50)
    changes = (Change([3], None, 60), Change([4], [5_000_000], 60))
    for change in changes:
        if answered:
            facts.answered(change, [True])
        else:
            facts.unanswered(change)
    for number, carried, started_us in deliver:
        facts.delivered(number, carried, started_us)
    facts.acknowledged(1, 120)
    facts.acknowledged(2, 320)
    facts.remaining = {4: 5_000_000} if remaining is None else remaining
    return facts


def test_a_good_story() -> None:
    verdict = story().verdict()
    assert verdict.ok
    assert (verdict.delivered, verdict.delivered_again, verdict.unknown) == (2, 1, 0)
    assert (verdict.moved, verdict.cancelled, verdict.scheduled) == (1, 1, 4)
    assert (verdict.up.earliest_ms, verdict.up.max_ms) == (0.01, 0.03)
    assert (verdict.before.count, verdict.outage.count, verdict.after.count) == (2, 0, 0)


@pytest.mark.parametrize(
    ("told", "broken"),
    [
        (lambda: story(deliver=((2, 12, 230), (2, 12, 310))), "lost"),
        (lambda: story(remaining={}), "lost"),
        (lambda: story(deliver=((1, 11, 110),), remaining={2: 200, 4: 5_000_000}), "undelivered"),
        (lambda: story(remaining={4: 900}), "misplaced"),
        (lambda: story(deliver=((1, 11, 99), (2, 12, 230))), "early"),
        (lambda: story(deliver=((1, 11, 110), (2, 12, 230), (3, 13, 320))), "after_cancel"),
        (lambda: story(deliver=((1, 11, 110), (2, 12, 230), (1, 11, 321))), "after_ack"),
        (lambda: story(deliver=((1, 11, 110), (2, 12, 230), (9, 12, 240))), "sent_twice"),
    ],
)
def test_a_broken_promise_is_seen(told: Callable[[], Facts], broken: str) -> None:
    verdict = told().verdict()
    assert getattr(verdict, broken) == 1
    assert not verdict.ok


def test_what_was_under_way_at_the_kill_may_be_either() -> None:
    for remaining in ({3: 300, 4: 5_000_000}, {4: 900}):
        verdict = story(answered=False, remaining=remaining).verdict()
        assert verdict.ok
        assert verdict.unknown == 2


def test_what_still_has_to_arrive() -> None:
    facts = story()
    assert facts.left_in_window() == set()
    facts.produced([5], [390], [15], 300)
    assert facts.left_in_window() == {5}
    facts.delivered(5, 15, 391)
    assert facts.left_in_window() == set()


def test_the_verdict_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = story().verdict()
    print_verdict(verdict, Path("somewhere"))
    text = capsys.readouterr().out
    assert "nothing is lost" in text
    assert "it begins" in text
    assert "BROKEN" not in text
    assert "fasti storage stats somewhere" in text
    verdict.early = 3
    print_verdict(verdict, None)
    assert "BROKEN" in capsys.readouterr().out
