"""Progress of long work: a bar on a terminal, nothing elsewhere; always on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

# So many take less time than a bar to be seen.
_LITTLE = 5_000
# Tells how many more are done.
Advance = Callable[[int], None]


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """A bar for the time of the work, unless it is little; it goes when the work is done."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or (total is not None and total <= _LITTLE):
        yield lambda count: None
        return
    with Progress(*_columns(), console=console, transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda count: shown.update(task, advance=count)


@contextmanager
def progress_of_total(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for work that tells how much of how much is done; None where nobody sees it.

    To know how much, the work is counted first, which is spared then.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    with Progress(*_columns(), console=console, transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )


def counting(advance: Advance) -> Callable[[int, int], None]:
    """The SDK tells how many are done, the bar wants to know how many more."""
    done = 0

    def count(now_done: int, total: int) -> None:
        nonlocal done
        advance(now_done - done)
        done = now_done

    return count
