"""The entry point of the `fasti` command: it gathers the command groups and holds no logic."""

from importlib.metadata import version
from typing import Annotated

import typer

from fasti.cli import bench, demo, serve, storage, token
from fasti.cli.exits import ErrorsAsExits

app = typer.Typer(
    name="fasti",
    help="A persistent, time-ordered message queue.",
    no_args_is_help=True,
    cls=ErrorsAsExits,
)
app.add_typer(bench.app, name="bench")
app.add_typer(storage.app)
app.command()(demo.demo)
app.command("serve")(serve.serve)
app.add_typer(token.app)


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
