"""`fasti consumers`: who takes messages, from where, what each has, and taking it back."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fasti.cli import moments, output
from fasti.cli.connection import complete_topics, with_client
from fasti.cli.exits import FOUND_SOMETHING
from fasti.cli.options import AsJson, Yes
from fasti.cli.payloads import as_cell

if TYPE_CHECKING:
    from fasti.client.client import Client
    from fasti.client.consumers import ConsumerInfo


class ListByDefault(TyperGroup):
    """`fasti consumers` alone is `fasti consumers list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the command in, unless one is named or help is asked for."""
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="consumers",
    help="Who takes messages, and what each has; take it back. `list` may be left out.",
    cls=ListByDefault,
)

OfTopic = Annotated[
    str | None,
    typer.Option("--topic", help="Of one topic only.", autocompletion=complete_topics),
]
_MOMENTS = ("oldest_lease", "lease_until", "connected_since", "active", "heard", "at")


@app.command("list")
@with_client
def list_consumers(client: Client, topic: OfTopic = None, as_json: AsJson = False) -> None:
    """Who takes messages: from where, how many it has, since when, and for how long it is idle.

    `list` may be left out. A consumer that is gone stands here as long as it has leases.

    [dim]fasti consumers --topic emails[/dim]
    """
    found = client.consumers(topic)
    if as_json:
        output.print_json([_as_json(each) for each in found])
        return
    if not found:
        typer.echo("There are no consumers." if topic is None else f"{topic} has no consumers.")
        return
    grouped = any(each.group for each in found)
    rows = [
        (
            each.topic,
            *((each.group,) if grouped else ()),
            as_cell(each.consumer.encode()),
            (each.peer or "connected") if each.connected else "(gone)",
            each.leases,
            _ago(each, each.oldest_lease),
            _until(each),
            each.credit,
            _ago(each, each.active),
        )
        for each in found
    ]
    heads = ("topic", *(("group",) if grouped else ()), "consumer", "from", "leases>")
    more = ("oldest lease>", "ends in>", "waits for>", "idle>")
    output.console().print(output.table(*heads, *more, rows=rows))


@app.command()
@with_client
def release(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The consumer.")],
    topic: OfTopic = None,
    group: Annotated[str | None, typer.Option(help="Of a log: in this group only.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take back all that a consumer has: others get it now, and the attempts don't count.

    For a worker that hangs or is gone. End it first: one that lives, and asks for more, may get the
    same messages again. What it still does with them answers stale_lease. Ends with 1 if it has none.

    [dim]fasti consumers release worker-7 --topic emails[/dim]
    """
    held = [
        each
        for each in client.consumers(topic)
        if each.consumer == name and each.leases and group in (None, each.group)
    ]
    if held and not yes:
        typer.confirm(_question(name, held), abort=True, err=True)
    released = client.release_consumer(name, topic, group) if held else 0
    if as_json:
        output.print_json({"consumer": name, "released": released})
    elif released:
        typer.echo(f"{name}: {output.number(released)} released")
    else:
        typer.echo(f"{name} has no leases", err=True)
    if not released:
        raise typer.Exit(FOUND_SOMETHING)


def _question(name: str, held: list[ConsumerInfo]) -> str:
    places = ", ".join(
        f"{each.topic}{' ' + each.group if each.group else ''}: {output.number(each.leases)}"
        for each in held[:5]
    )
    rest = ", ..." if len(held) > 5 else ""
    alive = " It is still connected." if any(each.connected for each in held) else ""
    return f"Take back what {name} has ({places}{rest})?{alive}"


def _ago(each: ConsumerInfo, moment: datetime | None) -> str:
    """How long before the broker's now."""
    if moment is None:
        return ""
    return _short(each.at, moment)


def _until(each: ConsumerInfo) -> str:
    return "" if each.lease_until is None else _short(each.lease_until, each.at)


def _short(later: datetime, earlier: datetime) -> str:
    """To the second: nobody reads more."""
    seconds = max(0, int((later - earlier).total_seconds()))
    return moments.shown_length(seconds * 1_000_000)


def _as_json(each: ConsumerInfo) -> dict[str, Any]:
    told = each.to_dict()
    for name in _MOMENTS:
        if told.get(name) is not None:
            told[name] = moments.iso(moments.microseconds(told[name]))
    told["idle_s"] = each.idle_s
    return told
