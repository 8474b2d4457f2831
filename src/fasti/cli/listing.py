"""Messages as tables and as JSON, from the Arrow tables that listings give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import typer

from fasti.cli import moments, output, payloads

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
# Left out where no row has a value.
_OPTIONAL = ("key", "priority", "owner", "consumer", "reason", "content_type", "subject", "headers")


def print_messages(found: pa.Table, as_json: bool, more: bool = False) -> None:
    """A table, or a JSON document with a list."""
    if as_json:
        output.print_json([as_dict(row) for row in found.to_pylist()])
        return
    if not found.num_rows:
        typer.echo("There are no such messages.")
        return
    names = [name for name in _SHOWN if name in found.column_names and _said(found, name)]
    rows = [[_cell(name, row[name]) for name in names] for row in found.to_pylist()]
    heads = [name.removesuffix("_us") + (">" if name in _NUMBERS else "") for name in names]
    output.console().print(output.table(*heads, rows=rows))
    if more:
        typer.echo(f"There are more: these are the first {output.number(found.num_rows)}.")


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
