"""`fasti backup`: all that a broker holds, into a directory of this machine, while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasti.cli import output
from fasti.cli.connection import Place, with_place
from fasti.cli.exits import fail_unless
from fasti.cli.options import JsonWithoutProgress, size
from fasti.cli.progress import progress


@with_place
def backup(
    place: Place,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Where to: a new directory, or one with an older backup of the same broker, which "
            "then gets only what is new.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Back up this data directory, which no broker has open, instead of asking one.",
        ),
    ] = None,
    rate: Annotated[
        int | None, size("At most so much per second, such as 20MiB; the broker has a limit.")
    ] = None,
    as_json: JsonWithoutProgress = False,
) -> None:
    """Copy all that a broker holds into a directory, while it runs.

    Everything that was acknowledged before it began is in it, transactions whole. `fasti restore`
    makes a data directory of it. If it is interrupted, run it again: it goes on where it was.
    """
    with progress("backup", wanted=not as_json, in_bytes=True) as report:
        if data is not None:
            from fasti.storage.tools.backup import back_up_directory

            done = back_up_directory(data, directory, report)
        else:
            with place.client() as client:
                done = client.backup(directory, progress=report, rate=rate or 0)
    what = f"{len(done.shards)} shards"
    if not done.shards:
        what = f"shard {done.shard} at position {output.number(done.position)}"
    text = (
        f"{done.path}: a backup of {what}, "
        f"{output.number(done.files)} files with {output.size(done.size_bytes)}, of which "
        f"{output.size(done.copied_bytes)} came now; checksums verified"
    )
    output.print_result(done.to_dict(), text, as_json)
    if done.damaged:
        names = ", ".join(done.damaged)
        typer.echo(f"damaged at their source, and copied as they are: {names}", err=True)
    fail_unless(not done.damaged)
