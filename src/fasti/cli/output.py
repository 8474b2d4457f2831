"""How commands print: tables for people, JSON for programs. Every command prints through here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class _Console(Console):
    """A console that raises when its reader is gone, so that the root command picks the exit code."""

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the error."""
        raise BrokenPipeError


def console() -> Console:
    """Standard output, as wide as its terminal; made anew because tests replace the stream."""
    return _Console(highlight=False)


def print_json(value: Any) -> None:
    """One JSON document."""
    typer.echo(json.dumps(value, indent=2))


def print_json_lines(values: Iterable[Any]) -> None:
    """A JSON object on each line, for any number of them: each is printed when it is there."""
    for value in values:
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_result(result: Any, text: str, as_json: bool) -> None:
    """What a command did, as a sentence or as one JSON document."""
    if as_json:
        print_json(result)
    else:
        typer.echo(text)


def print_list(
    items: Sequence[T],
    as_json: bool,
    *,
    to_dict: Callable[[T], Any],
    columns: Sequence[str],
    row: Callable[[T], Sequence[object]],
    empty: str,
) -> None:
    """A table with a row for each item, or one JSON list; `empty` is said when there are none."""
    if as_json:
        print_json([to_dict(item) for item in items])
    elif not items:
        typer.echo(empty)
    else:
        print_table(*columns, rows=map(row, items))


def print_table(*columns: str, rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table of texts; a column whose name ends with `>` is right-aligned."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.endswith(">") else "left"
        table.add_column(column.removesuffix(">"), justify=justify, overflow="fold")
    for row in rows:
        # As plain texts: brackets in a payload are not markup.
        table.add_row(*(Text(number(c) if isinstance(c, int) else str(c)) for c in row))
    console().print(table)


def number(value: int) -> str:
    """With thousands apart."""
    return f"{value:,}"


def count_of(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def size(size_bytes: float) -> str:
    """Bytes for people."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("the last unit takes everything")
