"""`fasti kv`: entries of key-value topics."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import moments, options, output, payloads
from fasti.cli.as_of import AsOf
from fasti.cli.commands import group
from fasti.cli.connection import Client, Topic, with_client
from fasti.cli.exits import fail_unless, terminated_softly
from fasti.cli.options import (
    AsJson,
    AsJsonLines,
    ContentType,
    Headers,
    Limit,
    MayBeStale,
    headers_of,
    only_one,
)

if TYPE_CHECKING:
    from fasti.client.kv import Entry
    from fasti.client.outcomes import Outcome
    from fasti.client.watch import Change, WatchPosition

app = group("kv")

Key = Annotated[str, typer.Argument(help="The key.")]
Clustering = Annotated[
    str | None, typer.Option("--clustering", "-c", help="The clustering key, if it has one.")
]
Version = Annotated[
    int | None,
    typer.Option(min=0, help="Only if this is its version (0: if there is none); else conflict."),
]
Prefix = Annotated[str | None, typer.Option(help="Only keys that begin so.")]
_TABLE_ROWS = 50
_MEANINGS = {
    "conflict": "its version is another one",
    "not_found": "there is no such entry",
}


@app.command()
@with_client
def get(client: Client, topic: Topic, key: Key, clustering: Clustering = None,
        stale: MayBeStale = False, as_json: AsJson = False) -> None:  # fmt: skip
    """Print a value as it is, without a line end; with --json all that is known of it.

    Ends with 1 if there is no such entry.
    """
    entries, as_of = client.kv(topic), AsOf()
    if stale:
        entry = as_of.take(entries.stale().get(key, clustering=clustering))
    else:
        entry = entries.get(key, clustering=clustering)
    if not as_json:
        as_of.print_line()
    if as_json:
        output.print_json(None if entry is None else _entry_json(entry) | as_of.fields)
    elif entry is not None:
        payloads.print_whole(entry.value)
    else:
        typer.echo(f"{topic} has no entry {_name(key, clustering)}", err=True)
    fail_unless(entry is not None)


@app.command()
@with_client
def put(
    client: Client,
    topic: Topic,
    key: Key,
    value: Annotated[
        str | None, typer.Argument(help="The value; none or `-`: all of stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Take the value from a file.")
    ] = None,
    clustering: Clustering = None,
    version: Version = None,
    ttl: Annotated[timedelta | None, options.duration("How long it stays: 30s, 1h30m, 7d.")] = None,
    headers: Headers = None,
    content_type: ContentType = None,
    as_json: AsJson = False,
) -> None:
    """Set a value. Ends with 1 if its version is another one.

    [dim]fasti kv put profiles user-7 '{"name": "Ada"}'[/dim]

    [dim]fasti kv put locks job-1 me --version 0 --ttl 30s[/dim]
    """
    only_one(file=file is not None, VALUE=value is not None)
    outcome = client.kv(topic).put(
        key,
        payloads.read("-" if value is None else value, file),
        clustering=clustering,
        version=version,
        ttl=ttl,
        headers=headers_of(headers) or None,
        content_type=content_type,
    )
    _conclude(outcome, key, clustering, as_json)


@app.command()
@with_client
def delete(client: Client, topic: Topic, key: Key, clustering: Clustering = None,
           version: Version = None, as_json: AsJson = False) -> None:  # fmt: skip
    """Remove an entry. Ends with 1 if there is none, or its version is another one."""
    outcome = client.kv(topic).delete(key, clustering=clustering, version=version)
    _conclude(outcome, key, clustering, as_json)


@app.command("list")
@with_client
def list_entries(
    client: Client,
    topic: Topic,
    prefix: Prefix = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="KEY", help="From this key on.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="KEY", help="Up to this key, but not it.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="All clustering keys of this key.")] = None,
    limit: Limit = None,
    as_json: AsJsonLines = False,
) -> None:
    """Entries in the order of their keys. With `--json` an object on each line.

    [dim]fasti kv list profiles --prefix user- --json > users.ndjson[/dim]
    """
    only_one(prefix=prefix, key=key, **{"from": start or end})
    entries, places = client.kv(topic), {"prefix": prefix, "key": key, "start": start, "end": end}
    if as_json:
        output.print_json_lines(map(_entry_json, entries.entries(**places, limit=limit)))
        return
    limit = limit or _TABLE_ROWS
    # One more than is shown, to know whether there are more.
    rows = entries.range(prefix=prefix, key=key, start=start, end=end, limit=limit + 1).to_pylist()
    if not rows:
        typer.echo("There are no such entries.")
        return
    clustered = any(row["clustering"] is not None for row in rows)
    names = ("key", *(("clustering",) if clustered else ()), "version>", "expires", "value")
    cells = [
        (
            payloads.as_cell(row["key"].encode()),
            *((payloads.as_cell((row["clustering"] or "").encode()),) if clustered else ()),
            row["version"],
            "" if row["expires_us"] is None else moments.shown_moment(row["expires_us"]),
            payloads.as_cell(row["value"]),
        )
        for row in rows[:limit]
    ]
    output.print_table(*names, rows=cells)
    if len(rows) > limit:
        typer.echo(f"There are more: these are the first {output.number(limit)}.")


@app.command()
@with_client
def watch(
    client: Client,
    topic: Topic,
    prefix: Prefix = None,
    position: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION", help="From this position on, as --json prints it; else now."
        ),
    ] = None,
    count: options.Count = None,
    timeout: Annotated[
        timedelta | None, options.duration("End when nothing has come for so long.")
    ] = None,
    as_json: options.JsonLines = False,
) -> None:
    """Print changes as they happen, until Ctrl-C.

    [dim]fasti kv watch profiles --prefix user-[/dim]
    """
    at = None if position is None else _position(position)
    watch = client.kv(topic).watch(prefix=prefix, position=at, timeout=timeout)
    with terminated_softly(), watch as changes:
        for change in itertools.islice(changes, count):
            typer.echo(
                json.dumps(_change_json(change, changes.position))
                if as_json
                else _change_line(change)
            )


def _position(text: str) -> WatchPosition:
    """A number, or with several shards `0:17,1:4`: as `_position_text` writes it."""
    parts = [place.rpartition(":") for place in text.split(",")]
    if not all(at.isdecimal() and (not shard or shard.isdecimal()) for shard, _, at in parts):
        raise typer.BadParameter(f"{text!r} is not a position", param_hint="--position")
    if len(parts) == 1 and not parts[0][0]:
        return int(text)
    return {int(shard or 0): int(at) for shard, _, at in parts}


def _position_text(position: WatchPosition) -> int | str:
    if isinstance(position, int):
        return position
    return ",".join(f"{shard}:{at}" for shard, at in position.items())


def _name(key: str, clustering: str | None) -> str:
    return repr(key) if clustering is None else f"{key!r}, {clustering!r}"


def _conclude(outcome: Outcome, key: str, clustering: str | None, as_json: bool) -> None:
    name = {"key": key} if clustering is None else {"key": key, "clustering": clustering}
    version = f", version {outcome.version}" if outcome.version else ""
    meaning = f" ({_MEANINGS[outcome.status]})" if outcome.status in _MEANINGS else ""
    output.print_result(
        {"status": outcome.status, **name, "version": outcome.version or None},
        f"{_name(key, clustering)}: {outcome.status}{version}{meaning}",
        as_json,
    )
    fail_unless(outcome.ok)


def _entry_json(entry: Entry) -> dict[str, Any]:
    expires = None if entry.expires_us is None else moments.iso(entry.expires_us)
    return {
        "key": entry.key,
        "clustering": entry.clustering,
        **_value_json(entry.value),
        "version": entry.version,
        "created": moments.iso(entry.created_us),
        "expires": expires,
        "headers": entry.headers,
        "content_type": entry.content_type,
    }


def _change_json(change: Change, behind: WatchPosition) -> dict[str, Any]:
    """With several shards, where to go on behind all that was printed."""
    return {
        "position": change.position if isinstance(behind, int) else _position_text(behind),
        "op": change.op,
        "key": change.key,
        "clustering": change.clustering,
        **({} if change.value is None else _value_json(change.value)),
        "version": change.version or None,
        "at": moments.iso(change.at_us),
    }


def _value_json(value: bytes) -> dict[str, Any]:
    fields = payloads.as_json(value)
    return {name.replace("payload", "value"): text for name, text in fields.items()}


def _change_line(change: Change) -> str:
    name = change.key if change.clustering is None else f"{change.key} {change.clustering}"
    value = "" if change.value is None else f" {payloads.as_cell(change.value)}"
    return f"{change.op} {payloads.as_cell(name.encode(), 200)}{value}"
