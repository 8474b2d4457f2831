"""Commands that are loaded when they are called: help and `fasti serve` don't wait for the others.

The root knows of each command its name and one line of help; its module is imported when the
command is called, its help is asked for, or its arguments are completed. For the list of all
commands the lines are enough, and a test compares them with what the modules say.

Benchmarks and the demo live in the repository beside `src` and are not installed with the package:
their commands are loaded from a checkout, and elsewhere say how to get one.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from fasti.cli.exits import ErrorsAsExits
from fasti.errors import FastiError

CHECKOUT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is: `app` of the module is a group, a function is a command.

    `checkout` is the folder of the repository that the module is in, if it isn't in `fasti.cli`.
    """

    module: str
    help: str
    name: str = "app"
    checkout: str = ""

    def load(self, command: str) -> Any:
        """The command itself."""
        if self.checkout:
            open_checkout(self.checkout, command)
        package = self.checkout.replace("/", ".") or "fasti.cli"
        declared = getattr(import_module(f"{package}.{self.module}"), self.name)
        if isinstance(declared, typer.Typer):
            # Also of a single command: it stays below the group's name.
            loaded: Any = get_group(declared)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
            alone.command(command)(declared)
            loaded = get_command(alone)
        loaded.name = command
        return loaded

    def summary(self, command: str) -> Any:
        """As much of it as a list of commands shows."""
        return TyperCommand(command, help=self.help, short_help=self.help)


def open_checkout(folder: str, command: str) -> None:
    """Lets this process and its children import what is in a folder of the repository."""
    if not (CHECKOUT / folder).is_dir():
        raise FastiError(
            f"`fasti {command}` needs a checkout of the repository, where it is in {folder}/: "
            f"clone it and run `make {command}` there"
        )
    root = str(CHECKOUT)
    if root not in sys.path:
        sys.path.insert(0, root)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, *paths]))


class LazyGroup(ErrorsAsExits):
    """The root of all commands. `known` are those that are loaded when they are needed."""

    known: ClassVar[dict[str, Lazy]] = {}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._only_names = False

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order in which they are declared."""
        return [*self.known, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, loaded; where only names are shown, its name and its line."""
        lazy = self.known.get(cmd_name)
        if lazy is None:
            return super().get_command(ctx, cmd_name)
        return lazy.summary(cmd_name) if self._only_names else lazy.load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of all commands loads none of them."""
        self._only_names = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._only_names = False

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Nor does completing their names."""
        self._only_names = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._only_names = False
