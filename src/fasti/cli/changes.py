"""`fasti changes`: everything that happened, as it stands in the journal."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Annotated, Any

import typer

from fasti.cli import moments, options, payloads
from fasti.cli.connection import Client, with_client
from fasti.cli.exits import terminated_softly
from fasti.client.changes import Position
from fasti.errors import InvalidArgument

_SHOWN = ("id", "offset", "key", "due_us", "version", "consumer", "group", "reason", "details")


@with_client
def changes(
    client: Client,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, a position, or a time: 2026-12-24T18:00+01:00, -1h.",
        ),
    ] = "earliest",
    topic: Annotated[str | None, typer.Option(help="One topic only.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Only messages that have, or get, this key.")
    ] = None,
    ids: Annotated[
        list[int] | None,
        typer.Option("--id", min=0, help="Only the message with this id. May be repeated."),
    ] = None,
    follow: Annotated[bool, options.follow("Go on with what happens later.")] = False,
    count: options.Count = None,
    timeout: Annotated[
        timedelta | None, options.duration("With -f: end when nothing has happened for so long.")
    ] = None,
    payload: Annotated[bool, typer.Option(help="Show payloads too.")] = False,
    as_json: options.JsonLines = False,
) -> None:
    """Print every transition of every message, in order; with `-f` go on until Ctrl-C.

    The position of a line is printed with `--json`; `--from` takes it to go on behind it.

    [dim]fasti changes --topic emails --from -1h[/dim]

    [dim]fasti changes --topic emails --key user-7[/dim]

    [dim]fasti changes -f --json | jq 'select(.op == "rejected")'[/dim]
    """
    line_of = _as_json if as_json else _as_text
    left = count
    with (
        terminated_softly(),
        client.changes(
            start=_start(start),
            topic=topic,
            key=key,
            id=ids or None,
            payload=payload,
            follow=follow,
            timeout=timeout,
        ) as feed,
    ):
        for table in feed:
            rows = table if left is None else table.slice(0, left)
            # With several shards a row says of which it is, and its position is one in all of them.
            several = "shard" in table.schema.names
            for row in rows.to_pylist():
                name = row["shard"] if several else feed.position.shard
                sys.stdout.write(line_of(row, feed.position.moved(name, row["position"])) + "\n")
            sys.stdout.flush()
            if left is not None:
                left -= rows.num_rows
                if left <= 0:
                    return


def _start(text: str) -> Any:
    if text in ("earliest", "latest"):
        return text
    try:
        return Position.parse(text)
    except InvalidArgument:
        pass
    try:
        return moments.moment_or_distance(text)
    except typer.BadParameter as error:
        raise typer.BadParameter(
            f"{error.message}; or earliest, latest, or a position as --json shows it",
            param_hint="--from",
        ) from None


def _as_json(row: dict[str, Any], position: Position) -> str:
    fields = {name: value for name, value in row.items() if value is not None}
    fields["position"] = str(position)
    fields["at"] = moments.iso(fields.pop("at_us"))
    if "payload" in fields:
        fields |= payloads.as_json(fields.pop("payload"))
    if "headers" in fields:
        fields["headers"] = dict(fields["headers"])
    return json.dumps(fields, ensure_ascii=False)


def _as_text(row: dict[str, Any], position: Position) -> str:
    parts = [moments.iso(row["at_us"]), f"{row['op']:<12}", row["topic"] or "-"]
    for name in _SHOWN:
        value = row[name]
        if value is not None:
            text = moments.iso(value) if name == "due_us" else value
            parts.append(f"{name.removesuffix('_us')}={text}")
    if row.get("payload") is not None:
        parts.append(payloads.as_text(row["payload"]))
    return " ".join(parts)
