"""Messages as tables and as JSON, from the Arrow tables that listings give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import typer

from fasti.cli import moments, output, payloads
from fasti.cli.as_of import AsOf

if TYPE_CHECKING:
    from fasti.client.client import Client


def _short(text: str) -> str:
    return payloads.as_cell(text.encode())


# The columns in the order of a table, and how those are printed that are more than their text.
_ORDER = (
    *("id", "key", "status", "state", "priority", "due_us", "version", "attempts", "owner"),
    *("consumer", "leased_us", "lease_until_us", "died_us", "expires_us", "reason", "created_us"),
    *("content_type", "subject", "headers", "payload"),
)
_FORMATS: dict[str, Callable[[Any], str]] = {
    **{name: moments.shown_moment for name in _ORDER if name.endswith("_us")},
    "reason": _short,
    "subject": _short,
    "headers": lambda headers: ", ".join(f"{name}={value}" for name, value in headers),
    "payload": payloads.as_cell,
}
_NUMBERS = ("id", "priority", "version", "attempts")
# For one message or for programs: a table has no room for everything.
_NOT_IN_TABLES = ("created_us",)
# How many messages a table has without `--limit`.
_TABLE_ROWS = 50
_PAGE_ROWS = 4_096
# Left out where no row has a value.
_OPTIONAL = (
    *("key", "priority", "owner", "consumer", "leased_us", "lease_until_us", "died_us"),
    "expires_us",
    *("reason", "content_type", "subject", "headers"),
)


def print_messages(
    read: Callable[[int | None], Iterable[Any]],
    limit: int | None,
    as_json: bool,
    stale: bool = False,
) -> None:
    """A table of the first, or a JSON object on each line for as many as there are.

    `read` gives batches of at most so many messages together, stale ones if that is said; None: all.
    """
    as_of = AsOf()

    def batches(at_most: int | None) -> Iterator[pa.RecordBatch]:
        return (as_of.take(batch) if stale else batch for batch in read(at_most))

    if as_json:
        rows = (row for batch in batches(limit) for row in batch.to_pylist())
        output.print_json_lines(as_dict(row) | as_of.fields for row in rows)
        return
    count = limit or _TABLE_ROWS
    # One more is read, to see whether there are more.
    messages = pa.Table.from_batches(batches(count + 1))
    as_of.print_line()
    if not messages.num_rows:
        typer.echo("There are no such messages.")
        return
    _print_table(messages.slice(0, count))
    if messages.num_rows > count:
        last = messages.column("id")[count - 1].as_py()
        first = output.number(count)
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
            page = client.groups(topic).dead(group, after=behind, limit=rows, **filters)
            yield from page.to_batches() or [pa.RecordBatch.from_pylist([], page.schema)]
            if page.num_rows < rows:
                return
            behind = page.column("id")[-1].as_py()
            left = None if left is None else left - rows

    print_messages(read, limit, as_json)


def _print_table(messages: pa.Table) -> None:
    names = [n for n in _ORDER if n in messages.column_names and _in_table(messages, n)]
    rows = [[_cell(name, row[name]) for name in names] for row in messages.to_pylist()]
    heads = [name.removesuffix("_us") + (">" if name in _NUMBERS else "") for name in names]
    output.print_table(*heads, rows=rows)


def columns(payload: bool) -> list[str] | None:
    """The columns that a list asks for: without payloads, the key all the same."""
    from fasti.protocol.schemas import METADATA

    return None if payload else [*METADATA.names, "key"]


def print_one(row: dict[str, Any]) -> None:
    """One message, a line for each of its fields, its payload at the end and in full."""
    fields = [
        (name.removesuffix("_us"), _cell(name, row[name]))
        for name in _ORDER
        if name in row and name not in ("payload", "status") and _says_something(name, row[name])
    ]
    output.print_table("field", "value", rows=fields)
    if row.get("payload") is not None:
        typer.echo(payloads.harmless(payloads.as_text(row["payload"])))


def _says_something(name: str, value: Any) -> bool:
    # The most urgent, and every message of another kind of topic, has priority 0.
    return value not in (None, "", []) and (name != "priority" or value > 0)


def as_dict(row: dict[str, Any]) -> dict[str, Any]:
    """One row for programs: times in ISO, payloads as text where they are."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if name == "payload":
            fields |= {"payload": None} if value is None else payloads.as_json(value)
        elif name.endswith("_us"):
            fields[name.removesuffix("_us")] = None if value is None else moments.iso(value)
        elif name == "headers":
            fields[name] = dict(value or [])
        else:
            fields[name] = value
    return fields


def _in_table(messages: pa.Table, name: str) -> bool:
    if name in _NOT_IN_TABLES:
        return False
    return name not in _OPTIONAL or any(messages.column(name).to_pylist())


def _cell(name: str, value: Any) -> str:
    return "" if value is None else _FORMATS.get(name, str)(value)
