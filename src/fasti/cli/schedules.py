"""`fasti schedules`: what cron topics emit, and when."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import moments, output
from fasti.cli.connection import Topic, with_client
from fasti.cli.exits import FOUND_SOMETHING
from fasti.cli.options import AsJson, ContentType, Headers, Yes, headers_of, only_one
from fasti.cli.payloads import as_cell
from fasti.cli.payloads import as_json as payload_json

if TYPE_CHECKING:
    from fasti.client.client import Client
    from fasti.client.outcomes import Outcome
    from fasti.client.schedules import Occurrence, Schedule

app = typer.Typer(
    name="schedules",
    help="Schedules of cron topics: see, make, preview, pause, run and delete them.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
Cron = Annotated[
    str | None,
    typer.Option(
        help="When: minute hour day month weekday, or with seconds before them; or @daily."
    ),
]
Every = Annotated[
    timedelta | None,
    typer.Option(parser=moments.length, metavar="TIME", help="Or how often: 30s, 15m, 1h."),
]
Zone = Annotated[
    str, typer.Option("--timezone", "-z", help="Where: Europe/Paris, America/New_York.")
]
Start = Annotated[
    datetime | None,
    typer.Option(parser=moments.moment_or_distance, metavar="WHEN", help="Not before then."),
]
End = Annotated[
    datetime | None,
    typer.Option(parser=moments.moment_or_distance, metavar="WHEN", help="Not after then."),
]
Gap = Annotated[str, typer.Option(help="A local time that the clock leaps over: shift or skip.")]
Fold = Annotated[str, typer.Option(help="One that comes twice: first, second or both.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1_000, help="So many.")]


@app.command("list")
@with_client
def list_schedules(client: Client, topic: Topic, as_json: AsJson = False) -> None:
    """All schedules of a cron topic, when each happens next, and what it has done."""
    found = client.schedules(topic).list()
    if as_json:
        output.print_json([_as_json(each) for each in found])
        return
    if not found:
        typer.echo(f"{topic} has no schedules; `fasti schedules put` makes one.")
        return
    rows = [
        (
            each.name,
            _when(each),
            each.timezone,
            _target(each),
            "paused" if each.paused else _utc(each.next),
            "" if each.paused or each.next is None else f"{each.next.local:%a %H:%M:%S %z}",
            each.fired,
            each.skipped,
        )
        for each in found
    ]
    names = ("schedule", "when", "zone", "target", "next (UTC)", "next (local)", "fired>")
    output.console().print(output.table(*names, "skipped>", rows=rows))


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
    jitter: Annotated[
        timedelta | None,
        typer.Option(parser=moments.length, metavar="TIME", help="Each later by up to so much."),
    ] = None,
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
        timedelta | None,
        typer.Option(
            parser=moments.length, metavar="TIME", help="Dead unless begun so long after it is due."
        ),
    ] = None,
    gap: Gap = "shift",
    fold: Fold = "first",
    misfire: Annotated[
        str, typer.Option(help="What was missed while no broker ran: once, skip or all.")
    ] = "once",
    misfire_max: Annotated[int, typer.Option(min=1, help="At most so many of all.")] = 100,
    misfire_grace: Annotated[
        timedelta,
        typer.Option(parser=moments.length, metavar="TIME", help="Up to so late it is not missed."),
    ] = "10s",  # type: ignore[assignment]
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
    """Make a schedule, or change it. The same again changes nothing.

    [dim]fasti schedules put reports daily "the report" --target emails --cron "0 9 * * *" -z Europe/Paris[/dim]

    [dim]fasti schedules put reports often --target emails --every 15m --overlap skip[/dim]
    """
    only_one(payload=payload is not None, file=file is not None)
    given: dict[str, Any] = {
        "cron": cron,
        "every": every,
        "timezone": timezone,
        "start": start,
        "end": end,
        "jitter": jitter,
        "template": template,
        "headers": headers_of(headers),
        "content_type": content_type,
        "subject": subject,
        "priority": priority,
        "expires": expires,
        "gap": gap,
        "fold": fold,
        "misfire": misfire,
        "misfire_max": misfire_max,
        "misfire_grace": misfire_grace,
        "overlap": overlap,
    }
    schedules = client.schedules(topic)
    body = _payload(payload, file)
    outcome = schedules.put(name, target=target, payload=body, version=version, **given)
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
    after: Annotated[
        datetime | None,
        typer.Option(parser=moments.moment_or_distance, metavar="WHEN", help="Those after then."),
    ] = None,
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
        found = schedules.preview(name, count, after=after)
    elif cron is None and every is None:
        raise typer.BadParameter("name a topic and a schedule, or give --cron or --every")
    else:
        given: dict[str, Any] = {
            "cron": cron,
            "every": every,
            "timezone": timezone,
            "gap": gap,
            "fold": fold,
        }
        found = schedules.preview(None, count, after=after, start=start, end=end, **given)
    if as_json:
        output.print_json([_moment_json(each) for each in found])
        return
    rows = [(n, _utc(each), _local(each)) for n, each in enumerate(found, 1)]
    output.console().print(output.table("#>", "UTC", "local", rows=rows))


@app.command()
@with_client
def pause(client: Client, topic: Topic, name: Name, as_json: AsJson = False) -> None:
    """Let a schedule rest; what it has emitted ahead is taken back."""
    changed = client.schedules(topic).pause(name)
    _tell(name, "rests" if changed else "rested already", {"changed": changed}, as_json)


@app.command()
@with_client
def resume(client: Client, topic: Topic, name: Name, as_json: AsJson = False) -> None:
    """Let a schedule go on; what it missed while it rested is not made up for."""
    changed = client.schedules(topic).resume(name)
    _tell(name, "goes on" if changed else "was not paused", {"changed": changed}, as_json)


@app.command()
@with_client
def run(client: Client, topic: Topic, name: Name, as_json: AsJson = False) -> None:
    """Emit one message of a schedule now. Ends with 1 if its overlap policy says no."""
    outcome = client.schedules(topic).run_now(name)
    if not outcome.ok:
        _refuse(outcome, f"the last message of {name} (id {outcome.id}) is not finished", as_json)
    _tell(name, f"emitted message {outcome.id}", outcome.to_dict(), as_json)


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
    _tell(name, "is deleted", {"deleted": True}, as_json)


# How they are shown


def _payload(text: str | None, file: Path | None) -> bytes:
    if file is not None:
        return file.read_bytes()
    if text == "-":
        return sys.stdin.buffer.read()
    return (text or "").encode()


def _tell(name: str, words: str, told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json({"name": name, **told})
    else:
        typer.echo(f"{name} {words}")


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
        **payload_json(schedule.definition.payload),
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
        ("payload", as_cell(definition.payload)),
    ]
    for name, value in definition.to_dict().items():
        if name.endswith("_us") and name != "every_us":
            shown = moments.iso(value) if name in ("start_us", "end_us") else _length(value)
            rows.append((name.removesuffix("_us"), shown))
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
    output.console().print(output.table(schedule.name, "", rows=rows))


def _length(value: int) -> str:
    return moments.shown_length(value)
