"""`fasti consumers`: who takes messages, from where, what each has, and taking it back."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import moments, output
from fasti.cli.commands import group
from fasti.cli.connection import Client, complete_topics, with_client
from fasti.cli.exits import fail_unless
from fasti.cli.options import AsJson, Yes, confirm
from fasti.cli.payloads import as_cell

if TYPE_CHECKING:
    from fasti.client.consumers import ConsumerInfo

app = group("consumers", default="list")

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
    consumers = client.consumers(topic)
    grouped = any(consumer.group for consumer in consumers)
    heads = ("topic", *(("group",) if grouped else ()), "consumer", "from", "leases>")
    output.print_list(
        consumers,
        as_json,
        to_dict=_as_json,
        columns=(*heads, "oldest lease>", "ends in>", "waits for>", "idle>"),
        row=lambda consumer: (
            consumer.topic,
            *((consumer.group,) if grouped else ()),
            as_cell(consumer.consumer.encode()),
            (consumer.peer or "connected") if consumer.connected else "(gone)",
            consumer.leases,
            _ago(consumer, consumer.oldest_lease),
            "" if consumer.lease_until is None else _short(consumer.lease_until, consumer.at),
            consumer.credit,
            _ago(consumer, consumer.active),
        ),
        empty="There are no consumers." if topic is None else f"{topic} has no consumers.",
    )


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
    holders = [
        consumer
        for consumer in client.consumers(topic)
        if consumer.consumer == name and consumer.leases and group in (None, consumer.group)
    ]
    if holders:
        confirm(_question(name, holders), yes)
    released = client.release_consumer(name, topic, group) if holders else 0
    if as_json:
        output.print_json({"consumer": name, "released": released})
    elif released:
        typer.echo(f"{name}: {output.number(released)} released")
    else:
        typer.echo(f"{name} has no leases", err=True)
    fail_unless(released > 0)


def _question(name: str, holders: list[ConsumerInfo]) -> str:
    places = ", ".join(
        f"{info.topic}{' ' + info.group if info.group else ''}: {output.number(info.leases)}"
        for info in holders[:5]
    )
    rest = ", ..." if len(holders) > 5 else ""
    alive = " It is still connected." if any(info.connected for info in holders) else ""
    return f"Take back what {name} has ({places}{rest})?{alive}"


def _ago(consumer: ConsumerInfo, moment: datetime | None) -> str:
    """How long before the broker's now."""
    return "" if moment is None else _short(consumer.at, moment)


def _short(later: datetime, earlier: datetime) -> str:
    """To the second, which is enough for a person."""
    seconds = max(0, int((later - earlier).total_seconds()))
    return moments.shown_length(seconds * 1_000_000)


def _as_json(consumer: ConsumerInfo) -> dict[str, Any]:
    fields = consumer.to_dict()
    for name in _MOMENTS:
        if fields.get(name) is not None:
            fields[name] = moments.iso(moments.microseconds(fields[name]))
    return fields | {"idle_s": consumer.idle_s}
