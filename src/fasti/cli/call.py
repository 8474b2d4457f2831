"""`fasti call`: send a request, wait for the answer, print it."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from fasti.cli import moments, output, payloads
from fasti.cli.connection import Owner, Topic, with_client
from fasti.cli.options import AsJson, ContentType, Headers, headers_of

if TYPE_CHECKING:
    from fasti.client.client import Client


@with_client
def call(
    client: Client,
    topic: Topic,
    payload: Annotated[str, typer.Argument(help="The request; `-` takes it from stdin.")],
    timeout: Annotated[
        timedelta | None,
        typer.Option(parser=moments.length, metavar="TIME", help="How long to wait. Default: 5s."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="A key for the request.")] = None,
    headers: Headers = None,
    content_type: ContentType = None,
    owner: Owner = "",
    as_json: AsJson = False,
) -> None:
    """Send a request and print its answer. Whoever consumes the topic answers by `message.reply`.

    Without an answer in time it ends with an error that tells what became of the request.

    [dim]fasti call prices '{"item": 7}' --timeout 2s[/dim]
    """
    answer = client.call(
        topic,
        sys.stdin.buffer.read() if payload == "-" else payload.encode(),
        timeout=timedelta(seconds=5) if timeout is None else timeout,
        key=key,
        headers=headers_of(headers) or None,
        content_type=content_type,
    )
    if as_json:
        told = payloads.as_json(answer.payload)
        output.print_json({**told, "headers": answer.headers, "content_type": answer.content_type})
    elif sys.stdout.isatty():
        typer.echo(payloads.harmless(payloads.as_text(answer.payload)))
    else:
        sys.stdout.buffer.write(answer.payload)
        sys.stdout.buffer.flush()
