"""Settings that all tests share.

The Hypothesis profile is chosen by the environment variable HYPOTHESIS_PROFILE:

same    the same examples in every run, so that a failure is about the change (the default)
search  new examples in every run: for looking for trouble
long    many new examples, for `make test-long`

No profile has a deadline, for an example or for making one: a slow machine is not a bug.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

common = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", common, derandomize=True)
settings.register_profile("search", common)
settings.register_profile("long", common, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_configure(config: pytest.Config) -> None:
    """Where no bytecode may be left in the tree, the processes of tests share some elsewhere.

    Tests start hundreds of brokers and commands; each would compile all that it imports.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        shared = tempfile.TemporaryDirectory(prefix="fasti-bytecode-", ignore_cleanup_errors=True)
        config.add_cleanup(shared.cleanup)
        os.environ["PYTHONPYCACHEPREFIX"] = shared.name


# Files of these folders are given out first: what is left for the end is short.
SLOW_FOLDERS = ["spark", "integration", "faults", "crash", "properties"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    folder = nodeid.split("/")[1]
    return SLOW_FOLDERS.index(folder) if folder in SLOW_FOLDERS else len(SLOW_FOLDERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file runs in one worker, and all files of Spark in the same: only that one starts Java."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return "tests/spark" if scope.startswith("tests/spark/") else scope

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
