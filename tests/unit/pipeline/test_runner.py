"""One runner for all pipelines: rounds of stages, which are closed however the run ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fasti.errors import DataDirLocked, InvalidArgument
from fasti.pipeline.lake import Lake
from fasti.pipeline.runner import Progress, Stage, StageRun, Workflow, run

NO_SPARK: Any = None


class Recorder:
    """Stages that write down what is done with them."""

    def __init__(self, rounds: int = 1) -> None:
        self.calls: list[str] = []
        self.stop = threading.Event()
        self._rounds = rounds

    def stage(self, name: str, rows: int = 1) -> Stage:
        def work(this: StageRun) -> int:
            self.calls.append(name)
            if self.calls.count(name) == self._rounds and not this.once:
                self.stop.set()
            return rows

        return Stage(name, work, lambda: self.calls.append(f"close {name}"))


def workflow(tmp_path: Path, *stages: Stage) -> Workflow:
    return Workflow(Lake(tmp_path), stages, owns_tables=False)


def test_one_round_runs_every_stage_and_closes_it(tmp_path: Path) -> None:
    recorder, seen = Recorder(), list[Progress]()
    stages = recorder.stage("first", 3), recorder.stage("second", 4)
    done = run(workflow(tmp_path, *stages), NO_SPARK, progress=seen.append)
    assert (done.rows, done.rounds, done.stopped) == ({"first": 3, "second": 4}, 1, False)
    assert recorder.calls == ["first", "second", "close second", "close first"]
    assert [(each.stage, each.done) for each in seen if each.ended] == [("first", 3), ("second", 4)]


def test_rounds_go_on_until_they_are_stopped(tmp_path: Path) -> None:
    recorder = Recorder(rounds=3)
    made = workflow(tmp_path, recorder.stage("only", 2))
    done = run(made, NO_SPARK, once=False, interval=0.0, stop=recorder.stop)
    assert (done.rows, done.rounds, done.stopped) == ({"only": 6}, 3, True)
    assert recorder.calls == ["only"] * 3 + ["close only"]


def test_an_error_ends_the_run_and_closes_all_stages(tmp_path: Path) -> None:
    recorder = Recorder()

    def fail(_: StageRun) -> int:
        raise ValueError("broken")

    stages = recorder.stage("first"), Stage("second", fail), recorder.stage("third")
    with pytest.raises(ValueError, match="broken"):
        run(workflow(tmp_path, *stages), NO_SPARK)
    assert recorder.calls == ["first", "close third", "close first"]
    with Lake(tmp_path).lock():
        pass


def test_one_run_at_a_time(tmp_path: Path) -> None:
    recorder = Recorder()
    with Lake(tmp_path).lock(), pytest.raises(DataDirLocked):
        run(workflow(tmp_path, recorder.stage("only")), NO_SPARK)
    assert recorder.calls == []


def test_once_and_an_interval_exclude_each_other(tmp_path: Path) -> None:
    made = workflow(tmp_path)
    for settings in ({"once": True, "interval": 1.0}, {"once": False}):
        with pytest.raises(InvalidArgument, match="either once=True or an interval"):
            run(made, NO_SPARK, **settings)  # type: ignore[arg-type]
