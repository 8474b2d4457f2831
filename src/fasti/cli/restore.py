"""`fasti restore`: a data directory from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasti.cli import output
from fasti.cli.options import JsonWithoutProgress
from fasti.cli.progress import progress


def restore(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="The backup.")],
    data: Annotated[
        Path, typer.Argument(metavar="DIR", help="The data directory to make; new, or empty.")
    ],
    as_json: JsonWithoutProgress = False,
) -> None:
    """Make a data directory from a backup.

    Checks every file, and that a broker can open the result. The directory begins a life of its own:
    positions of the change feed from before answer `gone`. The backup is not changed.
    """
    from fasti.storage.tools.restore import restore as restore_backup

    with progress("restore", wanted=not as_json, in_bytes=True) as report:
        done = restore_backup(backup, data, report)
    whole = f"{done.path}: {output.number(done.topics)} topics, {output.size(done.size_bytes)}, "
    text = (
        f"as of position {output.number(done.position)} of shard {done.shard}; it is shard "
        f"{done.new_shard} now"
    )
    if "," in done.shard:
        text = f"on {done.shard.count(',') + 1} shards, each of which begins a new life"
    text = f"{whole}{text}. `fasti serve --data {done.path}` serves it"
    output.print_result(done.to_dict(), text, as_json)
