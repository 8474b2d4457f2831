"""What `fasti bench peers` and `fasti bench peers-page` do between their options and their output."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers.charts import readable
from benchmarks.peers.page import DATA, PAGE, write
from benchmarks.peers.registry import FASTI, PEERS
from benchmarks.peers.results import NotOneBuild, Results, Spread, load
from benchmarks.peers.run import chosen, plan, run
from benchmarks.peers.scenarios import SCENARIOS

_OUT = "fasti-peers.json"


def checked(only: str, scenario: str) -> tuple[list[str], list[str]]:
    """The names that were given, or an error that says which there are."""
    return _names(only, PEERS, "--only"), _names(scenario, SCENARIOS, "--scenario")


def _names(text: str, known: dict[str, Any], option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise typer.BadParameter(
                f"{name!r} is not one of {', '.join(known)}", param_hint=option
            )
    return names


@dataclass(frozen=True)
class PeersRun:
    """One run, as the options ask for it."""

    names: Sequence[str]
    scenarios: Sequence[str]
    rounds: int
    quick: bool
    long: bool

    def total(self) -> int:
        """How many steps it has."""
        names = [FASTI, *(name for name in self.names or PEERS if name != FASTI)]
        present = [name for name in names if PEERS[name].missing() is None]
        cells = plan(present, chosen(self.scenarios, self.quick, self.long), self.rounds, 0)
        return len(cells) + self.rounds

    def out(self, out: Path | None) -> Path:
        """Where the results go."""
        return out or Path(tempfile.gettempdir()) / _OUT

    def measure(
        self,
        seed: int | None,
        minutes: float | None,
        directory: Path | None,
        out: Path | None,
        show: Callable[[str], None],
    ) -> dict[str, Any]:
        """The run; what there is lies in the file after every measurement."""
        seed = secrets.randbelow(2**31) if seed is None else seed
        path = self.out(out)
        typer.echo(f"seed {seed}; results go to {path}", err=True)

        def keep(found: dict[str, Any]) -> None:
            beside = path.with_name(f"{path.name}.new")
            beside.write_text(json.dumps(found, indent=1) + "\n")
            os.replace(beside, path)

        return run(
            self.names,
            self.scenarios,
            self.rounds,
            seed=seed,
            quick=self.quick,
            long=self.long,
            directory=directory,
            show=show,
            seconds_max=None if minutes is None else 60 * minutes,
            keep=keep,
        )


def write_page(files: Sequence[Path]) -> None:
    """From these files, or anew from the data of the page."""
    try:
        runs = load(files or [DATA])
    except NotOneBuild as error:
        raise typer.BadParameter(str(error)) from None
    write(runs)
    typer.echo(f"written: {PAGE}", err=True)


def print_tables(found: dict[str, Any]) -> None:
    """A table for each scenario: peers down, figures across."""
    console = Console(highlight=False)
    results = Results([found])
    for name, why in found["skipped"].items():
        console.print(f"skipped: {PEERS[name].title}: {why}")
    for name in results.scenarios():
        scenario = SCENARIOS[name]
        heads = [words for words, _ in scenario.figures.values()]
        table = Table("peer", *heads, "Fasti ahead", title=scenario.title, title_justify="left")
        for peer in results.peers():
            cells = [_text(results.value(peer, name, figure)) for figure in scenario.figures]
            first = next(iter(scenario.figures))
            ahead = "" if peer == FASTI else _text(results.ratio(peer, name, first))
            table.add_row(PEERS[peer].title, *cells, ahead)
        console.print(table)
        for peer in results.peers():
            for text in filter(None, [results.reason(peer, name), *results.notes(peer, name)]):
                console.print(f"  {PEERS[peer].title}: {text.splitlines()[-1]}")


def _text(found: Spread | None) -> str:
    if found is None:
        return "-"
    if found.rounds == 1:
        return readable(found.median)
    return f"{readable(found.median)} ({readable(found.least)}-{readable(found.greatest)})"
