"""The entry point of the `fasti` command: it gathers the command groups and holds no logic."""

from importlib.metadata import version
from typing import Annotated

import typer

from fasti.cli import (
    bench,
    bindings,
    consume,
    dead,
    demo,
    forecast,
    groups,
    kv,
    log,
    messages,
    produce,
    run,
    serve,
    storage,
    token,
    topics,
)
from fasti.cli.exits import ErrorsAsExits

app = typer.Typer(
    name="fasti",
    help="A persistent, time-ordered message queue.",
    no_args_is_help=True,
    cls=ErrorsAsExits,
)
app.command("serve")(serve.serve)
app.command("run")(run.run)
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(forecast.forecast)
app.command()(demo.demo)
app.add_typer(topics.app)
app.add_typer(messages.app)
app.add_typer(dead.app)
app.add_typer(log.app)
app.add_typer(groups.app)
app.add_typer(kv.app)
app.add_typer(bindings.app)
app.add_typer(storage.app)
app.add_typer(token.app)
app.add_typer(bench.app, name="bench")


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
