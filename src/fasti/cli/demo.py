"""`fasti demo`: see Fasti schedule, deliver, be killed and go on, and check what it promised."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fasti.cli import output
from fasti.cli.demo_facts import BARS_US, Lateness, Verdict
from fasti.cli.demo_story import Show, run
from fasti.cli.exits import FOUND_SOMETHING
from fasti.errors import AlreadyExists

_BAR_WIDTH = 48


def demo(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the data here; a new or empty directory."),
    ] = None,
    near: Annotated[int, typer.Option(min=10, help="Messages due while you watch.")] = 20_000,
    far: Annotated[int, typer.Option(min=10, help="Messages due in the next 30 days.")] = 100_000,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long the near ones last.")] = 4.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Schedule messages, consume them on time, kill the process in the middle, and go on.

    Everything that was promised is compared with what happened. Exits with 1 if a message was
    lost or misplaced, delivered early, or delivered after it was cancelled or acknowledged.
    """
    if data is not None and data.exists() and any(data.iterdir()):
        raise AlreadyExists(f"{data} is not empty: the demo wants a directory of its own")
    place = tempfile.TemporaryDirectory(prefix="fasti-demo-") if data is None else nullcontext(data)
    with place as directory, _showing() as show:
        verdict = run(Path(directory), near, far, seconds, show)
    if as_json:
        output.print_json(verdict.to_dict())
    else:
        _print(verdict, data)
    if not verdict.ok:
        raise typer.Exit(FOUND_SOMETHING)


@contextmanager
def _showing() -> Iterator[Show]:
    """A progress bar on a terminal, a line per phase elsewhere; on stderr, out of the way."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _plain(console)
        return
    columns = (TextColumn("{task.description:<30}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def show(phase: str, done: int, total: int) -> None:
            progress.update(task, description=phase, completed=done, total=total)

        yield show


def _plain(console: Console) -> Show:
    told: list[str] = []

    def show(phase: str, done: int, total: int) -> None:
        if not told or told[-1] != phase:
            told.append(phase)
            console.print(f"{phase} ...")

    return show


def _print(verdict: Verdict, data: Path | None) -> None:
    console = output.console()
    console.print(output.table("what happened", ">", rows=_course(verdict)))
    console.print(output.table("promise", "broken>", "", rows=_promises(verdict)))
    rows = [
        _lateness_row("before the kill", verdict.before),
        _lateness_row("waited for the start", verdict.outage),
        _lateness_row("due after the start", verdict.after),
    ]
    names = ("lateness in ms", "messages>", "earliest>", "p50>", "p95>", "p99>", "max>")
    console.print(output.table(*names, rows=rows))
    console.print("Lateness before the kill and after the start:")
    _print_bars(console, _histogram(verdict.up))
    console.print("\nWhat is coming, per day (UTC):")
    _print_bars(console, [(_day(start_us), count) for start_us, count in verdict.forecast])
    if data is not None:
        console.print(f"\nThe data is in {data}: try `fasti storage stats {data}`.")


def _course(verdict: Verdict) -> list[tuple[str, object]]:
    return [
        ("scheduled", verdict.scheduled),
        ("moved", verdict.moved),
        ("cancelled", verdict.cancelled),
        ("delivered", verdict.delivered),
        ("delivered again (not acked before the kill)", verdict.delivered_again),
        ("changes whose answer the kill took", verdict.unknown),
        ("without a shard, from kill to open", f"{verdict.outage_seconds:.2f} s"),
        ("opening the directory again took", f"{verdict.open_seconds:.3f} s"),
        ("closing it, with a checkpoint", f"{verdict.close_seconds:.3f} s"),
        ("size on disk, with spare segments", output.size(verdict.size_bytes)),
        *((f"{name} at the end", count) for name, count in verdict.states.items() if count),
        ("the whole run", f"{verdict.seconds:.1f} s"),
    ]


def _promises(verdict: Verdict) -> list[tuple[str, int, str]]:
    broken = {
        "nothing is lost": verdict.lost,
        "nothing pending stands at another time than promised": verdict.misplaced,
        "nothing is early": verdict.early,
        "nothing is delivered after its cancel was acknowledged": verdict.after_cancel,
        "nothing is delivered after its ack was acknowledged": verdict.after_ack,
    }
    return [(name, count, "BROKEN" if count else "kept") for name, count in broken.items()]


def _lateness_row(name: str, late: Lateness) -> tuple[object, ...]:
    values = (late.earliest_ms, late.p50_ms, late.p95_ms, late.p99_ms, late.max_ms)
    return (name, late.count, *(f"{value:.2f}" for value in values))


def _histogram(late: Lateness) -> list[tuple[str, int]]:
    names = [f"up to {end_us / 1000:g} ms" for end_us in BARS_US] + ["more"]
    last = max((place for place, count in enumerate(late.bars) if count), default=0)
    return list(zip(names, late.bars, strict=True))[: last + 1]


def _day(start_us: int) -> str:
    return datetime.fromtimestamp(start_us / 1e6, UTC).strftime("%a %m-%d")


def _print_bars(console: Console, bars: list[tuple[str, int]]) -> None:
    highest = max((count for _, count in bars), default=0) or 1
    for name, count in bars:
        bar = "█" * max(round(_BAR_WIDTH * count / highest), 1 if count else 0)
        console.print(f"{name:>16} {output.number(count):>7} {bar}")
