"""The asyncio classes that are made from synchronous ones are what the script makes of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "write_aio.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_aio", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules["write_aio"] = module
    spec.loader.exec_module(module)
    return module


FILES = dict(load_script().files())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_what_the_script_writes(path: Path) -> None:
    assert path.read_text() == FILES[path], f"{path.name} is out of date: run make aio"
