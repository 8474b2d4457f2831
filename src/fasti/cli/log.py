"""`fasti log`: look at logs, read them, and drop what is old."""

from __future__ import annotations

import itertools
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import moments, options, output
from fasti.cli.commands import group
from fasti.cli.connection import Client, Topic, with_client
from fasti.cli.exits import terminated_softly
from fasti.cli.options import AsJson, Partition, Yes, confirm
from fasti.cli.templates import LOG_FIELDS, format_option, log_form

if TYPE_CHECKING:
    from fasti.client.log import LogPartition

app = group("log")


@app.command()
@with_client
def describe(client: Client, topic: Topic, as_json: AsJson = False) -> None:
    """Where each partition of a log begins and ends, and how much it has."""
    _print_partitions(topic, client.log(topic).describe(), as_json)


@app.command()
@with_client
def read(
    client: Client,
    topic: Topic,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, or a time: 2026-12-24T18:00+01:00, -1h.",
        ),
    ] = "earliest",
    partition: Partition = None,
    follow: Annotated[bool, options.follow("Go on with what is appended later.")] = False,
    count: options.Count = None,
    timeout: Annotated[
        timedelta | None, options.duration("With -f: end when nothing has come for so long.")
    ] = None,
    template: Annotated[str, format_option(LOG_FIELDS)] = "text",
    as_json: options.JsonLines = False,
) -> None:
    """Print the rows of a log in the order of their offsets; with `-f` go on until Ctrl-C.

    [dim]fasti log read events --from latest -f[/dim]

    [dim]fasti log read events -p 0 --from 1000 -n 10 --format '{offset} {key}: {payload}'[/dim]
    """
    place = moments.log_place(start, "--from")
    line_of = log_form("json" if as_json else template, terminal=sys.stdout.isatty())
    out = sys.stdout.buffer
    with (
        terminated_softly(),
        client.reader(
            topic, start=place, partition=partition, follow=follow, timeout=timeout
        ) as reader,
    ):
        for message in itertools.islice(reader, count):
            out.write(line_of(message))
            if follow:
                out.flush()
        out.flush()


@app.command()
@with_client
def truncate(
    client: Client,
    topic: Topic,
    before: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Drop what is below: an offset, a time (2026-12-24T18:00+01:00, -7d), or `end`.",
        ),
    ],
    partition: Partition = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop the rows of a log below an offset, or older than a time, for good.

    [dim]fasti log truncate events --before -7d[/dim]
    """
    below = moments.log_place(before, "--before")
    if below == "earliest":
        raise typer.BadParameter("nothing lies before the earliest row", param_hint="--before")
    where = "all partitions" if partition is None else f"partition {partition}"
    confirm(f"Drop rows of {topic} ({where}) for good?", yes)
    place: Any = "end" if below == "latest" else below
    _print_partitions(topic, client.log(topic).truncate(place, partition=partition), as_json)


def _print_partitions(topic: str, partitions: list[LogPartition], as_json: bool) -> None:
    fields = ("partition", "earliest", "end", "rows", "bytes", "segments")
    rows = [{name: getattr(partition, name) for name in fields} for partition in partitions]
    if as_json:
        output.print_json({"topic": topic, "partitions": rows})
        return
    cells = [(row | {"bytes": output.size(row["bytes"])}).values() for row in rows]
    output.print_table(
        "partition>", "earliest>", "end>", "rows>", "size>", "segments>", rows=map(tuple, cells)
    )
