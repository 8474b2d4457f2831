"""`fasti schedules`: what cron topics emit, and when."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fasti.cli import moments, output, payloads
from fasti.cli.commands import group
from fasti.cli.connection import Client, Topic, with_client
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
from fasti.cli.signatures import option, with_options

if TYPE_CHECKING:
    from fasti.client.outcomes import Outcome
    from fasti.client.schedules import Occurrence, Schedule

app = group("schedules")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="So many.")]
_CRON = "When: minute hour day month weekday, or with seconds before them; or @daily."
_ZONE = typer.Option("--timezone", "-z", help="Where: Europe/Paris, America/New_York.")
_GAP = typer.Option(help="A local time that the clock leaps over: shift or skip.")
_FOLD = typer.Option(help="One that comes twice: first, second or both.")
_TEMPLATE = "Fill in {{occurrence}}, {{local}}, {{date}} and {{schedule}}."
_MISFIRE = "What was missed while no broker ran: once, skip or all."
_OVERLAP = "The last message is not finished: allow, skip the next, cancel it."
_URGENCY = typer.Option(min=0, max=65_535, help="In a priority topic: how urgent, 0 first.")
_TIMES = [
    option("cron", Annotated[str | None, typer.Option(help=_CRON)]),
    option("every", Annotated[timedelta | None, duration("Or how often: 30s, 15m, 1h.")]),
    option("timezone", Annotated[str, _ZONE], "UTC"),
    option("start", Annotated[datetime | None, moment("Not before then.")]),
    option("end", Annotated[datetime | None, moment("Not after then.")]),
]
_CLOCK_CHANGES = [
    option("gap", Annotated[str, _GAP], "shift"),
    option("fold", Annotated[str, _FOLD], "first"),
]
# The broker refuses words that it doesn't know.
_DEFINITION = [
    *_TIMES,
    option("jitter", Annotated[timedelta | None, duration("Each later by up to so much.")]),
    option("template", Annotated[bool, typer.Option("--template", help=_TEMPLATE)], False),
    option("headers", Headers),
    option("content_type", ContentType),
    option("subject", Annotated[str | None, typer.Option(help="What its messages are about.")]),
    option("priority", Annotated[int, _URGENCY], 0),
    option(
        "expires",
        Annotated[timedelta | None, duration("Dead unless begun so long after it is due.")],
    ),
    *_CLOCK_CHANGES,
    option("misfire", Annotated[str, typer.Option(help=_MISFIRE)], "once"),
    option("misfire_max", Annotated[int, typer.Option(min=1, help="At most so many of all.")], 100),
    option(
        "misfire_grace", Annotated[timedelta, duration("Up to so late it is not missed.")], "10s"
    ),
    option("overlap", Annotated[str, typer.Option(help=_OVERLAP)], "allow"),
]


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
@with_options("definition", _DEFINITION)
def put(
    client: Client,
    topic: Topic,
    name: Name,
    target: Annotated[str, typer.Option(help="The topic that its messages go to.")],
    definition: dict[str, Any],
    payload: Annotated[
        str | None, typer.Argument(help="What each message has; `-`: standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Take the payload from a file.")
    ] = None,
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
    definition["headers"] = headers_of(definition["headers"])
    content = payloads.read(payload or "", file)
    outcome = schedules.put(name, target=target, payload=content, version=version, **definition)
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
@with_options("timing", [*_TIMES, *_CLOCK_CHANGES])
def preview(
    client: Client,
    timing: dict[str, Any],
    topic: Annotated[str | None, typer.Argument(help="The topic.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The schedule.")] = None,
    count: Count = 10,
    after: Annotated[datetime | None, moment("Those after then.")] = None,
    as_json: AsJson = False,
) -> None:
    """The next times of a schedule, or of an expression that is none yet.

    [dim]fasti schedules preview reports daily -n 5[/dim]

    [dim]fasti schedules preview --cron "30 2 * * *" -z Europe/Paris --after 2026-03-28T00:00Z[/dim]
    """
    schedules = client.schedules(topic or "-")
    if name is not None:
        occurrences = schedules.preview(name, count, after=after)
    elif timing["cron"] is None and timing["every"] is None:
        raise typer.BadParameter("name a topic and a schedule, or give --cron or --every")
    else:
        occurrences = schedules.preview(None, count, after=after, **timing)
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


def _refuse(outcome: Outcome, words: str, as_json: bool) -> NoReturn:
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
