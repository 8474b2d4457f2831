"""Messages as tables and as JSON, from the Arrow tables that listings give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import typer

from fasti.cli import moments, output, payloads

if TYPE_CHECKING:
    from fasti.client.client import Client

# Of each column, how people see it; in the order in which it is shown.
_SHOWN: dict[str, Callable[[Any], str]] = {
    "id": str,
    "key": str,
    "status": str,
    "state": str,
    "priority": str,
    "due_us": moments.shown_moment,
    "version": str,
    "attempts": str,
    "owner": str,
    "consumer": str,
    "leased_us": moments.shown_moment,
    "lease_until_us": moments.shown_moment,
    "died_us": moments.shown_moment,
    "expires_us": moments.shown_moment,
    "reason": lambda reason: payloads.as_cell(reason.encode()),
    "created_us": moments.shown_moment,
    "content_type": str,
    "subject": lambda subject: payloads.as_cell(subject.encode()),
    "headers": lambda headers: ", ".join(f"{name}={value}" for name, value in headers),
    "payload": payloads.as_cell,
}
_NUMBERS = ("id", "priority", "version", "attempts")
# For one message or for programs: a table has no room for everything.
_NOT_IN_TABLES = ("created_us",)
# So many unless something else is said.
_TABLE_ROWS = 50
_PAGE_ROWS = 4_096
# Left out where no row has a value.
_OPTIONAL = (
    *("key", "priority", "owner", "consumer", "leased_us", "lease_until_us", "died_us"),
    "expires_us",
    *("reason", "content_type", "subject", "headers"),
)


def print_messages(
    read: Callable[[int | None], Iterable[pa.RecordBatch]], limit: int | None, as_json: bool
) -> None:
    """A table of the first, or a JSON object on each line for as many as there are.

    `read` gives batches of at most so many messages together; None: all.
    """
    if as_json:
        rows = (row for batch in read(limit) for row in batch.to_pylist())
        output.print_json_lines(as_dict(row) for row in rows)
        return
    shown = limit or _TABLE_ROWS
    # One more is asked for, to see whether there are more.
    found = pa.Table.from_batches(read(shown + 1))
    if not found.num_rows:
        typer.echo("There are no such messages.")
        return
    _print_table(found.slice(0, shown))
    if found.num_rows > shown:
        last = found.column("id")[shown - 1].as_py()
        first = output.number(shown)
        typer.echo(f"There are more: these are the first {first}; `--after {last}` goes on.")


def print_dead_rows(
    client: Client,
    topic: str,
    group: str,
    *,
    after: int | None,
    limit: int | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """Rows of a log that failed for good in a group."""

    def read(at_most: int | None) -> Iterator[pa.RecordBatch]:
        left, behind = at_most, after
        while left is None or left > 0:
            rows = _PAGE_ROWS if left is None else min(left, _PAGE_ROWS)
            found = client.groups(topic).dead(group, after=behind, limit=rows, **filters)
            yield from found.to_batches() or [pa.RecordBatch.from_pylist([], found.schema)]
            if found.num_rows < rows:
                return
            behind = found.column("id")[-1].as_py()
            left = None if left is None else left - rows

    print_messages(read, limit, as_json)


def _print_table(found: pa.Table) -> None:
    names = [name for name in _SHOWN if name in found.column_names and _said(found, name)]
    rows = [[_cell(name, row[name]) for name in names] for row in found.to_pylist()]
    heads = [name.removesuffix("_us") + (">" if name in _NUMBERS else "") for name in names]
    output.console().print(output.table(*heads, rows=rows))


def columns(payload: bool) -> list[str] | None:
    """The columns that a list asks for: without payloads, the key all the same."""
    from fasti.protocol.schemas import METADATA

    return None if payload else [*METADATA.names, "key"]


def print_one(row: dict[str, Any]) -> None:
    """One message, a line for each of its fields, its payload at the end and in full."""
    fields = [
        (name.removesuffix("_us"), _cell(name, row[name]))
        for name in _SHOWN
        if name in row and name not in ("payload", "status") and _told(name, row[name])
    ]
    output.console().print(output.table("field", "value", rows=fields))
    if row.get("payload") is not None:
        typer.echo(payloads.harmless(payloads.as_text(row["payload"])))


def _told(name: str, value: Any) -> bool:
    # The most urgent, and every message of another kind of topic, has priority 0.
    return value not in (None, "", []) and (name != "priority" or value > 0)


def as_dict(row: dict[str, Any]) -> dict[str, Any]:
    """One row for programs: times in ISO, payloads as text where they are."""
    told: dict[str, Any] = {}
    for name, value in row.items():
        if name == "payload":
            told |= {"payload": None} if value is None else payloads.as_json(value)
        elif name.endswith("_us"):
            told[name.removesuffix("_us")] = None if value is None else moments.iso(value)
        elif name == "headers":
            told[name] = dict(value or [])
        else:
            told[name] = value
    return told


def _said(found: pa.Table, name: str) -> bool:
    if name in _NOT_IN_TABLES:
        return False
    return name not in _OPTIONAL or any(found.column(name).to_pylist())


def _cell(name: str, value: Any) -> str:
    return "" if value is None else _SHOWN[name](value)
