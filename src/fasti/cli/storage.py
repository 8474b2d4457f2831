"""`fasti storage`: look into a data directory, and repair its journal."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fasti.cli import moments, output
from fasti.cli.commands import group
from fasti.cli.connection import Place, with_place
from fasti.cli.exits import fail_unless
from fasti.cli.options import AsJson, JsonWithoutProgress, size
from fasti.cli.progress import progress
from fasti.storage.tools.at_rest import holder, shard_files
from fasti.storage.tools.clock_reset import reset_clock
from fasti.storage.tools.inspect import Report, Stats, inspect
from fasti.storage.tools.inspect import stats as read_stats
from fasti.storage.tools.journal_repair import Action
from fasti.storage.tools.losses import IdRange, Losses
from fasti.storage.tools.repair import repair_directory
from fasti.storage.tools.scrub_directory import scrub_directory

# How many ranges of ids a table shows; `--json` has all.
_RANGES = 8

app = group("storage")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.")]
Apply = Annotated[
    bool, typer.Option("--apply", help="Do it. Without this, only print what would be done.")
]


@app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Read the journal, the manifest and every block, and tell what is wrong.

    Changes nothing. Exits with 0 if nothing that was acknowledged is lost, else with 1.
    """
    found: dict[str, Any] = {}
    for label, files in shard_files(directory):
        user = holder(files)
        report = inspect(files)
        found[label] = {"ok": report.ok, "in_use": user is not None, **asdict(report)}
        if not as_json:
            _print_label(label)
            if user is not None:
                typer.echo(f"{user.message}: the end of the journal may be a write under way")
            _print_report(report)
    _print_json(found, as_json)
    fail_unless(all(each["ok"] for each in found.values()))


def _print_label(label: str) -> None:
    if label:
        typer.echo(f"{label}:")


def _print_json(found: dict[str, Any], wanted: bool) -> None:
    """What was found of each shard, by its folder; of the only one, itself."""
    if wanted:
        output.print_json(found.get("", {"shards": found}))


@app.command()
@with_place
def scrub(
    place: Place,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="A data directory; without one a broker is asked."),
    ] = None,
    rate: Annotated[int | None, size("Read a directory at most so fast, such as 20MiB.")] = None,
    as_json: JsonWithoutProgress = False,
) -> None:
    """Read all blocks and the journal, and tell which files are damaged and whose messages they held.

    A broker does it at its own rate, beside its traffic, and gives damaged messages up at once. Of a
    directory that a broker has open the end of the journal is left out. Exits with 1 if something is damaged.

    [dim]fasti storage scrub[/dim]
    [dim]fasti storage scrub /var/lib/fasti --rate 50MiB[/dim]
    """
    found: dict[str, Any] = {}
    with progress("scrub", wanted=not as_json, in_bytes=True) as report:
        if directory is not None:
            for label, files in shard_files(directory):
                found[label] = scrub_directory(files, report, rate or 0)
        else:
            with place.client() as client:
                found[""] = client.scrub(report)
    for label, done in found.items():
        if not as_json:
            _print_label(label)
            _print_findings(done)
    _print_json(found, as_json)
    fail_unless(not any(done["findings"] for done in found.values()))


def _print_findings(done: dict[str, Any]) -> None:
    rows = [
        (
            *(finding["file"], finding["offset"], finding["message"]),
            "; ".join(f"{loss['topic']}: {loss['count']}" for loss in finding["lost"]),
        )
        for finding in done["findings"]
    ]
    if rows:
        output.print_table("file", "offset>", "what", "messages lost", rows=rows)
    verdict = f"{len(rows)} DAMAGED" if rows else "no damage"
    typer.echo(f"read {output.size(done['read_bytes'])}: {verdict}")


@app.command()
def repair(
    directory: Directory,
    apply: Apply = False,
    allow_gap: Annotated[
        bool,
        typer.Option(
            "--allow-gap", help="Give up damaged frames alone, instead of all that follow them."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a directory with damaged frames one that opens again, and tell what was lost.

    Tells its plan, and what it would cost, unless `--apply` is given. The old journal is kept below lost+found. Afterwards
    positions of the change feed from before answer `gone`. Exits with 1 if there is something to
    do, or something is left.
    """
    found: dict[str, Any] = {}
    is_well = True
    for label, files in shard_files(directory):
        repaired = repair_directory(files, allow_gap=allow_gap, dry_run=not apply)
        actions, losses = repaired.actions, repaired.losses
        left = inspect(files) if apply else None
        remaining = None if left is None else asdict(left)["findings"]
        done = [asdict(action) for action in actions]
        lost = None if losses is None else losses.to_dict()
        found[label] = {"applied": apply, "actions": done, "losses": lost, "findings": remaining}
        if not as_json:
            _print_label(label)
            _print_actions(actions, apply)
            if losses is not None:
                _print_losses(losses, apply)
            if left is not None:
                _print_report(left)
        is_well = is_well and (apply or not actions) and (left is None or left.ok)
    _print_json(found, as_json)
    fail_unless(is_well)


@app.command("stats")
def print_stats(directory: Directory, as_json: AsJson = False) -> None:
    """Tell what a data directory holds: journal, blocks, topics.

    Opens it for reading only. While a shard has it open this answers `locked`.
    """
    found: dict[str, Any] = {}
    for label, files in shard_files(directory):
        stats = read_stats(files, time.time_ns() // 1000)
        found[label] = stats.to_dict()
        if not as_json:
            _print_label(label)
            _print_stats(stats)
    _print_json(found, as_json)


@app.command("reset-clock")
def reset(
    directory: Directory,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Set the time of a data directory back to the present, if a clock that was ahead was believed.

    For a broker that doesn't start because its last event is ahead of the clock (`clock_behind`). Make sure
    that this machine's clock is right. Nothing is lost; positions of the change feed from before answer
    `gone`. Exits with 1 if there is something to do.
    """
    found: dict[str, Any] = {}
    needed = False
    for label, files in shard_files(directory):
        done = reset_clock(files, moments.now_us(), dry_run=not apply)
        found[label] = {"applied": apply, **done.to_dict()}
        needed = needed or done.needed
        if as_json:
            continue
        _print_label(label)
        if not done.needed:
            typer.echo("The last event is not ahead of the clock: there is nothing to set back.")
        else:
            last, now = (moments.shown_moment(us) for us in (done.last_us, done.now_us))
            would = "was" if apply else "would be (run again with --apply)"
            typer.echo(f"The last event, of {last}, {would} set back to {now}.")
    _print_json(found, as_json)
    fail_unless(apply or not needed)


def _print_report(report: Report) -> None:
    if report.findings:
        rows = [
            (f.file, f.offset, f.kind, f.message, f.remedy, "no" if f.harmless else "YES")
            for f in report.findings
        ]
        names = ("file", "offset>", "kind", "what", "remedy", "harm")
        output.print_table(*names, rows=rows)
    typer.echo(
        f"{output.number(report.segments)} segments with {output.number(report.frames)} frames "
        f"({output.size(report.journal_bytes)}), {output.number(report.blocks)} objects in blocks "
        f"({output.size(report.block_bytes)}): {'ok' if report.ok else 'DAMAGED'}"
    )


def _print_actions(actions: list[Action], applied: bool) -> None:
    if not actions:
        typer.echo("The directory needs no repair.")
        return
    rows = [(a.kind, a.file, a.offset, a.message) for a in actions]
    title = "done" if applied else "would be done (run again with --apply)"
    output.print_table("action", "file", "offset>", "what", rows=rows, title=title)


def _print_losses(losses: Losses, applied: bool) -> None:
    gaps = [f"{first} to {'the end' if last is None else last}" for first, last in losses.frames]
    if gaps:
        typer.echo(f"frames {'given up' if applied else 'to give up'}: {', '.join(gaps)}")
    rows = [
        (
            topic.topic,
            topic.lost,
            _ranges(topic.ids),
            _ranges(topic.possible),
            topic.uncertain,
            topic.ended,
        )
        for topic in losses.topics
    ]
    if rows:
        title = "what it cost" if applied else "what it would cost"
        names = ("topic", "lost>", "ids or offsets", "possibly lost ids", "uncertain>", "ended>")
        output.print_table(*names, rows=rows, title=title)
        typer.echo(
            "lost: gone for good. possibly lost: ids that may have been given in the gap; none is "
            "given again. uncertain: may have been changed or finished in the gap, and may be "
            "delivered again. ended: a later frame proves it; dead now, or removed."
        )
    for note in losses.notes:
        typer.echo(f"note: {note}")


def _ranges(ranges: list[IdRange]) -> str:
    few = [f"{r.first}" if r.first == r.last else f"{r.first}-{r.last}" for r in ranges[:_RANGES]]
    more = [f"and {len(ranges) - _RANGES} more ranges"] if len(ranges) > _RANGES else []
    return ", ".join(few + more)


def _print_stats(stats: Stats) -> None:
    rows = [
        ("manifest", f"version {stats.manifest_version}, checkpoint {stats.checkpoint}"),
        ("position", f"frame {output.number(stats.position)}"),
        (
            "journal",
            f"{output.number(stats.segments)} segments, frames {output.number(stats.first_sequence)} "
            f"to {output.number(stats.last_sequence)}, {output.size(stats.journal_bytes)} "
            "with spare segments",
        ),
        ("replayed", f"{output.number(stats.replayed_frames)} frames after the position"),
        (
            "blocks",
            f"{stats.blocks} with {output.number(stats.block_rows)} rows, "
            f"{stats.live_share:.0%} live; {stats.delta_blocks} of changes; "
            f"{output.size(stats.block_bytes)}",
        ),
        ("logs", f"{stats.log_blocks} blocks with {output.number(stats.log_rows)} rows"),
        ("on disk", output.size(stats.total_bytes)),
    ]
    output.print_table("what", "how much", rows=rows)
    if not stats.topics:
        return
    # Kinds have words of their own beside those that all have.
    states = list(dict.fromkeys(state for topic in stats.topics for state in topic.states))
    rows_of_topics = [
        (topic.name, topic.partitions, *(topic.states.get(state, 0) for state in states))
        for topic in stats.topics
    ]
    names = ("topic", "partitions>", *(f"{state}>" for state in states))
    output.print_table(*names, rows=rows_of_topics)
