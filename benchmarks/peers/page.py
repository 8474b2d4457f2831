"""`docs/benchmarks.md` and its charts, made from what runs found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.charts import Bar, bar_chart, readable
from benchmarks.peers.goals import Goal, goals
from benchmarks.peers.registry import FASTI, PEERS
from benchmarks.peers.results import Results, Spread
from benchmarks.peers.scenarios import SCENARIOS, Scenario
from benchmarks.peers.server import ROOT

DOCS = ROOT / "docs"
PAGE = DOCS / "benchmarks.md"
CHARTS = DOCS / "benchmarks"
DATA = CHARTS / "results.json"

# What is drawn: scenario and figure.
_CHARTS = [
    ("send", "p50_ms"),
    ("due_now_500", "p99_ms"),
    ("change_one", "cancel_per_s"),
    ("change_many", "move_per_s"),
    ("consume_loop", "per_s"),
    ("instant", "max_ms"),
    ("schedule", "per_s"),
    ("lease_random", "per_s"),
    ("both", "per_s"),
    ("steady_10000_100000", "p99_ms"),
    ("memory", "memory_bytes_each"),
]
_ABOUT_EQUAL = 0.95
_NOTE = "<!-- Made by `fasti bench peers-page` from benchmarks/results.json; edit benchmarks/peers/page.py instead. -->"


def write(runs: list[dict[str, Any]]) -> None:
    """The page, the charts and the data that they are made from."""
    CHARTS.mkdir(exist_ok=True)
    DATA.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    results = Results(runs)
    for old in CHARTS.glob("*.svg"):
        old.unlink()
    for path, text in charts(results):
        path.write_text(text)
    PAGE.write_text(page(results))


def page(results: Results) -> str:
    """The page as text."""
    parts = [
        "# Fasti beside its peers",
        _NOTE,
        _INTRODUCTION,
        "## The goals",
        *_goals(results),
        "## Where a peer is ahead",
        *_behind(results),
        "## How it was taken",
        *_taken(results),
        "## Who was measured",
        *_who(results),
        "## The figures",
        _READING,
        *(text for name in results.scenarios() for text in _section(results, SCENARIOS[name])),
        "## Do it yourself",
        _YOURSELF,
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
What people use today to do something later, measured in the same run on the same machine with the same \
payloads (100 bytes), each by its own recommended Python client and with the settings that it is best \
with while it keeps its promise. What each is good at besides stands in [the comparison](comparison.md)."""

_READING = """\
A figure is the median of all rounds, with the least and the greatest of them in brackets. *Fasti ahead* \
is how many times better Fasti was than the peer in the same round of the same run; below 1 the peer is \
better, and it is in bold. Peers whose acknowledgement doesn't mean "on the disk" are marked with †."""

_YOURSELF = """\
```sh
make bench-peers-install                  # Debian's packages of the servers, the clients into .peers-venv
make bench-peers                          # all of it, three rounds; then this page
make bench-peers ARGS="--quick"           # a look, in about five minutes
fasti bench peers --only redis-always,postgresql --scenario send,consume_loop --rounds 5 --out a.json
fasti bench peers-page a.json b.json      # this page from several runs of the same build
```

The servers run on free ports of the loopback, in a temporary directory that is deleted afterwards; \
what is not installed is skipped and said. The last two goals take long and are \
measured with `--long`. Adding a peer is one file in `benchmarks/peers/adapters/` and an entry in \
`benchmarks/peers/registry.py`; why it is built so is in [decision 55](decisions/0055-peers.md)."""


# The goals


def _goals(results: Results) -> Iterator[str]:
    lines = goals(results)
    reached = sum(goal.reached is True for goal in lines)
    missed = sum(goal.reached is False for goal in lines)
    yield (
        f"{reached} of {len(lines)} reached, {missed} not, {len(lines) - reached - missed} not"
        " measured in this data."
    )
    rows = ["| | Fasti | asked | |", "| --- | ---: | ---: | --- |"]
    rows += [_goal_row(goal) for goal in lines]
    yield "\n".join(rows)


def _goal_row(goal: Goal) -> str:
    word = {True: "reached", False: "**not reached**", None: "not measured"}[goal.reached]
    sign = "≤" if goal.at_most else "≥"
    figure = "-" if goal.figure is None else f"{readable(goal.figure)} {goal.unit}"
    bound = "-" if goal.bound is None else f"{sign} {readable(goal.bound)} {goal.unit}"
    return f"| {goal.text} | {figure} | {bound} | {word} |"


def _behind(results: Results) -> Iterator[str]:
    lines = []
    for name in results.scenarios():
        scenario = SCENARIOS[name]
        for figure, (words, _) in scenario.figures.items():
            ratios = [
                (ratio.median, peer)
                for peer in results.peers()
                if peer != FASTI
                and (ratio := results.ratio(peer, name, figure)) is not None
                and 0 < ratio.median < _ABOUT_EQUAL
            ]
            ahead = [
                f"{_title(peer)} {1 / ratio:.2g} times"
                + (" (with fewer messages, see there)" if results.notes(peer, name) else "")
                for ratio, peer in sorted(ratios)
            ]
            if ahead:
                lines.append(f"- {scenario.title}, {words}: {'; '.join(ahead)}")
    if not lines:
        yield "Nowhere, in these scenarios and by more than a twentieth."
        return
    yield "By more than a twentieth, and by how much, the furthest ahead first:"
    yield "\n".join(lines)


# How, and who


def _taken(results: Results) -> Iterator[str]:
    first = results.runs[0]
    machine = first["machine"]
    rounds = [run["rounds"] for run in results.runs]
    quick = any(run["quick"] for run in results.runs)
    yield (
        f"Fasti {first['versions'].get(FASTI, '')}, commit {first['commit']} (source"
        f" {first['source']}), on {machine['cores']} cores and {machine['memory_gib']} GiB of"
        f" memory, from {first['started']} on. Runs: {len(results.runs)}, listed below, with at most"
        f" {max(rounds)} rounds each"
        + (", and the short times of `--quick`" if quick else "")
        + ". In each round all pairs of peer and scenario come in an order drawn from the seed, and a"
        " server that is not being measured is stopped by SIGSTOP. Every run measures Fasti again,"
        " and a ratio never compares two runs. Clients and servers share the two cores."
    )
    yield "\n".join(_runs_table(results))
    said = [f"- {run['started']}: {run['note']}" for run in results.runs if run.get("note")]
    if said:
        yield "\n".join(said)
    yield "The machine by itself, in the same runs:\n\n" + "\n".join(_limits_table(results))


def _runs_table(results: Results) -> Iterator[str]:
    yield "| run | seed | rounds | scenarios | measured | no time for | failed | load before |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |"
    for run in results.runs:
        names = sorted({cell["scenario"] for cell in run["cells"]}, key=list(SCENARIOS).index)
        failed = sum("failed" in cell["figures"] for cell in run["cells"])
        yield (
            f"| {run['started']} | {run['seed']} | {run['rounds']} | {', '.join(names)} |"
            f" {len(run['cells'])} | {run['left_out']} | {failed} | {run['machine']['load_before']} |"
        )


def _limits_table(results: Results) -> Iterator[str]:
    taken = [limits for run in results.runs for limits in run["limits"]]
    yield "| limit | p50 ms | p99 ms |"
    yield "| --- | ---: | ---: |"
    for words, values in (
        (
            "4 KiB append and fdatasync, preallocated file",
            [(each["disk"]["sync_p50_ms"], each["disk"]["sync_p99_ms"]) for each in taken],
        ),
        (
            "100 bytes to another thread and back, TCP on the loopback",
            [(each["loopback"]["p50_ms"], each["loopback"]["p99_ms"]) for each in taken],
        ),
    ):
        columns = [_spread_text(Spread.of(column)) for column in zip(*values, strict=True)]
        yield f"| {words} | {' | '.join(columns)} |"


def _who(results: Results) -> Iterator[str]:
    versions: dict[str, str] = {}
    skipped: dict[str, str] = {}
    clients: dict[str, str] = {}
    for run in results.runs:
        versions |= run["versions"]
        skipped |= run["skipped"]
        clients |= run["clients"]
    rows = ["| peer | server | client | acknowledged means | how a message waits |"]
    rows.append("| --- | --- | --- | --- | --- |")
    for name in results.peers():
        peer = PEERS[name]
        rows.append(
            f"| {_title(name)} | {versions.get(name, '')} | {peer.client} | {peer.durability} |"
            f" {peer.waits} |"
        )
    yield "\n".join(rows)
    if clients:
        known = ", ".join(f"{name} {version}" for name, version in sorted(clients.items()))
        yield f"Versions of the clients: {known}."
    left_out = {name: why for name, why in skipped.items() if name not in results.peers()}
    if left_out:
        yield "Not measured:\n\n" + "\n".join(
            f"- {PEERS[name].title}: {why}" for name, why in left_out.items()
        )


# The figures


def _section(results: Results, scenario: Scenario) -> Iterator[str]:
    yield f"### {scenario.title[0].upper()}{scenario.title[1:]}"
    drawn = [figure for name, figure in _CHARTS if name == scenario.name]
    for figure in drawn:
        if len(_bars(results, scenario.name, figure)) > 1:
            path = f"{CHARTS.name}/{_chart_name(scenario.name)}"
            yield f"![{scenario.title}, {scenario.figures[figure][0]}]({path})"
    if scenario.notes:
        yield scenario.notes
    yield "\n".join(_table(results, scenario))
    said = [
        f"- {_title(peer)}: {text}"
        for peer in results.peers()
        for text in [*_reasons(results, peer, scenario), *results.notes(peer, scenario.name)]
    ]
    absent = [
        _title(peer)
        for peer in results.peers()
        if scenario.is_for(PEERS[peer]) and not results.measured(peer, scenario.name)
    ]
    if absent:
        said.append(f"- not measured in this data: {'; '.join(absent)}")
    if said:
        yield "\n".join(said)


def _table(results: Results, scenario: Scenario) -> Iterator[str]:
    heads = [words for words, _ in scenario.figures.values()]
    alone = scenario.fasti_only
    ahead = [] if alone else [f"Fasti ahead, {words}" for words in heads]
    yield f"| | {' | '.join([*heads, *ahead])} |"
    yield f"| --- |{' ---: |' * len([*heads, *ahead])}"
    for peer in results.peers():
        if not results.measured(peer, scenario.name):
            continue
        columns = [
            _spread_text(results.value(peer, scenario.name, figure)) for figure in scenario.figures
        ]
        if not alone:
            columns += [
                "" if peer == FASTI else _ratio_text(results.ratio(peer, scenario.name, figure))
                for figure in scenario.figures
            ]
        yield f"| {_title(peer)} | {' | '.join(columns)} |"


def _reasons(results: Results, peer: str, scenario: Scenario) -> list[str]:
    found: list[str] = []
    for figure in scenario.figures:
        why = results.reason_of(peer, scenario.name, figure)
        if why is not None and results.value(peer, scenario.name, figure) is None:
            text = why.splitlines()[-1] if why.splitlines() else why
            if text not in found:
                found.append(text)
    return found


def _spread_text(found: Spread | None) -> str:
    if found is None:
        return "-"
    if found.rounds == 1 or found.least == found.greatest:
        return readable(found.median)
    return f"{readable(found.median)} ({readable(found.least)} to {readable(found.greatest)})"


def _ratio_text(found: Spread | None) -> str:
    if found is None:
        return "-"
    text = _spread_text(found)
    return f"**{text}**" if found.median < 1 else text


def _title(name: str) -> str:
    peer = PEERS[name]
    return peer.title if peer.durable else f"{peer.title} †"


# The charts


def charts(results: Results) -> Iterator[tuple[Path, str]]:
    """Each chart with its file."""
    for name, figure in _CHARTS:
        bars = _bars(results, name, figure)
        if len(bars) > 1:
            title, unit = SCENARIOS[name].title, SCENARIOS[name].figures[figure][0]
            yield CHARTS / _chart_name(name), bar_chart(title, unit, bars)


def _chart_name(scenario: str) -> str:
    return f"{scenario.replace('_', '-')}.svg"


def _bars(results: Results, name: str, figure: str) -> list[Bar]:
    if name not in results.scenarios():
        return []
    bars = []
    for peer in results.peers():
        found = results.value(peer, name, figure)
        if found is not None and found.median > 0:
            given = (found.median, found.least, found.greatest)
            bars.append(Bar(_title(peer), *given, ours=peer == FASTI))
    more = SCENARIOS[name].figures[figure][1] == "more"
    return sorted(bars, key=lambda bar: bar.value, reverse=more)
