"""What `import fasti` gives is a promise, and it is given quickly."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fasti

PINNED = {
    "App",
    "Backoff",
    "Batch",
    "Client",
    "Consumer",
    "Failure",
    "FastiError",
    "Groups",
    "Log",
    "LogMessage",
    "Message",
    "Messages",
    "Outcome",
    "Outcomes",
    "Producer",
    "Reader",
    "Receipt",
    "Schedules",
    "Topic",
    "Transaction",
    "aio",
    "connect",
    "errors",
    "model",
    "testing",
}


def test_the_names_are_there() -> None:
    assert set(fasti.__all__) >= PINNED
    assert set(dir(fasti)) >= PINNED
    for name in PINNED - {"testing"}:
        assert getattr(fasti, name) is not None
    assert fasti.__version__
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = fasti.nothing_like_it


def test_importing_loads_nothing_heavy() -> None:
    program = "import sys, fasti; print(sorted({'numpy', 'pyarrow', 'typer'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ran.stdout.strip() == b"[]"
