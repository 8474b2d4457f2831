"""`fasti dead`: look at messages that failed for good, give them another life, or drop them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.commands import group
from fasti.cli.connection import Client, Topic, with_client
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
    OfOwner,
    Reason,
    Until,
    WithPayload,
    Yes,
    confirm,
    only_one,
)
from fasti.cli.outcomes import conclude_bulk
from fasti.cli.progress import LITTLE, progress
from fasti.cli.signatures import option, with_options

app = group("dead")

All = Annotated[bool, typer.Option("--all", help="All dead messages of the topic.")]
Group = Annotated[str | None, typer.Option(help="Of a log: the dead rows of this group.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only print how many it would be, and of what they died.")
]


@dataclass(frozen=True, slots=True)
class DeadMessages:
    """Which dead messages a command means: those of a topic, or of a log's group, that fit."""

    client: Client
    topic: str
    group: str | None
    filters: dict[str, Any]

    def counts(self) -> dict[str, int]:
        """How many died of what."""
        if self.group is None:
            return self.client.messages(self.topic).dead_counts(**self.filters)
        self.refuse_in_group()
        return self.client.groups(self.topic).dead_counts(self.group, **self.filters)

    def counts_of(self, ids: list[int]) -> dict[str, int]:
        """The same of those ids that are dead."""
        rows = self.client.messages(self.topic).get(id=ids, payload=False).to_pylist()
        reasons = [row["reason"] or "" for row in rows if row["state"] == "dead"]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}

    def change(self, verb: str, total: int, ids: list[int] | None, **how: Any) -> Any:
        """Redrives or purges them, and shows how far it is."""
        with progress(verb, wanted=total > LITTLE) as report:
            if not ids:
                how |= {**self.filters, "progress": report}
            if self.group is None:
                return getattr(self.client.messages(self.topic), verb)(ids, **how)
            self.refuse_in_group()
            return getattr(self.client.groups(self.topic), verb)(self.group, ids, **how)

    def refuse_in_group(self, **more: object) -> None:
        """The rows of a log can be chosen by their reason only."""
        for name, value in (self.filters | more).items():
            if name != "reason" and value is not None:
                hint = "--" + name.replace("_", "-")
                raise typer.BadParameter("not for the rows of a log", param_hint=hint)


def _dead(client: Client, topic: str, group: str | None, **filters: Any) -> DeadMessages:
    chosen = {name: value for name, value in filters.items() if value is not None}
    return DeadMessages(client, topic, group, chosen)


of_dead = with_options(
    "dead",
    [
        option("client", Any),
        option("topic", Topic, inspect.Parameter.empty),
        option("reason", Reason),
        option("group", Group),
        option("owner", OfOwner),
        option("due_from", From),
        option("due_to", Until),
        option("died_from", DiedFrom),
        option("died_to", DiedTo),
    ],
    _dead,
)


@app.command("list")
@with_client
@of_dead
def list_dead(
    dead: DeadMessages,
    key_prefix: KeyPrefix = None,
    after: After = None,
    limit: Limit = None,
    payload: WithPayload = False,
    as_json: AsJsonLines = False,
) -> None:
    """The dead messages of a topic, and why they died. With `--json` an object on each line.

    [dim]fasti dead list emails --died-from -1h --reason "connection refused"[/dim]

    [dim]fasti dead list emails --json --payload > dead.ndjson[/dim]
    """
    page: dict[str, Any] = {**dead.filters, "after": after, "payload": payload}
    if dead.group is not None:
        dead.refuse_in_group(key_prefix=key_prefix)
        rows = {"limit": limit, "as_json": as_json, **page}
        print_dead_rows(dead.client, dead.topic, dead.group, **rows)
        return
    page |= {"state": "dead", "key_prefix": key_prefix, "columns": columns(payload)}
    messages = dead.client.messages(dead.topic)
    print_messages(lambda at_most: messages.scan(**page, limit=at_most), limit, as_json)


@app.command()
@with_client
@of_dead
def count(dead: DeadMessages, as_json: AsJson = False) -> None:
    """How many messages died of what."""
    _print_counts(dead.counts(), as_json)


@app.command()
@with_client
@of_dead
def redrive(
    dead: DeadMessages,
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
        _print_counts(dead.counts_of(ids) if ids else dead.counts(), as_json)
        return
    total = len(ids) if ids else sum(dead.counts().values())
    conclude_bulk("redrive", dead.change("redrive", total, ids, to=to, delay=delay, at=at), as_json)


@app.command()
@with_client
@of_dead
def purge(
    dead: DeadMessages,
    every: All = False,
    ids: Ids = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop dead messages for good."""
    _check_chosen(dead, every, ids)
    if dry_run:
        _print_counts(dead.counts_of(ids) if ids else dead.counts(), as_json)
        return
    total = len(ids) if ids else sum(dead.counts().values())
    if total:
        messages = output.count_of(total, "dead message")
        confirm(f"Drop {messages} of {dead.topic} for good?", yes)
    conclude_bulk("purge", dead.change("purge", total, ids), as_json)


def _check_chosen(dead: DeadMessages, every: bool, ids: list[int] | None) -> None:
    only_one(all=every, id=ids)
    only_one(id=ids, **dead.filters)
    if not every and not ids and not dead.filters:
        raise typer.BadParameter("say which: --id 17, --all, or --reason TEXT")


def _print_counts(counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        rows = [{"reason": reason, "count": count} for reason, count in counts.items()]
        output.print_json({"dead": sum(counts.values()), "reasons": rows})
        return
    if not counts:
        typer.echo("There are no such messages.")
        return
    cells = [(reason or "(none)", count) for reason, count in counts.items()]
    output.print_table("reason", "dead>", rows=cells)
    typer.echo(f"{output.number(sum(counts.values()))} dead")
