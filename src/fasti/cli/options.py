"""Options that several commands share."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from fasti.cli import moments
from fasti.settings.values import Size


def duration(what: str, *names: str) -> Any:
    """An option that takes a length of time, such as `5m`."""
    return typer.Option(*names, parser=moments.length, metavar="TIME", help=what)


def moment(what: str, *names: str) -> Any:
    """An option that takes a time in ISO 8601, or how far it is from now."""
    return typer.Option(*names, parser=moments.moment_or_distance, metavar="WHEN", help=what)


def size(what: str, *names: str, **how: Any) -> Any:
    """An option that takes a number of bytes, such as `20MiB`."""
    return typer.Option(*names, parser=_size_bytes, metavar="SIZE", help=what, **how)


def _size_bytes(text: str) -> int:
    try:
        return Size(least=0).read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def follow(what: str) -> Any:
    """`--follow`, of commands that go on with what comes later."""
    return typer.Option("--follow", "-f", help=what)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
MayBeStale = Annotated[
    bool,
    typer.Option(
        "--stale",
        help="What a standby or the leader last knew, and as of when: also without a majority of a "
        "cluster's servers.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
Ids = Annotated[
    list[int] | None, typer.Option("--id", help="A message by its id. May be repeated.")
]
Keys = Annotated[
    list[str] | None, typer.Option("--key", help="A message by its key. May be repeated.")
]
Version = Annotated[
    int | None, typer.Option(min=1, help="Only if this is its version; else it answers conflict.")
]
Delay = Annotated[timedelta | None, duration("How long from now: 50ms, 30s, 1h30m, 7d.")]
At = Annotated[
    datetime | None,
    typer.Option(
        parser=moments.moment,
        metavar="ISO",
        help="When, with its zone: 2026-12-24T18:00+01:00.",
    ),
]
From = Annotated[datetime | None, moment("From then on: a time in ISO 8601, or +1h, -1d from now.")]
Until = Annotated[datetime | None, moment("Up to then, but not at it.")]
DiedFrom = Annotated[datetime | None, moment("Only those that died from then on.")]
DiedTo = Annotated[datetime | None, moment("Only those that died before then.")]
OfOwner = Annotated[str | None, typer.Option("--owner", help="Only those of this owner.")]
Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only those whose reason contains this text.")
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="One partition; else all.")
]
KeyPrefix = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Only those whose key begins so; keys are read for it."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", "-n", min=1, help="At most so many. Default: 50 in a table, all as JSON."
    ),
]
After = Annotated[
    int | None, typer.Option(metavar="ID", min=0, help="Only those behind this id: the next page.")
]
WithPayload = Annotated[
    bool, typer.Option("--payload/--no-payload", help="Also headers and payloads.")
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="A header. May be repeated."),
]
Priority = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="In a priority topic: how urgent, 0 first."),
]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many.")]
JsonLines = Annotated[bool, typer.Option("--json", help="A JSON object on each line.")]
AsJsonLines = Annotated[
    bool, typer.Option("--json", help="A JSON object on each line instead of a table.")
]
JsonWithoutProgress = Annotated[bool, typer.Option("--json", help="Print JSON, and no progress.")]
ContentType = Annotated[str | None, typer.Option(help="What the payload is: application/json.")]


def confirm(question: str, yes: bool) -> None:
    """Asks, unless `--yes` is given; a no ends the command."""
    if not yes:
        typer.confirm(question, abort=True, err=True)


def only_one(**values: object) -> None:
    """Refuses a command line with two options that can't be used together."""
    names = ["--" + name.replace("_", "-") for name, value in values.items() if value]
    if len(names) > 1:
        raise typer.BadParameter(f"{' and '.join(names)} can't be used together")


def headers_of(texts: list[str] | None, option: str = "--header") -> dict[str, str]:
    """`NAME=VALUE` as a dict."""
    headers: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint=option)
        headers[name] = value
    return headers
