"""`fasti messages`: look at what is pending, and change it until it is delivered."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.connection import Owner, Topic, with_client
from fasti.cli.exits import FOUND_SOMETHING
from fasti.cli.listing import as_dict, print_messages, print_one
from fasti.cli.options import (
    AsJson,
    At,
    ContentType,
    Delay,
    From,
    Headers,
    Ids,
    Keys,
    Priority,
    Until,
    Version,
    headers_of,
    only_one,
)
from fasti.cli.outcomes import answers, conclude

if TYPE_CHECKING:
    from fasti.client.client import Client

app = typer.Typer(
    name="messages", help="Look at what is pending, and change it.", no_args_is_help=True
)


class State(StrEnum):
    """What a listing may ask for."""

    SCHEDULED = "scheduled"
    READY = "ready"
    LEASED = "leased"
    DEAD = "dead"


@app.command("list")
@with_client
def list_messages(
    client: Client,
    topic: Topic,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    due_from: From = None,
    due_to: Until = None,
    of_owner: Annotated[
        str | None, typer.Option("--owner", help="Only those of this owner.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    payload: Annotated[bool, typer.Option("--payload", help="Also headers and payloads.")] = False,
    as_json: AsJson = False,
) -> None:
    """What a topic holds, by id.

    [dim]fasti messages list emails --state scheduled --due-to +1h --payload[/dim]
    """
    # One more is asked for, to see whether there are more.
    found = client.messages(topic).list(
        state=None if state is None else state.value,
        due_from=due_from,
        due_to=due_to,
        owner=of_owner,
        limit=limit + 1,
        # Keys lie beside the payloads.
        payload=True,
    )
    if not payload:
        found = found.drop_columns(["created_us", "headers", "content_type", "subject", "payload"])
    print_messages(found.slice(0, limit), as_json, more=found.num_rows > limit)


@app.command()
@with_client
def get(
    client: Client, topic: Topic, ids: Ids = None, keys: Keys = None, as_json: AsJson = False
) -> None:
    """A message with its payload, by id or by key. Ends with 1 if one is not there.

    [dim]fasti messages get emails --key user-7[/dim]
    """
    found = client.messages(topic).get(**_target(ids, keys)).to_pylist()
    if as_json:
        output.print_json([as_dict(row) for row in found])
    else:
        for named, row in zip(keys or ids or (), found, strict=True):
            if row["status"] == "ok":
                print_one(row)
            else:
                typer.echo(f"{named}: {row['status']}", err=True)
    if any(row["status"] != "ok" for row in found):
        raise typer.Exit(FOUND_SOMETHING)


@app.command()
@with_client
def update(
    client: Client,
    topic: Topic,
    payload: Annotated[
        str | None, typer.Option(help="The new payload; `-` takes it from stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="The new payload, from a file."
        ),
    ] = None,
    ids: Ids = None,
    keys: Keys = None,
    version: Version = None,
    headers: Headers = None,
    content_type: ContentType = None,
    priority: Priority = None,
    owner: Owner = "",
    as_json: AsJson = False,
) -> None:
    """Give a pending message another payload; its headers and content type are replaced with it.

    With a priority alone, all else stays as it is.

    [dim]fasti messages update emails --key user-7 --payload "see you" --version 3[/dim]

    [dim]fasti messages update tickets --key order-7 --priority 0[/dim]
    """
    alone = priority is not None and payload is None and file is None
    if alone and (headers or content_type):
        raise typer.BadParameter("--header and --content-type go with a payload")
    found = client.messages(topic).update(
        **_target(ids, keys),
        payload=None if alone else _payload(payload, file),
        version=version,
        headers=headers_of(headers) or None,
        content_type=content_type,
        priority=priority,
    )
    conclude(answers(found, keys), as_json)


@app.command()
@with_client
def move(
    client: Client,
    topic: Topic,
    ids: Ids = None,
    keys: Keys = None,
    delay: Delay = None,
    at: At = None,
    version: Version = None,
    owner: Owner = "",
    as_json: AsJson = False,
) -> None:
    """Let a pending message fall due at another time.

    [dim]fasti messages move emails --key user-7 --delay 10m[/dim]
    """
    only_one(delay=delay is not None, at=at is not None)
    if delay is None and at is None:
        raise typer.BadParameter("say when: --delay 10m, or --at 2026-12-24T18:00+01:00")
    found = client.messages(topic).move(**_target(ids, keys), delay=delay, at=at, version=version)
    conclude(answers(found, keys), as_json)


@app.command()
@with_client
def cancel(
    client: Client,
    topic: Topic,
    ids: Ids = None,
    keys: Keys = None,
    version: Version = None,
    owner: Owner = "",
    as_json: AsJson = False,
) -> None:
    """Cancel pending messages: one that answers ok is never delivered.

    [dim]fasti messages cancel emails --key user-7 --key user-8[/dim]
    """
    found = client.messages(topic).cancel(**_target(ids, keys), version=version)
    conclude(answers(found, keys), as_json)


def _target(ids: list[int] | None, keys: list[str] | None) -> dict[str, Any]:
    only_one(id=ids, key=keys)
    if not ids and not keys:
        raise typer.BadParameter("say which: --id 17, or --key user-7")
    return {"id": ids} if ids else {"key": keys}


def _payload(text: str | None, file: Path | None) -> bytes:
    only_one(payload=text is not None, file=file is not None)
    if file is not None:
        return file.read_bytes()
    if text is None:
        raise typer.BadParameter("say what: --payload TEXT, or --file FILE")
    return sys.stdin.buffer.read() if text == "-" else text.encode()
