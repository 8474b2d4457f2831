"""The entry point of the `fasti` command."""

from importlib.metadata import version
from typing import Annotated

import typer

from fasti.cli.commands import Commands

app = typer.Typer(
    name="fasti",
    help="A persistent, time-ordered message queue.",
    no_args_is_help=True,
    cls=Commands,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fasti {version('fasti')}")
        raise typer.Exit


@app.callback()
def fasti(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """A persistent, time-ordered message queue."""
