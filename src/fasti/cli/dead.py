"""`fasti dead`: look at messages that failed for good, give them another life, or drop them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.connection import Topic, with_client
from fasti.cli.listing import columns, print_dead_rows, print_messages
from fasti.cli.options import (
    After,
    AsJson,
    AsJsonLines,
    At,
    Delay,
    DiedFrom,
    DiedTo,
    From,
    Ids,
    KeyPrefix,
    Limit,
    Until,
    WithPayload,
    Yes,
    only_one,
)
from fasti.cli.outcomes import conclude_bulk
from fasti.cli.progress import counting, progress
from fasti.cli.signatures import Command, option, parameters_of, presented

if TYPE_CHECKING:
    from fasti.client.client import Client

app = typer.Typer(
    name="dead",
    help="Messages that failed for good: see, count, redrive, purge.",
    no_args_is_help=True,
)

All = Annotated[bool, typer.Option("--all", help="All dead messages of the topic.")]
Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Those whose reason has this text.")
]
Group = Annotated[str | None, typer.Option(help="Of a log: the dead rows of this group.")]
OfOwner = Annotated[str | None, typer.Option("--owner", help="Only those of this owner.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only tell how many it would be, and of what they died.")
]


@dataclass(frozen=True, slots=True)
class Dead:
    """Which dead messages are meant: those of a topic, or of a log's group, that fit."""

    client: Client
    topic: str
    group: str | None
    filters: dict[str, Any]

    def counts(self) -> dict[str, int]:
        """How many died of what."""
        if self.group is None:
            return self.client.messages(self.topic).dead_counts(**self.filters)
        self._refuse_in_group()
        return self.client.groups(self.topic).dead_counts(self.group, **self.filters)

    def counts_of(self, ids: list[int]) -> dict[str, int]:
        """The same of those ids that are dead."""
        found = self.client.messages(self.topic).get(id=ids, payload=False).to_pylist()
        reasons = [row["reason"] or "" for row in found if row["state"] == "dead"]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}

    def change(self, verb: str, total: int, ids: list[int] | None, **how: Any) -> Any:
        """Redrives or purges them, and shows how far it is."""
        with progress(verb, total) as advance:
            if not ids:
                how |= {**self.filters, "progress": counting(advance)}
            if self.group is None:
                return getattr(self.client.messages(self.topic), verb)(ids, **how)
            self._refuse_in_group()
            return getattr(self.client.groups(self.topic), verb)(self.group, ids, **how)

    def _refuse_in_group(self) -> None:
        _refuse_of_rows(**{name: self.filters[name] for name in self.filters if name != "reason"})


def of_dead(command: Command) -> Command:
    """Makes `command(dead, ...)` one of a client and a topic, with the options that say which."""
    filters = [
        option("reason", Reason, None),
        option("group", Group, None),
        option("owner", OfOwner, None),
        option("due_from", From, None),
        option("due_to", Until, None),
        option("died_from", DiedFrom, None),
        option("died_to", DiedTo, None),
    ]

    def run(client: Client, topic: str, **values: Any) -> None:
        group = values.pop("group")
        given = {each.name: values.pop(each.name) for each in filters if each.name != "group"}
        chosen = {name: value for name, value in given.items() if value is not None}
        command(Dead(client, topic, group, chosen), **values)

    of_topic = [option("client", Any, None), option("topic", Topic, inspect.Parameter.empty)]
    return presented(run, command, [*of_topic, *filters, *parameters_of(command)[1:]])


@app.command("list")
@with_client
def list_dead(
    client: Client,
    topic: Topic,
    reason: Reason = None,
    group: Group = None,
    of_owner: OfOwner = None,
    key_prefix: KeyPrefix = None,
    due_from: From = None,
    due_to: Until = None,
    died_from: DiedFrom = None,
    died_to: DiedTo = None,
    after: After = None,
    limit: Limit = None,
    payload: WithPayload = False,
    as_json: AsJsonLines = False,
) -> None:
    """The dead messages of a topic, and why they died. With `--json` an object on each line.

    [dim]fasti dead list emails --died-from -1h --reason "connection refused"[/dim]

    [dim]fasti dead list emails --json --payload > dead.ndjson[/dim]
    """
    if group is not None:
        _refuse_of_rows(owner=of_owner, key_prefix=key_prefix, due_from=due_from, due_to=due_to)
        _refuse_of_rows(died_from=died_from, died_to=died_to)
        page: dict[str, Any] = {"after": after, "limit": limit, "payload": payload}
        print_dead_rows(client, topic, group, reason=reason, as_json=as_json, **page)
        return
    print_messages(
        lambda at_most: client.messages(topic).scan(
            state="dead",
            reason=reason,
            owner=of_owner,
            key_prefix=key_prefix,
            due_from=due_from,
            due_to=due_to,
            died_from=died_from,
            died_to=died_to,
            after=after,
            limit=at_most,
            payload=payload,
            columns=columns(payload),
        ),
        limit,
        as_json,
    )


def _refuse_of_rows(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise typer.BadParameter("rows of a log are not found by it", param_hint=option)


@app.command()
@with_client
@of_dead
def count(dead: Dead, as_json: AsJson = False) -> None:
    """How many messages are dead of what."""
    _tell_counts(dead.counts(), as_json)


@app.command()
@with_client
@of_dead
def redrive(
    dead: Dead,
    every: All = False,
    ids: Ids = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Into another topic instead of their own.")
    ] = None,
    delay: Delay = None,
    at: At = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give dead messages another life: they fall due again, now, after `--delay`, or `--at` a time.

    [dim]fasti dead redrive emails --reason "connection refused" --delay 5m[/dim]
    [dim]fasti dead redrive emails --all --to emails-by-hand[/dim]
    """
    _check_chosen(dead, every, ids)
    only_one(delay=delay is not None, at=at is not None)
    if dry_run:
        _tell_counts(dead.counts_of(ids) if ids else dead.counts(), as_json)
        return
    total = len(ids) if ids else sum(dead.counts().values())
    conclude_bulk("redrive", dead.change("redrive", total, ids, to=to, delay=delay, at=at), as_json)


@app.command()
@with_client
@of_dead
def purge(
    dead: Dead,
    every: All = False,
    ids: Ids = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop dead messages for good."""
    _check_chosen(dead, every, ids)
    if dry_run:
        _tell_counts(dead.counts_of(ids) if ids else dead.counts(), as_json)
        return
    total = len(ids) if ids else sum(dead.counts().values())
    if total and not yes:
        what = f"{output.number(total)} dead message{'' if total == 1 else 's'}"
        typer.confirm(f"Drop {what} of {dead.topic} for good?", abort=True, err=True)
    conclude_bulk("purge", dead.change("purge", total, ids), as_json)


def _check_chosen(dead: Dead, every: bool, ids: list[int] | None) -> None:
    only_one(all=every, id=ids)
    only_one(id=ids, **dead.filters)
    if not every and not ids and not dead.filters:
        raise typer.BadParameter("say which: --id 17, --all, or --reason TEXT")


def _tell_counts(counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        rows = [{"reason": reason, "count": count} for reason, count in counts.items()]
        output.print_json({"dead": sum(counts.values()), "reasons": rows})
        return
    if not counts:
        typer.echo("There are no such messages.")
        return
    rows_shown = [(reason or "(none)", output.number(n)) for reason, n in counts.items()]
    output.console().print(output.table("reason", "dead>", rows=rows_shown))
    typer.echo(f"{output.number(sum(counts.values()))} dead")
