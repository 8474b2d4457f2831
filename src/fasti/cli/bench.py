"""`fasti bench`: figures of this machine, beside its limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fasti.bench.run import run

app = typer.Typer(help="Measure Fasti on this machine, beside the machine's own limits.")

_PARTS = ["engine", "durable", "checkpoint", "pending"]


@app.callback()
def bench() -> None:
    """Measure Fasti on this machine, beside the machine's own limits."""


@app.command()
def engine(
    only: Annotated[
        list[str] | None, typer.Option(help=f"A part: {', '.join(_PARTS)}. May be repeated.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1_500_000, help="Messages, instead of each part's own number.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option(help="Where to write; by default the temporary directory.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="A table instead of JSON.")] = False,
) -> None:
    """Engine and storage in one process: speed, memory, opening after a kill."""
    parts = only or _PARTS
    for part in parts:
        if part not in _PARTS:
            raise typer.BadParameter(f"{part!r} is none of {', '.join(_PARTS)}")
    results = run(parts, directory, rows)
    if table:
        _print_table(results)
    else:
        typer.echo(json.dumps(results, indent=2))


def _print_table(results: dict[str, Any]) -> None:
    console = Console()
    for part, figures in results.items():
        drawn = Table("figure", "value", title=part, title_justify="left")
        for name, value in _flat(figures):
            drawn.add_row(name, f"{value:,}" if isinstance(value, int | float) else str(value))
        console.print(drawn)


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in figures.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows
