"""Decides what a failed run of the tests means: broken, or flaky.

Called by `.ci/run` after pytest has failed. Each failed test is run again, alone, twice. One that
passes both times is printed as FLAKY and the run goes on: its cause is to be mended next. One that
fails again is broken, and so is a run with more than three flaky tests, or one that failed in
another way than by its tests (a module that can't be imported, a worker that crashed at the end).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FLAKY_MAX = 3
RERUNS = 2
_CACHE = Path(".pytest_cache/v/cache")


def failed_tests() -> list[str]:
    """The node ids that pytest noted as failed in its last run."""
    path = _CACHE / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def passes_alone(test: str) -> bool:
    """Whether a test passes `RERUNS` times, in a process of its own each time."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]
    return all(subprocess.run(command, check=False).returncode == 0 for _ in range(RERUNS))


def main() -> int:
    """The exit code of the run."""
    tests = failed_tests()
    if not tests or any("::" not in test for test in tests):
        print("The tests did not fail one by one: nothing to run again.", *tests, sep="\n  ")
        return 1
    if len(tests) > FLAKY_MAX:
        print(f"{len(tests)} tests failed: too many to be called flaky.", *tests, sep="\n  ")
        return 1
    broken = [test for test in tests if not passes_alone(test)]
    for test in tests:
        print(f"{'BROKEN' if test in broken else 'FLAKY'} {test}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
