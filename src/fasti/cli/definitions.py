"""`fasti topics export` and `fasti topics apply`: topics, bindings and schedules as one file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.connection import Client, with_client
from fasti.cli.exits import fail_unless
from fasti.cli.options import AsJson
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.client.definitions import Change

_WRITTEN = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE", help="Where to write: TOML, or JSON if it ends so. Default: the terminal."
    ),
]
_READ = Annotated[
    Path, typer.Argument(metavar="FILE", help="TOML, or JSON if it ends so; - for standard input.")
]
_SIGNS = {"create": "+", "change": "~", "delete": "-", "keep": "="}


@with_client
def export(client: Client, file: _WRITTEN = None, as_json: AsJson = False) -> None:
    """Write down all topics with their settings, bindings and schedules; messages are not in it.

    [dim]fasti topics export definitions.toml[/dim]
    """
    from fasti.client import definitions

    document = definitions.export(client)
    in_json = as_json or (file is not None and file.suffix == ".json")
    text = definitions.dumps(document, in_json)
    if file is None:
        typer.echo(text, nl=False)
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise InvalidArgument(f"{file} can't be written: {error}", field="file") from error
    typer.echo(f"{file}: {output.count_of(len(document['topics']), 'topic')}", err=True)


@with_client
def apply(
    client: Client,
    file: _READ,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show what would change; ends with 1 if anything."),
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what is not in the file, messages and all.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring everything into the state that a file describes. Again: nothing is left to do.

    A setting that the file leaves out gets its default. What it doesn't name is left alone,
    unless `--prune` is given.

    [dim]fasti topics apply definitions.toml --dry-run[/dim]
    """
    from fasti.client import definitions

    document = definitions.loads(*_text_of(file))
    changes = definitions.difference(client, document, prune)
    applied = 0 if dry_run else definitions.apply(client, changes)
    _print(changes, applied, dry_run, as_json)
    fail_unless(not dry_run or all(change.action == "keep" for change in changes))


def _text_of(file: Path) -> tuple[str, bool]:
    if str(file) == "-":
        text = sys.stdin.read()
        return text, text.lstrip().startswith("{")
    try:
        return file.read_text(), file.suffix == ".json"
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} can't be read: {error}", field="file") from error


def _print(changes: list[Change], applied: int, dry_run: bool, as_json: bool) -> None:
    pending = sum(change.action != "keep" for change in changes)
    if as_json:
        output.print_json(
            {"changes": [c.as_dict() for c in changes], "dry_run": dry_run, "applied": applied}
        )
        return
    for change in changes:
        for line in _lines(change):
            typer.echo(line)
    if not pending:
        typer.echo("Everything matches the file.")
    elif dry_run:
        typer.echo(f"{output.count_of(pending, 'change')} to make; nothing was changed.")
    else:
        typer.echo(f"{output.count_of(applied, 'change')} made.")


def _lines(change: Change) -> list[str]:
    """`+ topic emails`, and below what it is or what differs."""
    where = "" if change.what == "topic" else f" of {change.topic}"
    note = ", not in the file: left alone" if change.action == "keep" else ""
    if change.action == "delete" and change.messages:
        note = f", with {output.count_of(change.messages, 'message')}"
    lines = [f"{_SIGNS[change.action]} {change.what} {change.name}{where}{note}"]
    if change.action in ("keep", "delete") or change.what == "binding":
        return lines
    before, after = change.before or {}, change.after or {}
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            text = _text(new) if change.action == "create" else f"{_text(old)} -> {_text(new)}"
            lines.append(f"    {name}: {text}")
    return lines


def _text(value: Any) -> str:
    return "default" if value is None else str(value)
