"""How runs of the pipeline are shown: bars on a terminal, a line per stage elsewhere; and figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

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
        yield lambda told: _plain(console, told)
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

        def show(told: runner.Progress) -> None:
            if told.stage not in tasks:
                tasks[told.stage] = bars.add_task(told.stage, rows="", lasted="", total=None)
            bars.update(
                tasks[told.stage],
                completed=told.done if told.total else int(told.ended),
                total=told.total or (1 if told.ended else None),
                rows=f"{told.done:,} rows" if told.done else "",
                lasted=f"{told.seconds:.1f} s",
            )

        yield show


def _plain(console: Console, told: runner.Progress) -> None:
    if told.ended:
        console.print(f"{told.stage}: {told.done:,} in {told.seconds:.1f} s")


def print_figures(told: dict[str, Any]) -> None:
    """The figures at the top of the report, in a few lines and the same words."""
    from fasti.pipeline.charts import length, moment

    lost = told["lost"] if told["audited"] else "not audited"
    rows: list[tuple[str, object]] = [
        ("delivered", told["delivered"]),
        ("p50 / p99 lateness", f"{length(told['p50_us'])} / {length(told['p99_us'])}"),
        ("early", told["early"]),
        ("lost", lost),
        ("findings of the audit", told["findings"] if told["audited"] else "not audited"),
        ("backlog", told["backlog"]),
    ]
    if told["next_peak_us"] is not None:
        when = moment(told["next_peak_us"])
        rows.append(("next peak", f"{told['next_peak_messages']:,} in the hour from {when}"))
    output.console().print(output.table("figure", ">", rows=rows))


def print_findings(lake: Lake, found: list[dict[str, Any]], count: int, as_json: bool) -> None:
    """What the audit found."""
    from fasti.pipeline.state import State

    state = State.of(lake)
    if as_json:
        told = {"findings": found, "count": count, "transitions": state.transitions}
        output.print_json({**told, "compared": state.compared, "position": state.audit})
        return
    console = output.console()
    looked = f"{state.transitions:,} transitions looked at"
    compared = f"; the broker's counts of {len(state.compared)} topics compared"
    if not count:
        console.print(f"No findings: {looked}{compared if state.compared else ''}.")
        return
    rows = [
        (row["kind"], row["topic"] or "-", "-" if row["id"] is None else row["id"], row["what"])
        for row in found
    ]
    console.print(output.table("kind", "topic", "id>", "what", rows=rows))
    many = "finding" if count == 1 else "findings"
    console.print(f"{count:,} {many}: {looked}{compared if state.compared else ''}.")


def print_rows(table: pa.Table, as_json: bool) -> None:
    """Rows of a table of the lake; where there are too many columns to stand side by side, each row
    by itself, with what it has.
    """
    rows = table.to_pylist()
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row, default=_plain_value, ensure_ascii=False) + "\n")
        return
    console = output.console()
    if _COLUMN_WIDTH * table.num_columns > max(console.width, _WIDTH_MIN):
        for number, row in enumerate(rows, 1):
            told = [(name, _cell(value)) for name, value in row.items() if value is not None]
            console.print(output.table(f"row {number}", "", rows=told))
        return
    cells = [[_cell(value) for value in row.values()] for row in rows]
    console.print(output.table(*table.column_names, rows=cells))


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
