"""`fasti call`: send a request, wait for the answer, print it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from fasti.cli import output, payloads
from fasti.cli.connection import Client, Owner, Topic, with_client
from fasti.cli.options import AsJson, ContentType, Headers, duration, headers_of


@with_client
def call(
    client: Client,
    topic: Topic,
    payload: Annotated[str, typer.Argument(help="The request; `-` takes it from stdin.")],
    timeout: Annotated[timedelta | None, duration("How long to wait. Default: 5s.")] = None,
    key: Annotated[str | None, typer.Option(help="A key for the request.")] = None,
    headers: Headers = None,
    content_type: ContentType = None,
    owner: Owner = "",
    as_json: AsJson = False,
) -> None:
    """Send a request and print its answer. The topic's consumers answer by `message.reply`.

    Without an answer in time it ends with an error that tells what became of the request.

    [dim]fasti call prices '{"item": 7}' --timeout 2s[/dim]
    """
    answer = client.call(
        topic,
        payloads.read(payload),
        timeout=timedelta(seconds=5) if timeout is None else timeout,
        key=key,
        headers=headers_of(headers) or None,
        content_type=content_type,
    )
    if as_json:
        rest = {"headers": answer.headers, "content_type": answer.content_type}
        output.print_json({**payloads.as_json(answer.payload), **rest})
    else:
        payloads.print_whole(answer.payload)
