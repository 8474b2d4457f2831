"""The rule by which CI tells a flaky test from a broken one, on small projects with real runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / ".ci" / "rerun_failed.py"

# Fails at its first run only: what a test that judges by luck looks like to CI.
_FLAKY = """
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", {names})
def test_by_luck(name):
    mark = Path(__file__).with_name(f"{{name}}.ran")
    ran, _ = mark.exists(), mark.touch()
    assert ran
"""
_BROKEN = """
def test_broken():
    assert False
"""


def _run_ci(project: Path, source: str) -> subprocess.CompletedProcess[str]:
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "test_it.py").write_text(source)
    # Nothing of what is installed here for pytest is needed there; to load it takes longer.
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q"]
    first = subprocess.run(command, cwd=project, env=env, check=False)
    assert first.returncode != 0
    return subprocess.run(
        [sys.executable, str(_SCRIPT)],
        cwd=project,
        env=env,
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_test_that_passes_twice_alone_is_flaky_and_the_run_goes_on(tmp_path: Path) -> None:
    done = _run_ci(tmp_path, _FLAKY.format(names=["a b", "c"]))
    assert done.returncode == 0
    assert "FLAKY test_it.py::test_by_luck[a b]" in done.stdout
    assert "FLAKY test_it.py::test_by_luck[c]" in done.stdout


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (_BROKEN, "BROKEN test_it.py::test_broken"),
        (_FLAKY.format(names=["a"]) + _BROKEN, "BROKEN test_it.py::test_broken"),
        (_FLAKY.format(names=["a", "b", "c", "d"]), "too many"),
        ("import nothing_of_that_name\n", "nothing to run again"),
    ],
)
def test_everything_else_fails(tmp_path: Path, source: str, reason: str) -> None:
    done = _run_ci(tmp_path, source)
    assert done.returncode == 1
    assert reason in done.stdout
