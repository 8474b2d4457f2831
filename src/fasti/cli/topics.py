"""`fasti topics`: create topics, look at them, change them, delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import definitions, output
from fasti.cli.as_of import AsOf
from fasti.cli.commands import group
from fasti.cli.connection import Client, Topic, with_client
from fasti.cli.options import AsJson, MayBeStale, Yes, confirm
from fasti.cli.topic_settings import CHANGEABLE, SETTINGS, with_settings

if TYPE_CHECKING:
    from fasti.client import client as sdk_client
    from fasti.client import topics as sdk

app = group("topics")

app.command("export")(definitions.export)
app.command("apply")(definitions.apply)

NewTopic = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]
# The names of topics that the broker or a client created for itself begin so.
_INTERNAL = "_"
_RARE = ("staged", "done", "cancelled")
# What has left the broker is no reason to think twice about deleting.
_FINISHED = ("done", "cancelled")
# Of what points to a topic, so many are named.
_NAMED_MAX = 5
_PARTITIONS_SHOWN = 12


@app.command()
@with_client
@with_settings(SETTINGS)
def create(client: Client, name: NewTopic, given: dict[str, Any], as_json: AsJson = False) -> None:
    """Create a topic. Again with the same settings is fine, with others an error that names them.

    [dim]fasti topics create emails --lease 1m --max-attempts 5[/dim]
    """
    client.create_topic(name, **given)
    _print(client, name, "created", as_json)


@app.command("list")
@with_client
def list_topics(
    client: Client,
    every: Annotated[
        bool, typer.Option("--all", help="Also the broker's own: inboxes of callers, late replies.")
    ] = False,
    wide: Annotated[
        bool, typer.Option("--wide", "-w", help="All columns; for more than 80 characters.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """All topics, and how many messages each has in which state."""
    topics = [topic for topic in client.topics() if every or not topic.name.startswith(_INTERNAL)]
    states = list(dict.fromkeys(state for topic in topics for state in topic.counts))
    if not wide:
        # What a kind counts of its own is shown; what is over, or rare, is not.
        states = [state for state in states if state not in _RARE]
    output.print_list(
        topics,
        as_json,
        to_dict=_as_json,
        columns=(
            *("topic", "kind", *(("partitions>",) if wide else ())),
            *(f"{state}>" for state in states),
        ),
        row=lambda topic: (
            topic.name,
            topic.settings.kind + (" (paused)" if topic.paused else ""),
            *((topic.settings.partitions,) if wide else ()),
            *(topic.counts.get(state, "") for state in states),
        ),
        empty="There are no topics; `fasti topics create NAME` creates one.",
    )


@app.command()
@with_client
def describe(
    client: Client, name: Topic, stale: MayBeStale = False, as_json: AsJson = False
) -> None:
    """The settings of a topic, how many messages it has in which state, and on which shards it lies."""
    as_of = AsOf()
    topic = as_of.take(client.messages(name).stale().describe()) if stale else client.topic(name)
    # Where it lies would have to be asked of the leader.
    places = {} if stale else _places(client, name)
    if as_json:
        output.print_json(_as_json(topic) | ({"shards": places} if places else {}) | as_of.fields)
        return
    as_of.print_line()
    if topic.paused:
        typer.echo(f"{name} is paused: nothing is handed out until `fasti topics resume {name}`.")
    settings = [(option.name, option.shown(option.of(topic.settings))) for option in SETTINGS]
    output.print_table("setting", "value", rows=settings)
    output.print_table("state", "messages>", rows=list(topic.counts.items()))
    if places:
        rows = [(shard, _ranges(partitions)) for shard, partitions in places.items()]
        output.print_table("shard>", "partitions", rows=rows)


def _places(client: sdk_client.Client, name: str) -> dict[int, list[int]]:
    """The partitions that each shard has; empty where there is one shard."""
    transport = client.transport
    if transport.shard_count == 1:
        return {}
    layout = transport.layout(name)
    return {shard: layout.own(shard).tolist() for shard in layout.all_shards}


def _ranges(numbers: list[int]) -> str:
    """As `0, 4, 8`; of many, the first and how many there are."""
    if len(numbers) <= _PARTITIONS_SHOWN:
        return ", ".join(map(str, numbers))
    first = ", ".join(map(str, numbers[:_PARTITIONS_SHOWN]))
    return f"{first}, ... ({len(numbers)})"


@app.command()
@with_client
@with_settings(CHANGEABLE)
def update(client: Client, name: Topic, given: dict[str, Any], as_json: AsJson = False) -> None:
    """Change settings of a topic: those that are given, and no others.

    [dim]fasti topics update emails --max-attempts 3[/dim]
    """
    if not given:
        raise typer.BadParameter("nothing to change: give a setting, such as --lease 1m")
    client.change_topic(name, **given)
    _print(client, name, "changed", as_json)


@app.command()
@with_client
def pause(client: Client, name: Topic, as_json: AsJson = False) -> None:
    """Hand nothing more out of a topic, until it is resumed.

    Messages still come, and what consumers have now they can finish. Also after a restart.

    [dim]fasti topics pause emails[/dim]
    """
    changed = client.pause_topic(name)
    _print(client, name, "paused" if changed else "was paused already", as_json)


@app.command()
@with_client
def resume(client: Client, name: Topic, as_json: AsJson = False) -> None:
    """Hand messages of a paused topic out again.

    [dim]fasti topics resume emails[/dim]
    """
    changed = client.resume_topic(name)
    _print(client, name, "resumed" if changed else "was not paused", as_json)


@app.command()
@with_client
def delete(client: Client, name: Topic, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete a topic with all of its messages.

    Names the schedules and bindings that point to it: bindings end with it, schedules wait for a
    topic of its name.

    [dim]fasti topics delete emails[/dim]
    """
    topic = client.topic(name)
    count = sum(n for state, n in topic.counts.items() if state not in _FINISHED)
    references = client.references(name)
    schedules, bindings = references.schedules, references.bindings
    _warn(name, "schedule", "wait for a topic of its name", references.schedules_count, schedules)
    _warn(name, "binding", "end with it", references.bindings_count, bindings)
    confirm(f"Delete the topic {name} with {output.count_of(count, 'message')}?", yes)
    client.delete_topic(name)
    result = {
        "topic": name,
        "deleted": True,
        "messages": count,
        "schedules": [schedule._asdict() for schedule in schedules],
        "bindings": [binding._asdict() for binding in bindings],
    }
    text = f"{name}: deleted, with {output.number(count)} messages"
    output.print_result(result, text, as_json)


def _warn(name: str, noun: str, fate: str, count: int, pairs: Sequence[tuple[str, str]]) -> None:
    """What points to the topic, and what becomes of it, on stderr."""
    if count:
        first = ", ".join(" ".join(pair) for pair in pairs[:_NAMED_MAX])
        rest = ", ..." if count > _NAMED_MAX else ""
        number = output.count_of(count, noun)
        typer.echo(f"warning: {name}: {number} will {fate}: {first}{rest}", err=True)


def _print(client: Client, name: str, what: str, as_json: bool) -> None:
    if as_json:
        output.print_json(_as_json(client.topic(name)))
    else:
        typer.echo(f"{name}: {what}")


def _as_json(topic: sdk.Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "settings": topic.settings.to_dict(),
        "paused": topic.paused,
        "counts": topic.counts,
    }
