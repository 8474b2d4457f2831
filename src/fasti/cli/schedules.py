"""`fasti schedules`: what cron topics emit, and when."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import moments, output, payloads
from fasti.cli.connection import Topic, with_client
from fasti.cli.exits import FOUND_SOMETHING
from fasti.cli.options import (
    AsJson,
    ContentType,
    Headers,
    Yes,
    duration,
    headers_of,
    moment,
    only_one,
)

if TYPE_CHECKING:
    from fasti.client.client import Client
    from fasti.client.outcomes import Outcome
    from fasti.client.schedules import Occurrence, Schedule

app = typer.Typer(
    name="schedules",
    help="Schedules of cron topics: list, create, preview, pause, run and delete them.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
Cron = Annotated[
    str | None,
    typer.Option(
        help="When: minute hour day month weekday, or with seconds before them; or @daily."
    ),
]
Every = Annotated[timedelta | None, duration("Or how often: 30s, 15m, 1h.")]
Zone = Annotated[
    str, typer.Option("--timezone", "-z", help="Where: Europe/Paris, America/New_York.")
]
Start = Annotated[datetime | None, moment("Not before then.")]
End = Annotated[datetime | None, moment("Not after then.")]
Gap = Annotated[str, typer.Option(help="A local time that the clock leaps over: shift or skip.")]
Fold = Annotated[str, typer.Option(help="One that comes twice: first, second or both.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="So many.")]


@app.command("list")
@with_client
def list_schedules(client: Client, topic: Topic, as_json: AsJson = False) -> None:
    """All schedules of a cron topic, when each happens next, and what it has done."""
    output.print_list(
        client.schedules(topic).list(),
        as_json,
        to_dict=_as_json,
        columns=(
            *("schedule", "when", "zone", "target", "next (UTC)", "next (local)"),
            *("fired>", "skipped>"),
        ),
        row=_row,
        empty=f"{topic} has no schedules; `fasti schedules put` creates one.",
    )


def _row(schedule: Schedule) -> tuple[object, ...]:
    following = None if schedule.paused else schedule.next
    return (
        *(schedule.name, _when(schedule), schedule.timezone, _target(schedule)),
        "paused" if schedule.paused else _utc(schedule.next),
        "" if following is None else f"{following.local:%a %H:%M:%S %z}",
        schedule.fired,
        schedule.skipped,
    )


@app.command()
@with_client
def put(
    client: Client,
    topic: Topic,
    name: Name,
    target: Annotated[str, typer.Option(help="The topic that its messages go to.")],
    payload: Annotated[
        str | None, typer.Argument(help="What each message has; `-`: standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Take the payload from a file.")
    ] = None,
    cron: Cron = None,
    every: Every = None,
    timezone: Zone = "UTC",
    start: Start = None,
    end: End = None,
    jitter: Annotated[timedelta | None, duration("Each later by up to so much.")] = None,
    template: Annotated[
        bool,
        typer.Option(
            "--template",
            help="Fill in {{occurrence}}, {{local}}, {{date}} and {{schedule}}.",
        ),
    ] = False,
    headers: Headers = None,
    content_type: ContentType = None,
    subject: Annotated[str | None, typer.Option(help="What its messages are about.")] = None,
    priority: Annotated[
        int, typer.Option(min=0, max=65_535, help="In a priority topic: how urgent, 0 first.")
    ] = 0,
    expires: Annotated[
        timedelta | None, duration("Dead unless begun so long after it is due.")
    ] = None,
    gap: Gap = "shift",
    fold: Fold = "first",
    misfire: Annotated[
        str, typer.Option(help="What was missed while no broker ran: once, skip or all.")
    ] = "once",
    misfire_max: Annotated[int, typer.Option(min=1, help="At most so many of all.")] = 100,
    misfire_grace: Annotated[timedelta, duration("Up to so late it is not missed.")] = "10s",  # type: ignore[assignment]
    overlap: Annotated[
        str,
        typer.Option(help="The last message is not finished: allow, skip the next, cancel it."),
    ] = "allow",
    version: Annotated[
        int | None,
        typer.Option(min=0, help="Only if this is its version (0: if there is none)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a schedule, or change it. The same again changes nothing.

    [dim]fasti schedules put reports daily "the report" --target emails --cron "0 9 * * *" -z Europe/Paris[/dim]

    [dim]fasti schedules put reports often --target emails --every 15m --overlap skip[/dim]
    """
    only_one(payload=payload is not None, file=file is not None)
    schedules = client.schedules(topic)
    # The broker refuses words that it doesn't know.
    policies: dict[str, Any] = {"gap": gap, "fold": fold, "misfire": misfire, "overlap": overlap}
    outcome = schedules.put(
        name,
        target=target,
        payload=payloads.read(payload or "", file),
        version=version,
        cron=cron,
        every=every,
        timezone=timezone,
        start=start,
        end=end,
        jitter=jitter,
        template=template,
        headers=headers_of(headers),
        content_type=content_type,
        subject=subject,
        priority=priority,
        expires=expires,
        misfire_max=misfire_max,
        misfire_grace=misfire_grace,
        **policies,
    )
    if not outcome.ok:
        _refuse(outcome, f"{name} has version {outcome.version}, not {version}", as_json)
    _show(schedules.get(name), as_json)


@app.command()
@with_client
def show(client: Client, topic: Topic, name: Name, as_json: AsJson = False) -> None:
    """One schedule: its definition, and what it has done."""
    _show(client.schedules(topic).get(name), as_json)


@app.command()
@with_client
def preview(
    client: Client,
    topic: Annotated[str | None, typer.Argument(help="The topic.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The schedule.")] = None,
    count: Count = 10,
    after: Annotated[datetime | None, moment("Those after then.")] = None,
    cron: Cron = None,
    every: Every = None,
    timezone: Zone = "UTC",
    start: Start = None,
    end: End = None,
    gap: Gap = "shift",
    fold: Fold = "first",
    as_json: AsJson = False,
) -> None:
    """The next times of a schedule, or of an expression that is none yet.

    [dim]fasti schedules preview reports daily -n 5[/dim]

    [dim]fasti schedules preview --cron "30 2 * * *" -z Europe/Paris --after 2026-03-28T00:00Z[/dim]
    """
    schedules = client.schedules(topic or "-")
    if name is not None:
        occurrences = schedules.preview(name, count, after=after)
    elif cron is None and every is None:
        raise typer.BadParameter("name a topic and a schedule, or give --cron or --every")
    else:
        how: dict[str, Any] = {"timezone": timezone, "gap": gap, "fold": fold}
        how |= {"cron": cron, "every": every, "start": start, "end": end}
        occurrences = schedules.preview(None, count, after=after, **how)
    if as_json:
        output.print_json([_moment_json(occurrence) for occurrence in occurrences])
        return
    rows = [
        (n, _utc(occurrence), _local(occurrence)) for n, occurrence in enumerate(occurrences, 1)
    ]
    output.print_table("#>", "UTC", "local", rows=rows)


@app.command()
@with_client
def pause(client: Client, topic: Topic, name: Name, as_json: AsJson = False) -> None:
    """Pause a schedule; what it has emitted ahead is taken back."""
    changed = client.schedules(topic).pause(name)
    text = f"{name} {'is paused' if changed else 'was paused already'}"
    output.print_result({"name": name, "changed": changed}, text, as_json)


@app.command()
@with_client
def resume(client: Client, topic: Topic, name: Name, as_json: AsJson = False) -> None:
    """Resume a schedule; what it missed while it was paused is not made up for."""
    changed = client.schedules(topic).resume(name)
    text = f"{name} {'is resumed' if changed else 'was not paused'}"
    output.print_result({"name": name, "changed": changed}, text, as_json)


@app.command()
@with_client
def run(client: Client, topic: Topic, name: Name, as_json: AsJson = False) -> None:
    """Emit one message of a schedule now. Ends with 1 if its overlap policy says no."""
    outcome = client.schedules(topic).run_now(name)
    if not outcome.ok:
        _refuse(outcome, f"the last message of {name} (id {outcome.id}) is not finished", as_json)
    result = {"name": name, **outcome.to_dict()}
    output.print_result(result, f"{name} emitted message {outcome.id}", as_json)


@app.command()
@with_client
def delete(
    client: Client, topic: Topic, name: Name, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete a schedule, and what it has emitted ahead."""
    schedules = client.schedules(topic)
    schedules.get(name)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete the schedule {name} of {topic}?", abort=True)
    schedules.delete(name)
    output.print_result({"name": name, "deleted": True}, f"{name} is deleted", as_json)


# How they are shown


def _refuse(outcome: Outcome, words: str, as_json: bool) -> None:
    if as_json:
        output.print_json(outcome.to_dict())
    else:
        typer.echo(f"{outcome.status}: {words}", err=True)
    raise typer.Exit(FOUND_SOMETHING)


def _when(schedule: Schedule) -> str:
    every_us = schedule.definition.every_us
    return schedule.cron or f"every {moments.shown_length(every_us)}"


def _target(schedule: Schedule) -> str:
    """With a word of warning: nothing is emitted until there is such a topic."""
    return f"{schedule.target} (missing)" if schedule.target_missing else schedule.target


def _utc(occurrence: Occurrence | None) -> str:
    return "ended" if occurrence is None else occurrence.at.strftime("%Y-%m-%d %H:%M:%S")


def _local(occurrence: Occurrence | None) -> str:
    return "" if occurrence is None else occurrence.local.strftime("%a %Y-%m-%d %H:%M:%S %z")


def _moment_json(occurrence: Occurrence) -> dict[str, str]:
    at_us = moments.microseconds(occurrence.at)
    return {"utc": moments.iso(at_us), "local": occurrence.local.isoformat()}


def _as_json(schedule: Schedule) -> dict[str, Any]:
    definition = schedule.definition.to_dict()
    definition.pop("payload", None)
    last_us = None if schedule.last is None else moments.microseconds(schedule.last)
    return {
        "name": schedule.name,
        **definition,
        **payloads.as_json(schedule.definition.payload),
        "version": schedule.version,
        "paused": schedule.paused,
        "next": None if schedule.next is None else _moment_json(schedule.next),
        "last": None if last_us is None else moments.iso(last_us),
        "last_id": schedule.last_id,
        "fired": schedule.fired,
        "skipped": schedule.skipped,
        "target_missing": schedule.target_missing,
    }


def _show(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        output.print_json(_as_json(schedule))
        return
    definition = schedule.definition
    rows: list[tuple[str, object]] = [
        ("when", _when(schedule)),
        ("timezone", schedule.timezone),
        ("target", _target(schedule)),
        ("payload", payloads.as_cell(definition.payload)),
    ]
    for name, value in definition.to_dict().items():
        if name.endswith("_us") and name != "every_us":
            show = moments.iso if name in ("start_us", "end_us") else moments.shown_length
            rows.append((name.removesuffix("_us"), show(value)))
        elif name == "headers":
            rows += [("header", f"{key}={text}") for key, text in value.items()]
        elif name not in ("cron", "every_us", "timezone", "target", "payload"):
            rows.append((name, value))
    state = "paused" if schedule.paused else f"{_utc(schedule.next)} UTC"
    rows += [
        ("next", state),
        ("next, local", "" if schedule.paused else _local(schedule.next)),
        ("last", "never" if schedule.last is None else f"{schedule.last:%Y-%m-%d %H:%M:%S} UTC"),
        ("fired", schedule.fired),
        ("skipped", schedule.skipped),
        ("version", schedule.version),
    ]
    output.print_table(schedule.name, "", rows=rows)
