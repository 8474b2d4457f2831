"""`fasti messages`: look at what is pending, and change it until it is delivered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fasti.cli import output, payloads
from fasti.cli.as_of import AsOf
from fasti.cli.bulk import Choice, DryRun, change, with_choice
from fasti.cli.commands import group
from fasti.cli.connection import Client, Owner, Topic, with_client
from fasti.cli.exits import fail_unless
from fasti.cli.listing import as_dict, columns, print_messages, print_one
from fasti.cli.options import (
    After,
    AsJson,
    AsJsonLines,
    At,
    ContentType,
    Delay,
    From,
    Headers,
    Ids,
    KeyPrefix,
    Keys,
    Limit,
    MayBeStale,
    OfOwner,
    Priority,
    Until,
    Version,
    WithPayload,
    Yes,
    headers_of,
    only_one,
)
from fasti.cli.outcomes import MessageOutcome, conclude, outcomes_of

app = group("messages")


class ListedState(StrEnum):
    """The states that a listing can be limited to."""

    SCHEDULED = "scheduled"
    READY = "ready"
    LEASED = "leased"
    DEAD = "dead"


@app.command("list")
@with_client
def list_messages(
    client: Client,
    topic: Topic,
    state: Annotated[ListedState | None, typer.Option(help="Only those in this state.")] = None,
    due_from: From = None,
    due_to: Until = None,
    of_owner: OfOwner = None,
    key_prefix: KeyPrefix = None,
    consumer: Annotated[
        str | None, typer.Option(help="Only those that this consumer has leased.")
    ] = None,
    after: After = None,
    limit: Limit = None,
    payload: WithPayload = False,
    stale: MayBeStale = False,
    as_json: AsJsonLines = False,
) -> None:
    """What a topic holds, by id. With `--json` an object on each line, of any number of messages.

    [dim]fasti messages list emails --state scheduled --due-to +1h --payload[/dim]

    [dim]fasti messages list emails --key-prefix cart- --limit 1000 --after 88112[/dim]

    [dim]fasti messages list emails --json > emails.ndjson[/dim]
    """
    messages = client.messages(topic)

    def read(at_most: int | None) -> Iterator[Any]:
        return (messages.stale() if stale else messages).scan(
            state=None if state is None else state.value,
            due_from=due_from,
            due_to=due_to,
            owner=of_owner,
            key_prefix=key_prefix,
            consumer=consumer,
            after=after,
            limit=at_most,
            payload=payload,
            columns=columns(payload),
        )

    print_messages(read, limit, as_json, stale)


@app.command()
@with_client
def get(
    client: Client,
    topic: Topic,
    ids: Ids = None,
    keys: Keys = None,
    stale: MayBeStale = False,
    as_json: AsJson = False,
) -> None:
    """A message with its payload, by id or by key. Ends with 1 if one is not there, or damaged.

    [dim]fasti messages get emails --key user-7[/dim]
    """
    messages, target, as_of = client.messages(topic), _target(ids, keys), AsOf()
    read: Any = messages.stale().get if stale else messages.get
    found: Any = as_of.take(read(**target)) if stale else read(**target)
    rows = found.to_pylist()
    if as_json:
        output.print_json([as_dict(row) | as_of.fields for row in rows])
    else:
        as_of.print_line()
        for name, row in zip(keys or ids or (), rows, strict=True):
            if row["status"] == "ok":
                print_one(row)
                if row["payload"] is None:
                    typer.echo(f"{name}: corruption: its payload can't be read", err=True)
            else:
                typer.echo(f"{name}: {row['status']}", err=True)
    fail_unless(all(row["status"] == "ok" and row["payload"] is not None for row in rows))


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
        raise typer.BadParameter("--header and --content-type need a payload")
    outcomes = client.messages(topic).update(
        **_target(ids, keys),
        payload=None if alone else _payload(payload, file),
        version=version,
        headers=headers_of(headers) or None,
        content_type=content_type,
        priority=priority,
    )
    conclude(outcomes_of(outcomes, keys), as_json)


@app.command()
@with_client
@with_choice
def move(
    client: Client,
    topic: Topic,
    choice: Choice,
    delay: Delay = None,
    at: At = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="So much from where each is, with a filter: 1h, -30m."),
    ] = None,
    version: Version = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let pending messages fall due at another time: those that are named, or all that fit a filter.

    With a filter, `--owner` also means those of that owner alone; it asks first, unless `--yes`.

    [dim]fasti messages move emails --key user-7 --delay 10m[/dim]

    [dim]fasti messages move emails --due-from now --due-to +1h --by 1h --dry-run[/dim]
    """
    only_one(delay=delay is not None, at=at is not None, by=by is not None)
    if delay is None and at is None and (by is None or choice.by_name):
        more = "" if choice.by_name else ", or --by 1h"
        raise typer.BadParameter(f"say when: --delay 10m, --at 2026-12-24T18:00+01:00{more}")
    messages = client.messages(topic)
    if choice.by_name:
        how: dict[str, Any] = {"delay": delay, "at": at, "version": version}
        outcomes = messages.move(**choice.target, **how, dry_run=dry_run)
        conclude(outcomes_of(outcomes, choice.keys), as_json)
        return
    _refuse_version(version)
    apply = partial(messages.move_where, **choice.where, delay=delay, at=at, by=by)
    change("move", topic, apply, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
@with_client
@with_choice
def cancel(
    client: Client,
    topic: Topic,
    choice: Choice,
    version: Version = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel pending messages: those that are named, or all that fit a filter.

    One that answers ok is never delivered. With a filter, `--owner` also means those of that owner
    alone; it asks first, unless `--yes`.

    [dim]fasti messages cancel emails --key user-7 --key user-8[/dim]

    [dim]fasti messages cancel emails --key-prefix cart- --due-to +1d --dry-run[/dim]
    """
    messages = client.messages(topic)
    if choice.by_name:
        outcomes = messages.cancel(**choice.target, version=version, dry_run=dry_run)
        conclude(outcomes_of(outcomes, choice.keys), as_json)
        return
    _refuse_version(version)
    apply = partial(messages.cancel_where, **choice.where)
    change("cancel", topic, apply, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
@with_client
def release(
    client: Client,
    topic: Topic,
    ids: Ids = None,
    keys: Keys = None,
    group: Annotated[str, typer.Option(help="Of a log: the group that has the rows.")] = "",
    as_json: AsJson = False,
) -> None:
    """Take leased messages back from their consumers: others get them now.

    For a worker that hangs. The attempt doesn't count, and what the worker still does with them
    answers stale_lease. A message that is not leased answers conflict.

    [dim]fasti messages release emails --key user-7[/dim]
    """
    target, messages = _target(ids, keys), client.messages(topic)
    if not keys:
        conclude(outcomes_of(messages.release(target["id"], group=group)), as_json)
        return
    # Leases are taken back by id.
    rows = messages.get(key=keys, payload=False).to_pylist()
    existing = [row["id"] for row in rows if row["status"] == "ok"]
    released = iter(outcomes_of(messages.release(existing)) if existing else [])
    results = [
        replace(next(released), key=key)
        if row["status"] == "ok"
        else MessageOutcome(row["status"], key=key)
        for key, row in zip(keys, rows, strict=True)
    ]
    conclude(results, as_json)


def _refuse_version(version: int | None) -> None:
    if version is not None:
        raise typer.BadParameter("a version needs --id or --key", param_hint="--version")


def _target(ids: list[int] | None, keys: list[str] | None) -> dict[str, Any]:
    only_one(id=ids, key=keys)
    if not ids and not keys:
        raise typer.BadParameter("say which: --id 17, or --key user-7")
    return {"id": ids} if ids else {"key": keys}


def _payload(text: str | None, file: Path | None) -> bytes:
    only_one(payload=text is not None, file=file is not None)
    if text is None and file is None:
        raise typer.BadParameter("say what: --payload TEXT, or --file FILE")
    return payloads.read(text or "", file)
