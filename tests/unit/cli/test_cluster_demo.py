"""The demo on a cluster: what it works out from facts, and what it needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples.demo.cluster_facts import ClusterFacts
from examples.demo.cluster_report import print_cluster_verdict
from fasti.model import make_id
from tests.unit.cli.rig import run_here

SECOND = 1_000_000


def facts() -> ClusterFacts:
    """Two partitions; a kill at 10 s, after which partition 1 is silent for 3 s."""
    found = ClusterFacts(begins=[(0, "before"), (10 * SECOND, "after")])
    found.happened(0, "it begins")
    for second in range(20):
        for partition in (0, 1):
            id, due_us = make_id(partition, second), second * SECOND
            late_us = 3 * SECOND if partition == 1 and second == 10 else 1_000
            found.produced([id], [due_us], [2 * second + partition], due_us)
            found.delivered(id, 2 * second + partition, due_us + late_us)
            found.acknowledged(id, due_us + late_us + 1)
    found.led(0, 0, "b1", 1)
    found.led(11 * SECOND, 0, "b2", 2)
    return found


def test_the_pause_is_the_longest_silence_of_a_partition_after_the_kill() -> None:
    found = facts()
    verdict = found.cluster_verdict(found.verdict())
    before, after = verdict.phases
    assert (before.name, before.silence_s, before.lateness.count) == ("before", 1.0, 20)
    # Message 10 comes at 13.0 s, 12 at 12.001 s: partition 1 was silent from 10 s to 11.001 s.
    assert after.silence_s == pytest.approx(1.001)
    assert (after.lateness.count, after.lateness.max_ms) == (20, 3_000)
    assert verdict.acknowledged == 40
    assert verdict.ok
    assert verdict.to_dict()["leaderships"][1] == {
        "at_s": 11.0, "shard": 0, "broker": "b2", "epoch": 2
    }  # fmt: skip


def test_a_silence_that_goes_on_counts_from_the_kill() -> None:
    found = facts()
    for second in range(10, 15):
        id = make_id(1, second)
        found.first_started[id] = 15 * SECOND + second
    _, after = found.cluster_verdict(found.verdict()).phases
    assert after.silence_s == pytest.approx(5.0, abs=0.01)


def test_the_report_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts()
    print_cluster_verdict(found.cluster_verdict(found.verdict()), Path("somewhere"))
    text = capsys.readouterr().out
    for words in ("it begins", "acknowledged", "nothing is lost", "longest pause", "BROKEN"):
        assert (words in text) == (words != "BROKEN")
    assert "b1 (epoch 1) → b2 (epoch 2, from 11.0 s)" in text
    assert "fasti cluster up --dir somewhere/cluster" in text


@pytest.mark.parametrize("command", [("demo", "--cluster"), ("cluster", "up")])
def test_a_missing_extra_is_told_in_one_line(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.setattr("fasti.doors.lifetime.end", lambda code: sys.exit(code))
    answer = run_here(*command)
    assert answer.code == 10
    assert answer.err.count("\n") == 1
    assert "needs nats, which is not installed: pip install 'fasti[cluster]'" in answer.err
    assert list(tmp_path.iterdir()) == []
