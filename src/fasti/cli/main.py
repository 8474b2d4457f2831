"""The entry point of the `fasti` command: it gathers the command groups and holds no logic."""

from importlib.metadata import version
from typing import Annotated, ClassVar

import typer

from fasti.cli.lazy import Lazy, LazyGroup


class Commands(LazyGroup):
    """All commands: where each is, and the line that the list of them shows."""

    known: ClassVar[dict[str, Lazy]] = {
        "serve": Lazy(
            "serve", "Serve a data directory to clients until a signal ends it.", "serve"
        ),
        "run": Lazy("run", "Run the handlers of an app until SIGTERM or Ctrl-C.", "run"),
        "produce": Lazy("produce", "Put messages into a topic, due now or at a time.", "produce"),
        "consume": Lazy(
            "consume",
            "Print what is ready, acknowledge it, and end; with `-f` go on until Ctrl-C.",
            "consume",
        ),
        "call": Lazy("call", "Send a request and print its answer.", "call"),
        "forecast": Lazy(
            "forecast",
            "How many messages fall due when: a bar for each hour, or as long as you like.",
            "forecast",
        ),
        "demo": Lazy(
            "command",
            "See a broker deliver on time, be killed in the middle, and lose nothing.",
            "demo",
            checkout="examples/demo",
        ),
        "topics": Lazy("topics", "Create topics, look at them, change and delete them."),
        "messages": Lazy("messages", "Look at what is pending, and change it."),
        "consumers": Lazy("consumers", "Who takes messages, and what each has; take it back."),
        "clock": Lazy(
            "clock", "The broker's clock, and its machine's: compare them, accept a leap."
        ),
        "dead": Lazy("dead", "Messages that failed for good: list, count, redrive, purge."),
        "log": Lazy("log", "Logs: where they begin and end, their rows."),
        "groups": Lazy("groups", "Consumer groups of logs: list, create, reset and delete them."),
        "kv": Lazy("kv", "Key-value topics: the latest value of each key."),
        "bindings": Lazy(
            "bindings", "Have what one topic gets go to others too, by the messages' subjects."
        ),
        "schedules": Lazy(
            "schedules",
            "Schedules of cron topics: list, create, preview, pause, run and delete them.",
        ),
        "changes": Lazy(
            "changes",
            "Print every transition of every message, in order; with `-f` go on until Ctrl-C.",
            "changes",
        ),
        "sinks": Lazy("sinks", "Sinks: who writes batches that happen once, and how far they are."),
        "pipeline": Lazy(
            "pipeline", "Tables, figures, an audit and a page of everything that happened."
        ),
        "backup": Lazy(
            "backup", "Copy all that a broker holds into a directory, while it runs.", "backup"
        ),
        "restore": Lazy("restore", "Make a data directory from a backup.", "restore"),
        "storage": Lazy("storage", "Look into a data directory, and repair it."),
        "token": Lazy("token", "Create, list and revoke the tokens of a broker."),
        "bench": Lazy(
            "command",
            "Measure Fasti on this machine, beside the machine's own limits.",
            checkout="benchmarks",
        ),
    }


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
