"""A shell for each test of a command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.rig import Shell, opened


@pytest.fixture
def bare_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """On a broker without topics."""
    with opened(tmp_path / "broker", monkeypatch) as shell:
        yield shell


@pytest.fixture
def shell(bare_shell: Shell) -> Shell:
    """On a broker with the topic `emails`."""
    bare_shell.good("topics", "create", "emails")
    return bare_shell
