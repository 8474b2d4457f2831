"""Medians, ratios and runs that are put together; what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers.goals import best_durable, goals
from benchmarks.peers.registry import FASTI
from benchmarks.peers.results import NotOneBuild, Results, load
from tests.unit.benchmarks.peers_rig import a_run


def test_a_value_is_the_median_over_all_rounds_with_its_spread() -> None:
    first = a_run({(FASTI, "send"): [{"p50_ms": 1.0}, {"p50_ms": 3.0}]})
    second = a_run({(FASTI, "send"): [{"p50_ms": 2.0}]})
    found = Results([first, second]).value(FASTI, "send", "p50_ms")
    assert found is not None
    assert (found.median, found.least, found.greatest, found.rounds) == (2.0, 1.0, 3.0, 3)


def test_a_ratio_says_how_many_times_fasti_is_ahead_whatever_is_better() -> None:
    cells = {
        (FASTI, "send"): [{"p50_ms": 0.5}],
        ("redis-always", "send"): [{"p50_ms": 1.0}],
        (FASTI, "schedule"): [{"per_s": 100}],
        ("redis-always", "schedule"): [{"per_s": 400}],
    }
    results = Results([a_run(cells)])
    send = results.ratio("redis-always", "send", "p50_ms")
    schedule = results.ratio("redis-always", "schedule", "per_s")
    assert send is not None
    assert send.median == 2.0
    assert schedule is not None
    assert schedule.median == 0.25


def test_a_ratio_never_compares_two_runs() -> None:
    """The machine of the second run was ten times slower for both."""
    first = a_run({(FASTI, "schedule"): [{"per_s": 1000}], ("celery", "schedule"): [{"per_s": 10}]})
    second = a_run({(FASTI, "schedule"): [{"per_s": 100}], ("celery", "schedule"): [{"per_s": 1}]})
    only_ours = a_run({(FASTI, "schedule"): [{"per_s": 7}]})
    found = Results([first, second, only_ours]).ratio("celery", "schedule", "per_s")
    assert found is not None
    assert (found.least, found.greatest, found.rounds) == (100.0, 100.0, 2)


def test_what_was_not_measured_has_no_figure_but_a_reason() -> None:
    cells = {
        ("beanstalkd", "change_one"): [{"cancel_per_s": 10, "move_cannot": "no such call"}],
        ("celery", "both"): [{"cannot": "one by one"}],
        ("nats-always", "send"): [{"failed": "JobFailed: ended"}, {"p50_ms": 1.0}],
    }
    results = Results([a_run(cells)])
    assert results.value("beanstalkd", "change_one", "move_per_s") is None
    assert results.reason_of("beanstalkd", "change_one", "move_per_s") == "no such call"
    assert results.reason("beanstalkd", "change_one") is None
    assert results.reason("celery", "both") == "one by one"
    assert results.reason("nats-always", "send") is None
    assert results.notes("nats-always", "send") == ["1 of 2 rounds failed"]
    assert results.ratio("celery", "both", "per_s") is None


def test_runs_of_two_builds_are_not_put_together(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, source in zip(paths, ("abc", "abd"), strict=True):
        path.write_text(json.dumps(a_run({}, source=source)))
    with pytest.raises(NotOneBuild, match="different builds"):
        load(paths)


def test_several_runs_and_a_file_of_runs_are_loaded_alike(tmp_path: Path) -> None:
    run = a_run({(FASTI, "send"): [{"p50_ms": 1.0}]})
    (tmp_path / "a.json").write_text(json.dumps(run))
    (tmp_path / "b.json").write_text(json.dumps({"runs": [run, run]}))
    assert load([tmp_path / "a.json", tmp_path / "b.json"]) == [run, run, run]


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(a_run({}, format=0)))
    with pytest.raises(ValueError, match="format"):
        load([tmp_path / "a.json"])


def test_goals_are_reached_missed_or_not_measured() -> None:
    cells = {
        (FASTI, "send"): [{"p50_ms": 0.6, "p99_ms": 1.0}],
        ("nats-always", "send"): [{"p50_ms": 0.5, "p99_ms": 0.9}],
        (FASTI, "consume_loop"): [{"per_s": 50_000}],
        ("rabbitmq-quorum", "consume_loop"): [{"per_s": 5_000}],
        # Not durable, so it is no yardstick.
        ("nats-default", "consume_loop"): [{"per_s": 40_000}],
    }
    results = Results([a_run(cells)])
    assert best_durable(results, "consume_loop") == 5_000
    found = {goal.text: goal.reached for goal in goals(results)}
    assert found["send until acknowledged, p50: at most that of NATS with sync always"] is False
    assert found["send until acknowledged, p99"] is True
    loop = "consumer loop with default settings: at least 10 times the best durable peer"
    assert found[loop] is True
    assert found["cost with 10 M pending against 10 k"] is None
