"""`fasti groups`: the consumer groups of logs, where they are and what failed in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import moments, output
from fasti.cli.commands import group
from fasti.cli.connection import Client, Topic, with_client
from fasti.cli.listing import print_dead_rows
from fasti.cli.options import (
    After,
    AsJson,
    AsJsonLines,
    Limit,
    Partition,
    Reason,
    WithPayload,
    Yes,
    confirm,
)

if TYPE_CHECKING:
    from fasti.client.groups import Group as GroupState
    from fasti.client.groups import GroupPartition

app = group("groups")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]
Where = typer.Option(
    metavar="WHERE",
    help="earliest, latest, an offset, or a time: 2026-12-24T18:00+01:00, -1h.",
)


@app.command("list")
@with_client
def list_groups(client: Client, topic: Topic, as_json: AsJson = False) -> None:
    """All groups of a log, and how far behind each is."""
    output.print_list(
        client.groups(topic).list(),
        as_json,
        to_dict=lambda group: group.to_dict(),
        columns=("group", "ordered", "lag>", "leased>", "dead>", "behind>"),
        row=lambda group: (
            *(group.name, "yes" if group.ordered else "no", group.lag),
            *(group.leased, group.dead, group.behind),
        ),
        empty=f"{topic} has no groups; a consumer's first lease creates one.",
    )


@app.command()
@with_client
def describe(client: Client, topic: Topic, group: Group, as_json: AsJson = False) -> None:
    """Where a group is in each partition."""
    _print(client.groups(topic).describe(group), as_json)


@app.command()
@with_client
def create(
    client: Client,
    topic: Topic,
    group: Group,
    start: Annotated[str, Where] = "earliest",
    ordered: Annotated[
        bool,
        typer.Option("--ordered", help="At most one row of a key is out at a time, in order."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a group that begins somewhere; a consumer would create one that begins at the earliest.

    [dim]fasti groups create events billing --start latest[/dim]
    """
    place = moments.log_place(start, "--start")
    if isinstance(place, int):
        raise typer.BadParameter(
            "a new group begins in all partitions: earliest, latest or a time; then reset one",
            param_hint="--start",
        )
    _print(client.groups(topic).create(group, start=place, ordered=ordered), as_json)


@app.command()
@with_client
def reset(
    client: Client,
    topic: Topic,
    group: Group,
    to: Annotated[str, Where],
    partition: Partition = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Have a group go on elsewhere. Its consumers lose the leases that they hold there.

    [dim]fasti groups reset events billing --to -1h[/dim]

    [dim]fasti groups reset events billing --to 1000 --partition 0[/dim]
    """
    place = moments.log_place(to, "--to")
    confirm(f"Set the group {group} of {topic} to {to}?", yes)
    _print(client.groups(topic).reset(group, place, partition=partition), as_json)


@app.command()
@with_client
def delete(
    client: Client, topic: Topic, group: Group, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Forget a group: its offsets and what is dead in it. The log keeps its rows."""
    confirm(f"Delete the group {group} of {topic}?", yes)
    client.groups(topic).delete(group)
    result = {"topic": topic, "group": group, "deleted": True}
    output.print_result(result, f"{group}: deleted", as_json)


@app.command("dead")
@with_client
def list_dead(
    client: Client,
    topic: Topic,
    group: Group,
    reason: Reason = None,
    after: After = None,
    limit: Limit = None,
    payload: WithPayload = False,
    as_json: AsJsonLines = False,
) -> None:
    """The rows that failed for good in a group, and why; `fasti dead --group` redrives and purges.

    [dim]fasti groups dead events billing[/dim]

    [dim]fasti dead redrive events --group billing --all[/dim]
    """
    page: dict[str, Any] = {"after": after, "limit": limit, "payload": payload}
    print_dead_rows(client, topic, group, reason=reason, as_json=as_json, **page)


def _print(group: GroupState, as_json: bool) -> None:
    if as_json:
        output.print_json(group.to_dict())
        return
    order = "in order per key" if group.ordered else "in no order"
    typer.echo(f"{group.name}: lag {output.number(group.lag)}, handed out {order}")
    numbers = ("end", "lag", "leased", "again", "dead", "behind")
    names = ("partition>", "committed>", "consumed>", *(f"{name}>" for name in numbers), "window")

    def row(place: GroupPartition) -> tuple[Any, ...]:
        return (
            *(place.partition, place.committed, "" if place.consumed < 0 else place.consumed),
            *(getattr(place, name) for name in numbers),
            "full" if place.window_full else "",
        )

    output.print_table(*names, rows=map(row, group.partitions))
