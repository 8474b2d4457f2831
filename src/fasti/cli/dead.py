"""`fasti dead`: look at messages that failed for good, give them another life, or drop them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from fasti.cli import output
from fasti.cli.connection import Topic, with_client
from fasti.cli.exits import FOUND_SOMETHING
from fasti.cli.listing import print_messages
from fasti.cli.options import AsJson, Delay, Ids, Yes, only_one
from fasti.cli.progress import progress

if TYPE_CHECKING:
    from fasti.client.client import Client
    from fasti.client.messages import Messages
    from fasti.client.outcomes import Outcomes

app = typer.Typer(
    name="dead", help="Messages that failed for good: see, redrive, purge.", no_args_is_help=True
)

_BATCH_ROWS = 5_000

All = Annotated[bool, typer.Option("--all", help="All dead messages of the topic.")]
Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Of all, those whose reason has this text.")
]


@app.command("list")
@with_client
def list_dead(
    client: Client,
    topic: Topic,
    reason: Reason = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 50,
    payload: Annotated[
        bool, typer.Option("--payload", help="Also keys, headers and payloads.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The dead messages of a topic, and why they died."""
    found: list[pa.RecordBatch] = []
    rows = 0
    for batch in client.messages(topic).scan(state="dead", payload=payload):
        found.append(_with_reason(batch, reason))
        rows += found[-1].num_rows
        if rows > limit:
            break
    print_messages(pa.Table.from_batches(found).slice(0, limit), as_json, more=rows > limit)


@app.command()
@with_client
def redrive(
    client: Client,
    topic: Topic,
    every: All = False,
    ids: Ids = None,
    reason: Reason = None,
    delay: Delay = None,
    as_json: AsJson = False,
) -> None:
    """Give dead messages another life: they fall due again, now or after `--delay`.

    [dim]fasti dead redrive emails --all --reason "connection refused" --delay 5m[/dim]
    """
    messages = client.messages(topic)
    chosen = _chosen(messages, every, ids, reason)
    _carry_out("redrive", chosen, lambda part: messages.redrive(part, delay=delay), as_json)


@app.command()
@with_client
def purge(
    client: Client,
    topic: Topic,
    every: All = False,
    ids: Ids = None,
    reason: Reason = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop dead messages for good."""
    messages = client.messages(topic)
    chosen = _chosen(messages, every, ids, reason)
    if chosen and not yes:
        what = f"{output.number(len(chosen))} dead message{'' if len(chosen) == 1 else 's'}"
        typer.confirm(f"Drop {what} of {topic} for good?", abort=True, err=True)
    _carry_out("purge", chosen, messages.purge, as_json)


def _chosen(
    messages: Messages, every: bool, ids: list[int] | None, reason: str | None
) -> list[int]:
    only_one(all=every, id=ids)
    only_one(id=ids, reason=reason)
    if ids:
        return ids
    if not every and reason is None:
        raise typer.BadParameter("say which: --id 17, --all, or --reason TEXT")
    found: list[int] = []
    for batch in messages.scan(state="dead"):
        found += _with_reason(batch, reason).column("id").to_pylist()
    return found


def _with_reason(batch: pa.RecordBatch, reason: str | None) -> pa.RecordBatch:
    if reason is None:
        return batch
    return batch.filter(pc.match_substring(batch.column("reason"), reason))


def _carry_out(
    verb: str, ids: list[int], change: Callable[[list[int]], Outcomes], as_json: bool
) -> None:
    counts: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    with progress(verb, len(ids)) as advance:
        for begin in range(0, len(ids), _BATCH_ROWS):
            outcomes = change(ids[begin : begin + _BATCH_ROWS])
            counts.update(outcomes.counts())
            failed += [outcomes[row].to_dict() for row in outcomes.failed.tolist()]
            advance(len(outcomes))
    if as_json:
        output.print_json({"ok": counts["ok"], "outcomes": dict(counts), "failed": failed})
    else:
        _tell(verb, counts, failed)
    if failed:
        raise typer.Exit(FOUND_SOMETHING)


def _tell(verb: str, counts: Counter[str], failed: list[dict[str, Any]]) -> None:
    typer.echo(f"{verb}: {output.number(counts['ok'])} ok")
    for status, count in sorted(counts.items()):
        if status != "ok":
            first = ", ".join(str(row["id"]) for row in failed if row["status"] == status)[:60]
            typer.echo(f"{verb}: {output.number(count)} {status}: {first}", err=True)
