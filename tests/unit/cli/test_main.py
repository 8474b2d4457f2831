"""The root of the command: its version, and help for everything below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from fasti.cli.main import app


def test_it_tells_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("fasti ")


def commands(made: Any, *path: str) -> Iterator[list[str]]:
    """The command and everything below it."""
    yield list(path)
    for name, below in getattr(made, "commands", {}).items():
        yield from commands(below, *path, name)


def test_there_is_help_for_everything() -> None:
    found = list(commands(get_command(app)))
    for expected in (
        *(["topics", verb] for verb in ("create", "list", "describe", "update", "delete")),
        *(["messages", verb] for verb in ("list", "get", "update", "move", "cancel")),
        *(["dead", verb] for verb in ("list", "redrive", "purge")),
        *([name] for name in ("produce", "consume", "forecast", "demo", "storage", "bench")),
    ):
        assert expected in found
    for command in found:
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0, command
        assert "Usage" in result.stdout


def test_a_command_line_that_makes_no_sense_is_code_2() -> None:
    assert CliRunner().invoke(app, ["storage", "verify"]).exit_code == 2
    assert CliRunner().invoke(app, ["no-such-thing"]).exit_code == 2
