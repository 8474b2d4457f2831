"""`fasti pipeline user`: a pipeline of one's own, from a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fasti.cli import output
from fasti.cli.connection import Place, with_place_instead
from fasti.cli.options import AsJson
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from fasti.pipeline.user_stage import StepRun


@with_place_instead
def user(
    place: Place,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:PIPELINE",
            help="Where the pipeline is, as in `shop.reminders:pipeline`.",
            show_default=False,
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Do what there is to do, and end.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="A step. May be repeated; by default all.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            "-d",
            help="Where checkpoints and tables lie; by default where the pipeline says, or "
            "./fasti-pipelines.",
        ),
    ] = None,
    master: Annotated[
        str,
        typer.Option(
            envvar="FASTI_SPARK_MASTER",
            metavar="MASTER",
            help="Where Spark runs: local[*], spark://host:7077 ... Not through Spark Connect.",
        ),
    ] = "local[*]",
    as_json: AsJson = False,
) -> None:
    """Run the steps of a pipeline of your own until Ctrl-C, or once.

    Kill it at any point and start it again: it goes on where it was.

    [dim]fasti pipeline user shop.reminders:pipeline --once[/dim]
    """
    from fasti.app.loading import load_object
    from fasti.pipeline import local, shared

    local.require()
    if local.through_connect(master):
        raise InvalidArgument(shared.NO_CONNECT, field="master")
    from fasti.pipeline.lake import Lake
    from fasti.pipeline.user import Pipeline

    pipeline = load_object(reference, Pipeline, "pipeline", "fasti.pipeline.Pipeline")
    trust = zip(("tls_ca", "tls_client_cert"), place.files(), strict=True)
    for name, value in (("token", place.token), *trust):
        if value is not None:
            setattr(pipeline, name, value)
    address = place.address or None
    settled = pipeline.place(address, directory)
    local.checked_address(settled.address)
    # Spark's own words go to a file beside the checkpoints.
    with local.session(Lake(settled.directory / pipeline.name), master) as spark:
        with _bars([step.name for step in pipeline.steps]) as report:
            steps = pipeline.run(
                spark,
                once=once,
                only=only or (),
                address=address,
                directory=directory,
                progress=report,
            )
    if as_json:
        output.print_json([asdict(step) for step in steps])
        return
    for step in steps:
        typer.echo(f"{step.step}: {step.batches:,} batches, {step.rows:,} rows, {step.seconds} s")


@contextmanager
def _bars(names: list[str]) -> Iterator[Callable[[StepRun], None]]:
    """What each step has done so far, on a terminal."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[counts]}"), console=console) as bars:
        tasks = {name: bars.add_task(name, total=None, counts="") for name in names}

        def report(step: StepRun) -> None:
            counts = f"{step.batches:,} batches, {step.rows:,} rows"
            bars.update(tasks[step.step], counts=counts)

        yield report
