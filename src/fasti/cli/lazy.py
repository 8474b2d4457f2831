"""Commands that are loaded when they are called: help and `fasti serve` don't wait for the others.

The root knows of each command its name and one line of help; its module is imported when somebody
calls it, asks for its help, or completes its arguments. For the list of all commands the lines are
enough, and a test compares them with what the modules say.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from fasti.cli.exits import ErrorsAsExits


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is: `app` of the module is a group, a function is a command."""

    module: str
    help: str
    name: str = "app"

    def load(self, command: str) -> Any:
        """The command itself."""
        found = getattr(import_module(f"fasti.cli.{self.module}"), self.name)
        if isinstance(found, typer.Typer):
            # Also of a single command: it stays below the group's name.
            made: Any = get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
            alone.command(command)(found)
            made = get_command(alone)
        made.name = command
        return made

    def named(self, command: str) -> Any:
        """As much of it as a list of commands shows."""
        return TyperCommand(command, help=self.help, short_help=self.help)


class LazyGroup(ErrorsAsExits):
    """The root of all commands. `known` are those that are loaded when they are needed."""

    known: ClassVar[dict[str, Lazy]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._only_names = False

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order in which they are declared."""
        return [*self.known, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, loaded; where only names are shown, its name and its line."""
        lazy = self.known.get(cmd_name)
        if lazy is None:
            return super().get_command(ctx, cmd_name)
        return lazy.named(cmd_name) if self._only_names else lazy.load(cmd_name)

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
