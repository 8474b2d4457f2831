"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class _Console(Console):
    """A console that leaves a broken pipe to whoever ends the command."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output, as wide as its terminal; made anew because tests replace the stream."""
    return _Console(highlight=False)


def print_json(value: Any) -> None:
    """One JSON document."""
    typer.echo(json.dumps(value, indent=2))


def print_json_lines(values: Iterable[Any]) -> None:
    """A JSON object on each line, for what may be any number: each is printed when it is there."""
    for value in values:
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def table(*columns: str, rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A table of texts; a column whose name ends with `>` is right-aligned."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.endswith(">") else "left"
        made.add_column(column.removesuffix(">"), justify=justify, overflow="fold")
    for row in rows:
        # As plain texts: brackets in somebody's payload are no markup.
        made.add_row(*(Text(number(c) if isinstance(c, int) else str(c)) for c in row))
    return made


def number(value: int) -> str:
    """With thousands apart."""
    return f"{value:,}"


def size(size_bytes: float) -> str:
    """Bytes for people."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("the last unit takes everything")
