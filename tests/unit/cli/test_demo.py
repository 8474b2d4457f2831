"""The demo: its verdict is worked out from facts, and a whole small run keeps its promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fasti.cli.demo_facts import Facts
from fasti.cli.exits import ERROR_EXITS
from fasti.cli.main import app

STORY: list[dict[str, Any]] = [
    {"fact": "opened", "seconds": 0.1, "at_us": 0},
    {"fact": "window", "from_us": 100, "to_us": 400},
    {
        "fact": "produced",
        "ids": [1, 2, 3, 4],
        "due": [100, 200, 300, 900],
        "status": [0] * 4,
        "at_us": 50,
    },
    {"fact": "cancelling", "call": 1, "ids": [3]},
    {"fact": "cancelled", "call": 1, "status": [0]},
    {"fact": "moving", "call": 2, "ids": [4], "due": [5_000_000]},
    {"fact": "moved", "call": 2, "status": [0]},
    {"fact": "delivered", "ids": [1], "due": [100], "started": [110]},
    {"fact": "acked", "ids": [1], "status": [0]},
    {"fact": "delivered", "ids": [2], "due": [200], "started": [230]},
    {"fact": "opened", "seconds": 0.2, "at_us": 300},
    {"fact": "delivered", "ids": [2], "due": [200], "started": [310]},
    {"fact": "acked", "ids": [2], "status": [0]},
    {"fact": "remaining", "ids": [4], "due": [5_000_000]},
    {"fact": "counts", "states": {"scheduled": 1, "done": 2, "cancelled": 1}},
    {"fact": "forecast", "start": [0], "count": [1]},
    {"fact": "closed", "seconds": 0.3, "checkpoints": 1},
]


def told(*lines: dict[str, Any]) -> Facts:
    facts = Facts(killed_at_us=250)
    for line in lines:
        facts.take(line)
    return facts


def test_a_good_story() -> None:
    verdict = told(*STORY).verdict()
    assert verdict.ok
    assert (verdict.delivered, verdict.delivered_again, verdict.unknown) == (2, 1, 0)
    assert (verdict.up.earliest_ms, verdict.up.max_ms) == (0.01, 0.03)
    assert (verdict.before.count, verdict.outage.count, verdict.after.count) == (2, 0, 0)


def change(fact: str, nth: int, **values: Any) -> list[dict[str, Any]]:
    """The story with one line told differently."""
    places = [place for place, line in enumerate(STORY) if line["fact"] == fact]
    story = list(STORY)
    story[places[nth]] = {**story[places[nth]], **values}
    return story


@pytest.mark.parametrize(
    ("story", "broken"),
    [
        (change("delivered", 0, ids=[], due=[], started=[]), "lost"),
        (change("remaining", 0, ids=[], due=[]), "lost"),
        (change("remaining", 0, due=[900]), "misplaced"),
        (change("delivered", 0, started=[99]), "early"),
        (change("delivered", 1, ids=[3], started=[320]), "after_cancel"),
        (change("delivered", 2, ids=[1]), "after_ack"),
    ],
)
def test_a_broken_promise_is_seen(story: list[dict[str, Any]], broken: str) -> None:
    verdict = told(*story).verdict()
    assert getattr(verdict, broken) == 1
    assert not verdict.ok


def test_what_was_under_way_at_the_kill_may_be_either() -> None:
    unanswered = [line for line in STORY if line["fact"] not in ("cancelled", "moved")]
    verdict = told(*unanswered).verdict()
    assert verdict.ok
    assert verdict.unknown == 2


def test_a_small_run_keeps_its_promises(tmp_path: Path) -> None:
    arguments = ["demo", "--near", "400", "--far", "2000", "--seconds", "1", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path / "data")])
    verdict = json.loads(result.stdout)
    assert result.exit_code == 0, verdict
    assert verdict["ok"]
    assert verdict["scheduled"] == 2_400
    assert verdict["up"]["earliest_ms"] >= 0
    assert verdict["delivered"] + verdict["cancelled"] <= 2_400
    checked = CliRunner().invoke(app, ["storage", "verify", str(tmp_path / "data")])
    assert checked.exit_code == 0
    again = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path / "data")])
    assert again.exit_code == ERROR_EXITS["already_exists"]


def test_the_verdict_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    from fasti.cli.demo import _print

    _print(told(*STORY).verdict(), Path("somewhere"))
    text = capsys.readouterr().out
    assert "nothing is lost" in text
    assert "BROKEN" not in text
    assert "fasti storage stats somewhere" in text
