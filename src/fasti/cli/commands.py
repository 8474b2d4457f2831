"""All commands of `fasti`: their names, the line of help that the list shows, how they are loaded.

A command's module is imported when the command is called, its help is asked for, or its arguments
are completed; help and `fasti serve` don't wait for the others. For the list of all commands the
lines are enough, and a test compares them with what the modules say.

Benchmarks and the demo live in the repository beside `src` and are not installed with the package:
their commands are loaded from a checkout, and elsewhere say how to get one.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from fasti.cli.exits import ErrorsAsExits
from fasti.errors import FastiError

# Each is `app` in the module of its name, a group, or a function of its name.
COMMANDS = {
    "serve": "Serve a data directory to clients until a signal ends it.",
    "cluster": "Brokers that take over from each other: how they are, and all of them on this machine.",
    "run": "Run the handlers of an app until SIGTERM or Ctrl-C.",
    "produce": "Put messages into a topic, due now or at a time.",
    "consume": "Print what is ready, acknowledge it, and end; with `-f` go on until Ctrl-C.",
    "call": "Send a request and print its answer.",
    "forecast": "How many messages fall due when: a bar for each hour, or as long as you like.",
    "demo": "See a broker deliver on time, be killed in the middle, and lose nothing.",
    "topics": "Create topics, look at them, change and delete them.",
    "messages": "Look at what is pending, and change it.",
    "consumers": "Who takes messages, and what each has; take it back.",
    "clock": "The broker's clock, and its machine's: compare them, accept a leap.",
    "dead": "Messages that failed for good: list, count, redrive, purge.",
    "log": "Logs: where they begin and end, their rows.",
    "groups": "Consumer groups of logs: list, create, reset and delete them.",
    "kv": "Key-value topics: the latest value of each key.",
    "bindings": "Have what one topic gets go to others too, by the messages' subjects.",
    "schedules": "Schedules of cron topics: list, create, preview, pause, run and delete them.",
    "changes": "Print every transition of every message, in order; with `-f` go on until Ctrl-C.",
    "sinks": "Sinks: who writes batches that happen once, and how far they are.",
    "pipeline": "Tables, figures, an audit and a page of everything that happened.",
    "backup": "Copy all that a broker holds into a directory, while it runs.",
    "restore": "Make a data directory from a backup.",
    "storage": "Look into a data directory, and repair it.",
    "token": "Create, list and revoke the tokens of a broker.",
    "bench": "Measure Fasti on this machine, beside the machine's own limits.",
}
CHECKOUT = Path(__file__).parents[3]
# Those whose module is `command` in a folder of the repository.
_FOLDERS = {"demo": "examples/demo", "bench": "benchmarks"}


def load(command: str) -> Any:
    """The command itself, as click knows it."""
    folder = _FOLDERS.get(command, "")
    if folder:
        open_checkout(folder, command)
    place = f"{folder.replace('/', '.')}.command" if folder else f"fasti.cli.{command}"
    module = import_module(place)
    app = getattr(module, "app", None)
    if app is None:
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(command)(getattr(module, command))
        loaded: Any = get_command(alone)
    else:
        # A group of a single command is a group all the same.
        loaded = get_group(app)
    loaded.name = command
    return loaded


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


def group(name: str, default: str = "") -> typer.Typer:
    """For the module of a group: the command `default` is meant where none is named."""
    if not default:
        return typer.Typer(name=name, help=COMMANDS[name], no_args_is_help=True)
    cls = type("WithDefault", (_DefaultCommand,), {"default": default})
    return typer.Typer(name=name, help=f"{COMMANDS[name]} `{default}` may be left out.", cls=cls)


class _DefaultCommand(TyperGroup):
    default: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the command in, unless one is named or help is asked for."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


class Commands(ErrorsAsExits):
    """The root of all commands, which are loaded when they are needed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._only_names = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, loaded; where only names are shown, its name and its line."""
        if cmd_name not in COMMANDS:
            return None
        if self._only_names:
            line = COMMANDS[cmd_name]
            return TyperCommand(cmd_name, help=line, short_help=line)
        return load(cmd_name)

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
