"""The walk of one message in docs/architecture.md is the one that a message takes."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
STEPS_MAX = 45
_TRIES = 3


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("walk", ROOT / "tools" / "walk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section() -> str:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return text.split("## The walk of one message\n")[1].split("\n# ")[0]


def steps() -> list[str]:
    return re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", section(), flags=re.MULTILINE)


def others() -> list[str]:
    """Plain data and instruments: met on the way, and no steps."""
    rows = section().split("Two sorts of files")[1].splitlines()
    return [file for row in rows if row.startswith("| `") for file in re.findall(r"`([^`]+)`", row)]


def test_the_walk_has_few_files_and_none_twice() -> None:
    numbers = re.findall(r"^\| (\d+) \|", section(), flags=re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(steps()) + 1))
    assert 0 < len(steps()) <= STEPS_MAX
    named = steps() + others()
    assert len(named) == len(set(named))


@pytest.mark.one_shard
def test_a_message_meets_the_files_of_the_walk_and_no_others(tmp_path: Path) -> None:
    tool = load_tool()
    named = set(steps() + others())
    walks: list[set[str]] = []
    for number in range(_TRIES):
        walks.append(set(tool.follow(str(tmp_path / str(number)))))
        # A machine that stands still for long makes a consumer give a message back, or a checkpoint
        # begin: what only one walk meets is no part of the way.
        if set.intersection(*walks) <= named <= set.union(*walks):
            return
    assert (set.intersection(*walks) - named, named - set.union(*walks)) == (set(), set())
