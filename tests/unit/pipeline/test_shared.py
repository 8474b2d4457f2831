"""Whether Spark's processes see the lake: asked by tasks, here in this process, and told plainly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fasti.errors import InvalidArgument
from fasti.pipeline import shared
from fasti.pipeline.shared import TaskAnswer

Task = Callable[[Any], Any]


class Asked:
    """As much of a session as is asked; `meanwhile` happens before the tasks run."""

    def __init__(self, meanwhile: Callable[[], object], change: dict[str, Any]) -> None:
        self._meanwhile, self._change = meanwhile, change
        self.tasks = 0

    def range(self, begin: int, end: int, step: int, tasks: int) -> Asked:
        self.tasks = tasks
        return self

    def mapInArrow(self, task: Task, schema: str) -> Asked:  # noqa: N802  (Spark's name)
        self._task, self._names = task, [each.split()[0] for each in schema.split(", ")]
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        self._meanwhile()
        numbers = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(self.tasks)]
        rows = [row for batch in self._task(iter(numbers)) for row in batch.to_pylist()]
        return [tuple({**row, **self._change}[name] for name in self._names) for row in rows]


def check(lake: Path, meanwhile: Callable[[], object] = lambda: None, **change: Any) -> None:
    shared.check(lake, Asked(meanwhile, change), 3)


def marker(lake: Path) -> Path:
    (found,) = lake.rglob("here")
    return found


def test_where_all_see_it_nothing_is_left(tmp_path: Path) -> None:
    # What a killed run has left.
    (tmp_path / ".shared" / "old").mkdir(parents=True)
    check(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_task_that_sees_nothing_or_something_else(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"on a can't work on the lake .*No such file"):
        check(tmp_path, lambda: marker(tmp_path).unlink(), host="a")
    with pytest.raises(InvalidArgument, match="it sees another directory"):
        check(tmp_path, lambda: marker(tmp_path).write_text("of somebody else"))
    assert not list(tmp_path.iterdir())


def test_what_a_task_writes_must_be_seen(tmp_path: Path) -> None:
    """As if it wrote into a directory of its own that has a copy of ours."""
    with pytest.raises(InvalidArgument, match=r"can't see or move what a task on b writes"):
        check(tmp_path, number=7, host="b")


@pytest.mark.parametrize(
    ("installed", "said"),
    [("", "on c doesn't have Fasti, and"), ("0.0.1", "on c has Fasti 0.0.1, and this process has")],
)
def test_executors_need_the_package(tmp_path: Path, installed: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check(tmp_path, installed=installed, host="c")


def test_a_package_on_the_path_will_do(tmp_path: Path) -> None:
    check(tmp_path, installed="?")


def test_the_task_imports_nothing_of_ours() -> None:
    """It travels to where the package may be missing: by value, not by its name."""
    from pyspark import cloudpickle

    travelling = cloudpickle.dumps(shared._asking("/lake"))  # type: ignore[no-untyped-call]
    # Whoever unpacks it has no module of ours.
    code = (
        "import sys, pickle\n"
        "sys.modules['fasti'] = None\n"
        "print(pickle.loads(sys.stdin.buffer.read()).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=travelling, capture_output=True)
    assert done.stdout == b"ask\n", done.stderr


def test_answers_are_compared_with_this_version(tmp_path: Path) -> None:
    answer = TaskAnswer(0, "d", tmp_path.name, version("fasti"), "")
    shared.complain(tmp_path, answer, tmp_path)
