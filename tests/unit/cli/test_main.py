"""The root of the command: its version, and help for everything below it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fasti.cli.main import app


def test_it_tells_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("fasti ")


@pytest.mark.parametrize(
    "command",
    [[], ["demo"], ["storage"], ["storage", "verify"], ["storage", "repair"], ["storage", "stats"]],
    ids=" ".join,
)
def test_there_is_help_for_everything(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_a_command_line_that_makes_no_sense_is_code_2() -> None:
    assert CliRunner().invoke(app, ["storage", "verify"]).exit_code == 2
    assert CliRunner().invoke(app, ["no-such-thing"]).exit_code == 2
