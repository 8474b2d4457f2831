"""Bars of numbers in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fasti.cli import output

_EIGHTHS = " ▏▎▍▌▋▊▉"
_WIDTH_MIN = 10
_WIDTH_MAX = 60


def print_bars(console: Console, bars: Sequence[tuple[str, int]]) -> None:
    """A line for each: its name, its number, and a bar as long as the terminal has room for."""
    if not bars:
        return
    names = max(len(name) for name, _ in bars)
    highest = max(count for _, count in bars)
    numbers = len(output.number(highest))
    width = max(_WIDTH_MIN, min(_WIDTH_MAX, console.width - names - numbers - 3))
    for name, count in bars:
        line = Text(f"{name:>{names}} {output.number(count):>{numbers}} ")
        line.append(bar(count, highest, width), style="cyan")
        console.print(line, soft_wrap=True)


def bar(count: int, highest: int, width: int) -> str:
    """A bar in eighths of a cell; a count above 0 can always be seen."""
    if not count or not highest:
        return ""
    eighths = max(round(8 * width * count / highest), 1)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
