"""Bars: as long as their numbers, and never wider than the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fasti.cli.bars import bar, print_bars


def test_a_bar_is_as_long_as_its_number() -> None:
    assert bar(10, 10, 20) == "█" * 20
    assert bar(5, 10, 20) == "█" * 10
    assert bar(0, 10, 20) == ""
    assert bar(1, 1_000_000, 20) == "▏"


@pytest.mark.parametrize("width", [30, 80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    out = io.StringIO()
    print_bars(Console(file=out, width=width), [("00:00", 12_345), ("01:00", 1), ("02:00", 0)])
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("00:00 12,345 █")
    assert lines[2].rstrip() == "02:00      0"
