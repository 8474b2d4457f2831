"""The root of the command: its version, and help for everything below it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from fasti.cli import commands as all_commands
from fasti.cli.commands import COMMANDS, load
from fasti.cli.exits import ERROR_EXITS
from fasti.cli.main import app


def test_it_tells_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("fasti ")


def commands(made: Any, *path: str) -> Iterator[list[str]]:
    """The command and everything below it."""
    yield list(path)
    if isinstance(made, TyperGroup):
        context = typer.Context(made)
        for name in made.list_commands(context):
            yield from commands(made.get_command(context, name), *path, name)


def test_there_is_help_for_everything() -> None:
    found = list(commands(get_command(app)))
    for expected in (
        *(["topics", verb] for verb in ("create", "list", "describe", "update", "delete")),
        *(["messages", verb] for verb in ("list", "get", "update", "move", "cancel", "release")),
        *(["consumers", verb] for verb in ("list", "release")),
        *(["dead", verb] for verb in ("list", "count", "redrive", "purge")),
        *([name] for name in ("produce", "consume", "call", "forecast", "demo", "bench")),
    ):
        assert expected in found
    for command in found:
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0, command
        assert "Usage" in result.stdout


def test_a_command_line_that_makes_no_sense_is_code_2() -> None:
    assert CliRunner().invoke(app, ["storage", "verify"]).exit_code == 2
    assert CliRunner().invoke(app, ["no-such-thing"]).exit_code == 2


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_list_says_what_the_command_says(name: str) -> None:
    assert load(name).get_short_help_str(200) == COMMANDS[name]
    listed = CliRunner().invoke(app, ["--help"]).stdout
    assert name in listed


def test_the_list_of_commands_loads_none_of_them() -> None:
    program = (
        "import sys\n"
        "sys.argv = ['fasti', '--help']\n"
        "from fasti.cli.main import app\n"
        "try:\n"
        "    app()\n"
        "except SystemExit:\n"
        "    pass\n"
        "assert 'pyarrow' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert 'fasti.cli.topics' not in sys.modules\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "redrive" in ran.stdout


@pytest.mark.parametrize(
    ("command", "folder"), [("bench", "benchmarks"), ("demo", "examples/demo")]
)
def test_without_a_checkout_one_line_says_how_to_get_it(
    command: str, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(all_commands, "CHECKOUT", tmp_path)
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == ERROR_EXITS["error"]
    assert result.stderr.splitlines() == [
        f"error error: `fasti {command}` needs a checkout of the repository, where it is in "
        f"{folder}/: clone it and run `make {command}` there"
    ]


def test_names_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_FASTI_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "fasti dead re")
    monkeypatch.setenv("COMP_CWORD", "2")
    result = CliRunner().invoke(app, [], prog_name="fasti")
    assert result.stdout.split() == ["redrive"]
    monkeypatch.setenv("COMP_WORDS", "fasti to")
    monkeypatch.setenv("COMP_CWORD", "1")
    result = CliRunner().invoke(app, [], prog_name="fasti")
    assert result.stdout.split() == ["topics", "token"]
