"""The core is pure: it has no clock, does no I/O, starts no thread and draws no random number.

import-linter checks the imports too. This test also sees what it can't: numpy's random
generators, the builtins that do I/O, and imports made by a call.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fasti"
PURE_FILES = sorted(
    path
    for path in [*SOURCE.glob("core/**/*.py"), SOURCE / "errors.py", SOURCE / "model.py"]
    if path.exists()
)

IMPURE_MODULES = {
    "asyncio",
    "concurrent",
    "importlib",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "numpy.random",
    "pyarrow.flight",
    "pyarrow.fs",
}
IMPURE_ATTRIBUTES = {
    "np.random",
    "numpy.random",
    "pa.memory_map",
    "pa.OSFile",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
}
IMPURE_BUILTINS = {"__import__", "breakpoint", "input", "open", "print"}


def impurities(source: str) -> list[str]:
    """Name everything in the source that a pure module may not use, with its line."""
    return [
        f"line {node.lineno}: {name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute | ast.Call)
        for name in impure_names(node)
    ]


def impure_names(node: ast.Import | ast.ImportFrom | ast.Attribute | ast.Call) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names if is_impure_module(alias.name)]
        case ast.ImportFrom(module=str(module), names=names, level=0):
            full_names = [f"{module}.{alias.name}" for alias in names]
            return [name for name in full_names if is_impure_module(name)]
        case ast.Attribute(attr=attribute, value=ast.Name(id=owner)):
            name = f"{owner}.{attribute}"
            return [name] if name in IMPURE_ATTRIBUTES else []
        case ast.Attribute(attr=attribute, value=ast.Attribute(attr=owner)):
            # The end of a longer chain, as in datetime.datetime.now.
            name = f"{owner}.{attribute}"
            return [name] if name in IMPURE_ATTRIBUTES else []
        case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
            return [f"{name}()"]
    return []


def is_impure_module(name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:length]) in IMPURE_MODULES for length in range(1, len(parts) + 1))


def test_there_are_files_to_check() -> None:
    assert PURE_FILES


@pytest.mark.parametrize("path", PURE_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_pure_file_uses_nothing_impure(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import numpy, os.path",
        "import threading as t",
        "from time import monotonic",
        "from concurrent.futures import Future",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import numpy.random",
        "from pyarrow import flight",
        "def f():\n    import socket",
        "if TYPE_CHECKING:\n    from pathlib import Path",
        "x = np.random.default_rng()",
        "datetime.now(UTC)",
        "datetime.datetime.now()",
        "open('x')",
        "__import__('time')",
    ],
)
def test_impure_source_is_found(source: str) -> None:
    assert len(impurities(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np",
        "import pyarrow as pa",
        "from datetime import UTC, datetime, timedelta",
        "import timeit_like_name",
        "from fasti.core import time",
        "from . import random",
        "segment.open()",
        "clock.now()",
    ],
)
def test_pure_source_is_left_alone(source: str) -> None:
    assert impurities(source) == []
