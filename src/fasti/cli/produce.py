"""`fasti produce`: put messages into a topic, from arguments, lines or files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from fasti.cli import moments, output, sources
from fasti.cli.connection import Client, Owner, Topic, with_client
from fasti.cli.exits import fail_unless
from fasti.cli.options import (
    AsJson,
    At,
    ContentType,
    Delay,
    Headers,
    Priority,
    headers_of,
    only_one,
)
from fasti.cli.outcomes import print_outcomes
from fasti.cli.progress import LITTLE, progress
from fasti.cli.sending import Common, Sent, send_all
from fasti.cli.signatures import option, with_options
from fasti.errors import NotFound

if TYPE_CHECKING:
    from fasti.client.outcomes import Outcomes


class Format(StrEnum):
    """How a file or stdin is read."""

    LINES = "lines"
    WHOLE = "whole"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class OnConflict(StrEnum):
    """What to do when a live message has the key."""

    REJECT = "reject"
    REPLACE = "replace"
    KEEP = "keep"


def _common(
    delay: timedelta | None,
    at: datetime | None,
    expires: str | None,
    headers: list[str] | None,
    **rest: Any,
) -> Common:
    only_one(delay=delay is not None, at=at is not None)
    return Common(
        due_us=None if at is None else moments.microseconds(at),
        delay_us=None if delay is None else delay // timedelta(microseconds=1),
        headers=headers_of(headers),
        expires=None if expires is None else moments.expiry(expires),
        **rest,
    )


_EXPIRES = "Dead unless begun by then: 10m after it is due, or a time in ISO 8601."
_KEY = "Your own name for the message; at most one pending message has it."
_SUBJECT = "What it is about, for bound topics: orders.eu.created."
with_common = with_options(
    "common",
    [
        option("delay", Delay),
        option("at", At),
        option("expires", Annotated[str | None, typer.Option(metavar="TIME", help=_EXPIRES)]),
        option("key", Annotated[str | None, typer.Option(help=_KEY)]),
        option("headers", Headers),
        option("content_type", ContentType),
        option("priority", Priority),
        option("subject", Annotated[str | None, typer.Option(help=_SUBJECT)]),
    ],
    _common,
)


@with_client
@with_common
def produce(
    client: Client,
    topic: Topic,
    common: Common,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAYLOAD", help="Messages; none or `-`: the lines of stdin."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Take the messages from a file.")
    ] = None,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="How it is read; by default as its name ends, else lines."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="All of it is one message: --format whole.")
    ] = False,
    copies: Annotated[
        int, typer.Option("-n", "--copies", min=1, help="Send the payloads so many times.")
    ] = 1,
    key_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Each line is JSON, and this field of it is the key."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(min=0, help="To this partition; of a log also with a key."),
    ] = None,
    owner: Owner = "",
    on_conflict: Annotated[
        OnConflict, typer.Option(help="When a pending message has the key.")
    ] = OnConflict.REJECT,
    create: Annotated[
        bool, typer.Option("--create", help="Create the topic if it isn't there.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print ids, and no more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put messages into a topic, due now or at a time. Ends with 1 if one was not taken.

    [dim]fasti produce emails hello --delay 5m --key user-7[/dim]

    [dim]tail -f app.log | fasti produce logs[/dim]

    [dim]fasti produce emails --file newsletter.parquet --at 2026-12-24T18:00+01:00[/dim]
    """
    only_one(key=common.key is not None, key_field=key_field is not None)
    only_one(whole=whole, format=form is not None)
    texts = [] if payloads == ["-"] else payloads or []
    only_one(file=file is not None, PAYLOAD=texts)
    if common.key is not None and (copies > 1 or len(texts) > 1):
        raise typer.BadParameter("--key names one message: see --key-field for many")
    if copies > 1 and not texts:
        raise typer.BadParameter("-n repeats payloads that are given as arguments")
    format = Format.WHOLE if whole else form
    tables = _tables(texts, file, format, copies, key_field)
    if create:
        _create_if_missing(client, topic)
    sent = Sent(keep_all=as_json)
    total = copies * len(texts) or None
    with progress("sending", wanted=total is None or total > LITTLE) as report:

        def on_outcomes(outcomes: Outcomes, keys: list[str | None] | None) -> None:
            sent.take(outcomes, keys)
            if quiet:
                _print_ids(outcomes)
            if report is not None:
                report(sent.rows, total)

        with client.producer(topic) as producer:
            rows = (common.added_to(table) for table in tables)
            send_all(producer, rows, on_conflict.value, on_outcomes, partition)
    _print(sent, quiet, as_json)
    fail_unless(not sent.failed)


def _tables(
    texts: list[str], file: Path | None, form: Format | None, copies: int, key_field: str | None
) -> Iterator[pa.Table]:
    if texts:
        return sources.from_payloads([os.fsencode(text) for text in texts], copies)
    if file is None:
        return sources.from_stream(sys.stdin.buffer, form or "lines", key_field)
    return sources.from_file(file, sources.format_of(file, form), key_field)


def _create_if_missing(client: Client, topic: str) -> None:
    try:
        client.topic(topic)
    except NotFound:
        client.create_topic(topic)


def _print_ids(outcomes: Outcomes) -> None:
    ids = outcomes.ids[outcomes.codes == 0]
    if len(ids):
        typer.echo("\n".join(map(str, ids.tolist())))


def _print(sent: Sent, quiet: bool, as_json: bool) -> None:
    good = sent.rows - sent.failed
    if as_json:
        rows = [{"row": row, **outcome.to_dict()} for row, outcome in sent.outcomes]
        output.print_json({"sent": good, "failed": sent.failed, "rows": rows})
        return
    if not quiet and len(sent.outcomes) == sent.rows:
        print_outcomes([outcome for _, outcome in sent.outcomes])
        return
    if not quiet:
        typer.echo(f"{output.number(good)} messages sent")
    for row, outcome in sent.failures:
        typer.echo(f"row {output.number(row)}: {outcome.status} {outcome.explanation()}", err=True)
    if sent.failed:
        typer.echo(f"{output.number(sent.failed)} rows were not taken", err=True)
