"""`fasti bindings`: which topics get what another topic gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fasti.cli import output
from fasti.cli.connection import Topic, complete_topics, with_client
from fasti.cli.options import AsJson

if TYPE_CHECKING:
    from fasti.client.client import Client

app = typer.Typer(
    name="bindings",
    help="Have what one topic gets go to others too, by the messages' subjects.",
    no_args_is_help=True,
)

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
    found = client.bindings(topic).list()
    if as_json:
        output.print_json([binding._asdict() for binding in found])
    elif not found:
        typer.echo(f"{topic} is bound to no other topic.")
    else:
        output.console().print(output.table("pattern", "target", rows=found))


@app.command()
@with_client
def add(
    client: Client, topic: Topic, pattern: Pattern, target: Target, as_json: AsJson = False
) -> None:
    """Bind a topic to another. Again is fine.

    [dim]fasti bindings add orders 'orders.*.created' emails[/dim]
    """
    created = client.bindings(topic).add(pattern, target)
    if as_json:
        told = {"topic": topic, "pattern": pattern, "target": target, "created": created}
        output.print_json(told)
    else:
        done = "bound" if created else "was bound before"
        typer.echo(f"{topic}: {done} to {target} by {pattern}")


@app.command()
@with_client
def remove(
    client: Client, topic: Topic, pattern: Pattern, target: Target, as_json: AsJson = False
) -> None:
    """End a binding. What was produced before stays where it is."""
    client.bindings(topic).remove(pattern, target)
    if as_json:
        told = {"topic": topic, "pattern": pattern, "target": target, "removed": True}
        output.print_json(told)
    else:
        typer.echo(f"{topic}: no longer bound to {target} by {pattern}")
