"""`fasti consume`: print what a topic has ready, and acknowledge it."""

from __future__ import annotations

import itertools
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from fasti.cli import options
from fasti.cli.connection import Client, Topic, with_client
from fasti.cli.exits import terminated_softly
from fasti.cli.templates import FIELDS, Form, form, format_option
from fasti.errors import NotFound

if TYPE_CHECKING:
    from fasti.client.consumer import Consumer
    from fasti.client.message import Message

# Printing is quick, so that other consumers hardly wait for what is held here.
_PREFETCH = 1_000
# Printed but not acknowledged, they stay leased; a person looks at fewer than these.
_HELD_MAX = 10_000
# How long a message that was ready may take to come, when we don't wait for new ones: if another
# consumer has taken it, we wait in vain.
_IDLE = timedelta(seconds=5)


@with_client
def consume(
    client: Client,
    topic: Topic,
    follow: Annotated[bool, options.follow("Go on with what falls due later.")] = False,
    count: options.Count = None,
    timeout: Annotated[
        timedelta | None, options.duration("End when nothing has come for so long.")
    ] = None,
    ack: Annotated[
        bool,
        typer.Option(
            "--ack/--no-ack",
            help="Acknowledge what was printed; else all of it is given back at the end.",
        ),
    ] = True,
    name: Annotated[
        str | None, typer.Option(help="The consumer's name: it gets back what it had leased.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The group that consumes; only logs have groups.")
    ] = None,
    template: Annotated[str, format_option(FIELDS)] = "text",
    as_json: options.JsonLines = False,
) -> None:
    """Print what is ready, acknowledge it, and end; with `-f` go on until Ctrl-C.

    [dim]fasti consume emails -f[/dim]

    [dim]fasti consume events --group billing -f[/dim]

    [dim]fasti consume emails -n 10 --no-ack --format '{due} {key}: {payload}'[/dim]
    """
    line_of = form("json" if as_json else template, terminal=sys.stdout.isatty())
    waits = follow or timeout is not None
    most = count if waits else _ready(client, topic, group, count)
    if not ack:
        most = min(most or _HELD_MAX, _HELD_MAX)
    if most == 0:
        typer.echo("Nothing is ready; -f waits for it.", err=True)
        return
    patience = timeout if waits else _IDLE
    # What is not acknowledged counts as prefetched until it is given back.
    prefetch = min(_PREFETCH, most or _PREFETCH) if ack else most
    with (
        terminated_softly(),
        client.consumer(
            topic, name=name, prefetch=prefetch or 1, timeout=patience, group=group
        ) as source,
    ):
        _print(source, most, line_of, sys.stdout.buffer, ack)


def _ready(client: Client, topic: str, group: str | None, count: int | None) -> int:
    """How many to print: what falls due while we do is left to the next call."""
    from fasti.client.topics import check_consumable

    info = client.topic(topic)
    check_consumable(topic, info.settings.kind, group or "")
    ready = info.counts["ready"] if group is None else _open_rows(client, topic, group)
    return ready if count is None else min(count, ready)


def _open_rows(client: Client, topic: str, group: str) -> int:
    """What a group has not finished and no consumer has leased; the whole log for a new group."""
    try:
        state = client.groups(topic).describe(group)
    except NotFound:
        return sum(partition.rows for partition in client.log(topic).describe())
    return state.lag - state.leased


def _print(source: Consumer, most: int | None, line_of: Form, out: BinaryIO, ack: bool) -> None:
    held: list[Message] = []
    try:
        for message in itertools.islice(source, most):
            held.append(message)
            out.write(line_of(message))
            # Before the ack: what a reader never got is not acknowledged.
            out.flush()
            if ack:
                message.ack()
                held.clear()
    finally:
        for message in held:
            message.release()
