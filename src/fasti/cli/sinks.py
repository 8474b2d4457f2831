"""`fasti sinks`: who writes batches that happen once, and how far they are."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.commands import group
from fasti.cli.connection import Client, with_client
from fasti.cli.options import AsJson, Yes, confirm
from fasti.errors import NotFound

if TYPE_CHECKING:
    from fasti.client.sinks import SinkState

app = group("sinks")

Name = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")]


@app.command("list")
@with_client
def list_sinks(client: Client, as_json: AsJson = False) -> None:
    """The sinks that the broker remembers, with their last batch."""
    output.print_list(
        client.sinks(),
        as_json,
        to_dict=asdict,
        columns=("sink", "batch", "operation", "published", "rows", "skipped", "staged"),
        row=_row,
        empty="No sink has written anything.",
    )


def _row(sink: SinkState) -> tuple[Any, ...]:
    ok = sink.outcomes.get("ok", 0)
    return (
        sink.sink,
        "-" if sink.batch is None else sink.batch,
        sink.operation or "-",
        _moment(sink) if sink.done else "being carried out",
        output.number(ok),
        output.number(sum(sink.outcomes.values()) - ok),
        output.number(sink.rows),
    )


def _moment(sink: SinkState) -> str:
    if sink.published_us is None:
        return "-"
    return datetime.fromtimestamp(sink.published_us // 1_000_000, UTC).strftime("%F %TZ")


@app.command()
@with_client
def show(client: Client, sink: Name, as_json: AsJson = False) -> None:
    """One sink: its last batch, what became of its rows, and what is staged."""
    state = client.sink("", sink).describe()
    if state is None:
        raise NotFound(f"there is no sink {sink!r}", details={"sink": sink})
    if as_json:
        output.print_json(asdict(state))
        return
    lines = [
        ("last batch", "none yet" if state.batch is None else state.batch),
        ("operation", state.operation or "-"),
        ("published", _moment(state)),
        ("carried out", "yes" if state.done else "not yet"),
        *((f"rows {word}", output.number(rows)) for word, rows in state.outcomes.items()),
        ("stages open", state.stages),
        ("rows staged", output.number(state.rows)),
    ]
    output.print_table("", sink, rows=lines)


@app.command()
@with_client
def forget(client: Client, sink: Name, yes: Yes = False, as_json: AsJson = False) -> None:
    """Forget a sink and drop what it has staged. Its batches could happen again from then on."""
    confirm(f"Forget {sink}? If it writes its last batch again, it will happen again.", yes)
    forgotten = client.sink("", sink).forget()
    text = f"{sink}: {'forgotten' if forgotten else 'not known'}"
    output.print_result({"sink": sink, "forgotten": forgotten}, text, as_json)
