"""Progress of long work: a bar on a terminal, nothing elsewhere; always on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

# Work on so few messages is over before a bar can be seen.
LITTLE = 5_000
# How much is done, and of how much where that is known.
Report = Callable[[int, int | None], None]


@contextmanager
def progress(what: str, *, wanted: bool = True, in_bytes: bool = False) -> Iterator[Report | None]:
    """A bar for the time of the work, which disappears at its end; None where there is no terminal.

    None lets the work save counting how much there is to do.
    """
    console = Console(stderr=True, highlight=False)
    if not wanted or not console.is_terminal:
        yield None
        return
    amount = (
        (DownloadColumn(binary_units=True),)
        if in_bytes
        else (MofNCompleteColumn(), TimeRemainingColumn())
    )
    columns = (TextColumn("{task.description}"), BarColumn(), *amount)
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
