"""`fasti bindings`: which topics get what another topic gets."""

from __future__ import annotations

from typing import Annotated

import typer

from fasti.cli import output
from fasti.cli.commands import group
from fasti.cli.connection import Client, Topic, complete_topics, with_client
from fasti.cli.options import AsJson

app = group("bindings")

Pattern = Annotated[
    str,
    typer.Argument(
        help="Which subjects: orders.eu.created, orders.*.created, orders.>; > alone: everything."
    ),
]
Target = Annotated[
    str, typer.Argument(help="The topic that gets them too.", autocompletion=complete_topics)
]


@app.command("list")
@with_client
def list_bindings(client: Client, topic: Topic, as_json: AsJson = False) -> None:
    """The bindings of a topic, in the order in which they were made."""
    output.print_list(
        client.bindings(topic).list(),
        as_json,
        to_dict=lambda binding: binding._asdict(),
        columns=("pattern", "target"),
        row=lambda binding: binding,
        empty=f"{topic} is not bound to another topic.",
    )


@app.command()
@with_client
def add(
    client: Client, topic: Topic, pattern: Pattern, target: Target, as_json: AsJson = False
) -> None:
    """Bind a topic to another. Again is fine.

    [dim]fasti bindings add orders 'orders.*.created' emails[/dim]
    """
    created = client.bindings(topic).add(pattern, target)
    result = {"topic": topic, "pattern": pattern, "target": target, "created": created}
    verb = "bound" if created else "was bound already"
    output.print_result(result, f"{topic}: {verb} to {target} by {pattern}", as_json)


@app.command()
@with_client
def remove(
    client: Client, topic: Topic, pattern: Pattern, target: Target, as_json: AsJson = False
) -> None:
    """End a binding. What was produced before stays where it is."""
    client.bindings(topic).remove(pattern, target)
    result = {"topic": topic, "pattern": pattern, "target": target, "removed": True}
    output.print_result(result, f"{topic}: no longer bound to {target} by {pattern}", as_json)
