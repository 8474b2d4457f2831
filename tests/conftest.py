"""Settings that all tests share.

The Hypothesis profile is chosen by the environment variable HYPOTHESIS_PROFILE:

same    the same examples in every run, so that a failure is about the change (the default)
search  new examples in every run: for looking for trouble
long    many new examples, for `make test-long`

No profile has a deadline, for an example or for making one: a slow machine is not a bug.
"""

from __future__ import annotations

import functools
import gc
import os
import site
import sys
import sysconfig
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

common = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", common, derandomize=True)
settings.register_profile("search", common)
settings.register_profile("long", common, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shards", type=int, default=1, help="how many shards new brokers have; see tests/shape.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (shards := config.getoption("--shards")) > 1:
        from tests.shape import use_shards

        use_shards(shards)
    _share_bytecode(config)


def _share_bytecode(config: pytest.Config) -> None:
    """Where no bytecode may be left in the tree, all processes of tests share some elsewhere.

    Tests start hundreds of brokers and commands; each would compile all that it imports.
    """
    if not os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        return
    if config.pluginmanager.has_plugin("cacheprovider"):
        shared = config.cache.mkdir("bytecode")  # type: ignore[union-attr]
    else:
        temporary = tempfile.TemporaryDirectory(
            prefix="fasti-bytecode-", ignore_cleanup_errors=True
        )
        config.add_cleanup(temporary.cleanup)
        shared = Path(temporary.name)
    _link_bytecode(shared)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(shared)
    sys.dont_write_bytecode = False


def _link_bytecode(shared: Path) -> None:
    """Python looks nowhere else from now on: what was installed with bytecode is not compiled anew."""
    installed = [sysconfig.get_path("stdlib"), *site.getsitepackages()]
    for place in (place for place in installed if not (shared / place.lstrip("/")).exists()):
        for folder, inner, names in os.walk(place):
            inner[:] = [name for name in inner if name not in ("test", "tests")]
            if not folder.endswith("__pycache__"):
                continue
            linked = shared / os.path.dirname(folder).lstrip("/")
            linked.mkdir(parents=True, exist_ok=True)
            for name in names:
                # Another run may do the same.
                with suppress(FileExistsError):
                    if ".opt-" not in name:
                        (linked / name).symlink_to(os.path.join(folder, name))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker imports some of the files first: what it compiles, the others need not.

    They all import all of them then, in the same order.
    """
    config, root = session.config, session.config.rootpath
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if not given or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    files = sorted((root / "tests").rglob("test_*.py"))
    for file in files[int(given["workerid"].removeprefix("gw")) :: given["workercount"]]:
        # What goes wrong is told when the file is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(root).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """What is there now stays: no test's garbage collection need look through it."""
    gc.collect()
    gc.freeze()


# Files of these folders are given out first: what is left for the end is short.
SLOW_FOLDERS = ["spark", "cluster", "integration", "faults", "crash", "properties"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--shards") > 1:
        alone = pytest.mark.skip(reason="about one shard by its nature")
        for item in items:
            if item.get_closest_marker("one_shard"):
                item.add_marker(alone)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.nodeid))


def _rank(nodeid: str) -> int:
    folder = nodeid.split("/")[1]
    return SLOW_FOLDERS.index(folder) if folder in SLOW_FOLDERS else len(SLOW_FOLDERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file runs in one worker, and all with the session of Spark in the same: it starts Java once."""
    from xdist.scheduler import LoadFileScheduling

    @functools.cache
    def with_session(file: str) -> bool:
        return (
            file.startswith("tests/spark/")
            and "spark: SparkSession" in (config.rootpath / file).read_text()
        )

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return "tests/spark" if with_session(scope) else scope

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
