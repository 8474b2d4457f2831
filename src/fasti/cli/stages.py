"""How runs of the pipeline are shown: bars on a terminal, a line per stage elsewhere; and figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from fasti.cli import output

if TYPE_CHECKING:
    import pyarrow as pa

    from fasti.pipeline import runner
    from fasti.pipeline.lake import Lake

Report = Callable[["runner.Progress"], None]

# What a column takes at least, and a terminal has.
_COLUMN_WIDTH, _WIDTH_MIN = 7, 80


@contextmanager
def shown_stages() -> Iterator[Report]:
    """On stderr, for the time of a run."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda progress: _print_line(console, progress)
        return
    columns = (
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description:<8}"),
        BarColumn(),
        TextColumn("{task.fields[rows]:>14}"),
        TextColumn("{task.fields[lasted]:>8}"),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def show(progress: runner.Progress) -> None:
            stage, done = progress.stage, progress.done
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, rows="", lasted="", total=None)
            bars.update(
                tasks[stage],
                completed=done if progress.total else int(progress.ended),
                total=progress.total or (1 if progress.ended else None),
                rows=f"{done:,} rows" if done else "",
                lasted=f"{progress.seconds:.1f} s",
            )

        yield show


def _print_line(console: Console, progress: runner.Progress) -> None:
    if progress.ended:
        console.print(f"{progress.stage}: {progress.done:,} in {progress.seconds:.1f} s")


def print_figures(figures: dict[str, Any]) -> None:
    """The figures at the top of the report, in a few lines and the same words."""
    from fasti.pipeline.charts import length, moment

    lost = figures["lost"] if figures["audited"] else "not audited"
    rows: list[tuple[str, object]] = [
        ("delivered", figures["delivered"]),
        ("p50 / p99 lateness", f"{length(figures['p50_us'])} / {length(figures['p99_us'])}"),
        ("early", figures["early"]),
        ("lost", lost),
        ("findings of the audit", figures["findings"] if figures["audited"] else "not audited"),
        ("backlog", figures["backlog"]),
    ]
    if figures["next_peak_us"] is not None:
        when = moment(figures["next_peak_us"])
        rows.append(("next peak", f"{figures['next_peak_messages']:,} in the hour from {when}"))
    output.print_table("figure", ">", rows=rows)


def print_findings(lake: Lake, findings: list[dict[str, Any]], count: int, as_json: bool) -> None:
    """The first findings of the audit, and how many there are."""
    from fasti.pipeline.state import LakeState

    state = LakeState.of(lake)
    if as_json:
        result = {"findings": findings, "count": count, "transitions": state.transitions}
        output.print_json({**result, "compared": state.compared, "position": state.audit})
        return
    scope = f"{state.transitions:,} transitions looked at"
    if state.compared:
        scope += f"; the broker's counts of {len(state.compared)} topics compared"
    if not count:
        typer.echo(f"No findings: {scope}.")
        return
    rows = [
        (row["kind"], row["topic"] or "-", "-" if row["id"] is None else row["id"], row["what"])
        for row in findings
    ]
    output.print_table("kind", "topic", "id>", "what", rows=rows)
    typer.echo(f"{output.count_of(count, 'finding')}: {scope}.")


def print_rows(table: pa.Table, as_json: bool) -> None:
    """Rows of a table of the lake; where there are too many columns to stand side by side, each row
    by itself, with what it has.
    """
    rows = table.to_pylist()
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row, default=_plain_value, ensure_ascii=False) + "\n")
        return
    if _COLUMN_WIDTH * table.num_columns > max(output.console().width, _WIDTH_MIN):
        for number, row in enumerate(rows, 1):
            fields = [(name, _cell(value)) for name, value in row.items() if value is not None]
            output.print_table(f"row {number}", "", rows=fields)
        return
    cells = [[_cell(value) for value in row.values()] for row in rows]
    output.print_table(*table.column_names, rows=cells)


def _plain_value(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _cell(value: Any) -> object:
    if isinstance(value, datetime):
        exact = "milliseconds" if value.microsecond else "seconds"
        return value.isoformat(sep=" ", timespec=exact).removesuffix("+00:00")
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
