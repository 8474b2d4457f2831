"""`fasti dead`: look at messages that failed for good, give them another life, or drop them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.connection import Topic, with_client
from fasti.cli.exits import FOUND_SOMETHING
from fasti.cli.listing import print_messages
from fasti.cli.options import AsJson, Delay, From, Ids, Until, Yes, only_one
from fasti.cli.progress import Advance, progress

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


@app.command("list")
@with_client
def list_dead(
    client: Client,
    topic: Topic,
    reason: Reason = None,
    group: Group = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    payload: Annotated[
        bool, typer.Option("--payload", help="Also keys, headers and payloads.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The dead messages of a topic, and why they died."""
    # One more is asked for, to see whether there are more.
    if group is None:
        found = client.messages(topic).dead(reason=reason, limit=limit + 1, payload=payload)
    else:
        found = client.groups(topic).dead(group, reason=reason, limit=limit + 1, payload=payload)
    print_messages(found.slice(0, limit), as_json, more=found.num_rows > limit)


@app.command()
@with_client
def count(
    client: Client,
    topic: Topic,
    reason: Reason = None,
    group: Group = None,
    owner: OfOwner = None,
    due_from: From = None,
    due_to: Until = None,
    as_json: AsJson = False,
) -> None:
    """How many messages are dead of what."""
    chosen = _filters(reason, owner, due_from, due_to)
    _tell_counts(_counts(client, topic, group, chosen), as_json)


@app.command()
@with_client
def redrive(
    client: Client,
    topic: Topic,
    every: All = False,
    ids: Ids = None,
    reason: Reason = None,
    group: Group = None,
    owner: OfOwner = None,
    due_from: From = None,
    due_to: Until = None,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Into another topic instead of their own.")
    ] = None,
    delay: Delay = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give dead messages another life: they fall due again, now or after `--delay`.

    [dim]fasti dead redrive emails --reason "connection refused" --delay 5m[/dim]
    [dim]fasti dead redrive emails --all --to emails-by-hand[/dim]
    """
    chosen = _filters(reason, owner, due_from, due_to)
    _check_chosen(every, ids, chosen)
    if dry_run:
        _tell_counts(_counts(client, topic, group, chosen, ids), as_json)
        return
    total = len(ids) if ids else sum(_counts(client, topic, group, chosen).values())
    with progress("redrive", total) as advance:
        moved: dict[str, Any] = {"to": to, "delay": delay}
        if not ids:
            moved |= {**chosen, "progress": _counting(advance)}
        if group is None:
            found = client.messages(topic).redrive(ids, **moved)
        else:
            _refuse_in_group(chosen)
            found = client.groups(topic).redrive(group, ids, **moved)
    _conclude("redrive", found, as_json)


@app.command()
@with_client
def purge(
    client: Client,
    topic: Topic,
    every: All = False,
    ids: Ids = None,
    reason: Reason = None,
    group: Group = None,
    owner: OfOwner = None,
    due_from: From = None,
    due_to: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop dead messages for good."""
    chosen = _filters(reason, owner, due_from, due_to)
    _check_chosen(every, ids, chosen)
    counts = {} if ids else _counts(client, topic, group, chosen)
    if dry_run:
        _tell_counts(counts if not ids else _counts(client, topic, group, {}, ids), as_json)
        return
    total = len(ids) if ids else sum(counts.values())
    if total and not yes:
        what = f"{output.number(total)} dead message{'' if total == 1 else 's'}"
        typer.confirm(f"Drop {what} of {topic} for good?", abort=True, err=True)
    with progress("purge", total) as advance:
        how: dict[str, Any] = {} if ids else {**chosen, "progress": _counting(advance)}
        if group is None:
            found = client.messages(topic).purge(ids, **how)
        else:
            _refuse_in_group(chosen)
            found = client.groups(topic).purge(group, ids, **how)
    _conclude("purge", found, as_json)


def _filters(
    reason: str | None, owner: str | None, due_from: datetime | None, due_to: datetime | None
) -> dict[str, Any]:
    found = {"reason": reason, "owner": owner, "due_from": due_from, "due_to": due_to}
    return {name: value for name, value in found.items() if value is not None}


def _check_chosen(every: bool, ids: list[int] | None, chosen: dict[str, Any]) -> None:
    only_one(all=every, id=ids)
    only_one(id=ids, **chosen)
    if not every and not ids and not chosen:
        raise typer.BadParameter("say which: --id 17, --all, or --reason TEXT")


def _refuse_in_group(chosen: dict[str, Any]) -> None:
    for name in chosen:
        if name != "reason":
            option = "--" + name.replace("_", "-")
            raise typer.BadParameter("rows of a log have none", param_hint=option)


def _counts(
    client: Client,
    topic: str,
    group: str | None,
    chosen: dict[str, Any],
    ids: list[int] | None = None,
) -> dict[str, int]:
    if ids:
        found = client.messages(topic).get(id=ids, payload=False).to_pylist()
        reasons = [row["reason"] or "" for row in found if row["state"] == "dead"]
        return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    if group is None:
        return client.messages(topic).dead_counts(**chosen)
    _refuse_in_group(chosen)
    return client.groups(topic).dead_counts(group, **chosen)


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


def _counting(advance: Advance) -> Callable[[int, int], None]:
    """The SDK tells how many are done, the bar wants to know how many more."""
    done = 0

    def count(now_done: int, total: int) -> None:
        nonlocal done
        advance(now_done - done)
        done = now_done

    return count


def _conclude(verb: str, found: Any, as_json: bool) -> None:
    """What became of them: `Outcomes` of a list, or what a filter found."""
    counts = found.counts()
    failed = found.failed
    if not isinstance(failed, list):
        failed = [found[row].to_dict() for row in failed.tolist()]
    if as_json:
        output.print_json({"ok": counts.get("ok", 0), "outcomes": counts, "failed": failed})
    else:
        _tell(verb, counts, failed)
    if counts.get("ok", 0) != sum(counts.values()):
        raise typer.Exit(FOUND_SOMETHING)


def _tell(verb: str, counts: dict[str, int], failed: list[dict[str, Any]]) -> None:
    typer.echo(f"{verb}: {output.number(counts.get('ok', 0))} ok")
    for status, number in sorted(counts.items()):
        if status != "ok":
            first = ", ".join(str(row["id"]) for row in failed if row["status"] == status)[:60]
            typer.echo(f"{verb}: {output.number(number)} {status}: {first}", err=True)
