"""What runs found: one or several JSON files, medians and spreads, ratios within a run.

A ratio compares Fasti with a peer in the same round of the same run, never across runs, because a
machine is not the same machine an hour later. Several runs of the same source can be put together:
each has measured Fasti again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.percentiles import spread
from benchmarks.peers.registry import FASTI, PEERS
from benchmarks.peers.run import FORMAT
from benchmarks.peers.scenarios import SCENARIOS

Run = dict[str, Any]


class NotOneBuild(ValueError):
    """Runs of different sources don't belong on one page."""


@dataclass(frozen=True)
class Spread:
    """A median with the least and the greatest of its rounds."""

    median: float
    least: float
    greatest: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of nothing."""
        return cls(*spread(values), len(values)) if values else None


def load(paths: Iterable[Path]) -> list[Run]:
    """Runs of files; a file has one run, or several that were put together."""
    found: list[Run] = []
    for path in paths:
        content = json.loads(path.read_text())
        found += content.get("runs", [content])
    for run in found:
        if run.get("format") != FORMAT:
            raise ValueError(f"a run of {run.get('started')} has another format than {FORMAT}")
    if len({run["source"] for run in found}) > 1:
        sources = sorted({f"{run['source']} ({run['started']})" for run in found})
        raise NotOneBuild(f"the runs measured different builds of Fasti: {', '.join(sources)}")
    return found


class Results:
    """The cells of runs, by peer, scenario and figure."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self._cells: dict[tuple[str, str], list[tuple[int, int, dict[str, Any]]]] = {}
        for number, run in enumerate(self.runs):
            for cell in run["cells"]:
                key = (cell["peer"], cell["scenario"])
                self._cells.setdefault(key, []).append((number, cell["round"], cell["figures"]))

    def peers(self) -> list[str]:
        """Those that were measured, Fasti first."""
        measured = {peer for peer, _ in self._cells}
        return [name for name in PEERS if name in measured]

    def scenarios(self) -> list[str]:
        """Those that were measured, in the order of the page."""
        measured = {scenario for _, scenario in self._cells}
        return [name for name in SCENARIOS if name in measured]

    def measured(self, peer: str, scenario: str) -> bool:
        """Whether a run has tried it."""
        return (peer, scenario) in self._cells

    def value(self, peer: str, scenario: str, figure: str) -> Spread | None:
        """Over all rounds of all runs."""
        return Spread.of(list(self._values(peer, scenario, figure).values()))

    def ratio(self, peer: str, scenario: str, figure: str) -> Spread | None:
        """How many times Fasti is ahead of the peer, round by round: below 1, the peer is."""
        ours = self._values(FASTI, scenario, figure)
        theirs = self._values(peer, scenario, figure)
        less_is_better = SCENARIOS[scenario].figures[figure][1] == "less"
        found = []
        for key in ours.keys() & theirs.keys():
            above, below = ours[key], theirs[key]
            if less_is_better:
                above, below = below, above
            if below > 0:
                found.append(above / below)
        return Spread.of(found)

    def reason(self, peer: str, scenario: str) -> str | None:
        """Why there is no figure, if that is so."""
        cells = self._cells.get((peer, scenario), [])
        whys = [figures.get("cannot") or figures.get("failed") for _, _, figures in cells]
        return whys[0] if cells and all(whys) else None

    def reason_of(self, peer: str, scenario: str, figure: str) -> str | None:
        """The same for one figure: `move_cannot` stands for a missing `move_per_s`."""
        if (why := self.reason(peer, scenario)) is not None:
            return why
        word = figure.partition("_")[0] + "_cannot"
        for _, _, figures in self._cells.get((peer, scenario), []):
            if word in figures:
                return str(figures[word])
        return None

    def notes(self, peer: str, scenario: str) -> list[str]:
        """What must be said beside a figure."""
        cells = self._cells.get((peer, scenario), [])
        found = [figures["note"] for _, _, figures in cells if "note" in figures]
        broken = [figures["failed"] for _, _, figures in cells if "failed" in figures]
        if broken and len(broken) < len(cells):
            found.append(f"{len(broken)} of {len(cells)} rounds failed")
        return found[:1]

    def _values(self, peer: str, scenario: str, figure: str) -> dict[tuple[int, int], float]:
        return {
            (run, number): figures[figure]
            for run, number, figures in self._cells.get((peer, scenario), [])
            if figures.get(figure) is not None
        }
