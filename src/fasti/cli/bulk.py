"""Changing all pending messages that fit a filter: which are meant, asking first, and the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.options import only_one
from fasti.cli.outcomes import conclude_bulk
from fasti.cli.progress import progress_of_total

if TYPE_CHECKING:
    from fasti.client.bulk import BulkOutcomes

All = Annotated[bool, typer.Option("--all", help="All pending messages of the topic.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only tell what would become of them: nothing changes.")
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which messages a command means: those that are named, or those that fit."""

    ids: list[int] | None
    keys: list[str] | None
    every: bool = False
    filters: dict[str, Any] = field(default_factory=dict)

    @property
    def by_name(self) -> bool:
        """Whether ids or keys are given."""
        return bool(self.ids or self.keys)

    @property
    def named(self) -> dict[str, Any]:
        """For the SDK."""
        return {"id": self.ids} if self.ids else {"key": self.keys}

    @property
    def where(self) -> dict[str, Any]:
        """For the SDK."""
        return {**self.filters, "everything": self.every}


def chosen(
    ids: list[int] | None, keys: list[str] | None, every: bool, owner: str, **given: Any
) -> Chosen:
    """What the options say. Refuses two things at once, and nothing at all."""
    filters = {name: value for name, value in given.items() if value is not None}
    only_one(id=ids, key=keys, all=every)
    for name in filters:
        only_one(id=ids, key=keys, **{name: True})
    if not (ids or keys or every or filters):
        raise typer.BadParameter(
            "say which: --id 17, --key user-7, a filter such as --key-prefix cart-, or --all"
        )
    if owner:
        filters["owner"] = owner
    return Chosen(ids, keys, every, filters)


def change(
    verb: str,
    topic: str,
    apply: Callable[..., BulkOutcomes],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Counts, asks, changes with a bar, and tells how many came out how."""
    if dry_run:
        conclude_bulk(verb, apply(dry_run=True), as_json, dry_run=True)
        return
    if not yes:
        counts = apply(dry_run=True).counts()
        good = counts.pop("ok", 0)
        others = "".join(f", {output.number(n)} answer {word}" for word, n in counts.items())
        if not good and not counts:
            typer.echo("There are no such messages.", err=True)
        else:
            what = f"{output.number(good)} message{'' if good == 1 else 's'} of {topic}"
            typer.confirm(f"{verb.capitalize()} {what}{others}?", abort=True, err=True)
    with progress_of_total(verb) as tell:
        found = apply(progress=tell)
    conclude_bulk(verb, found, as_json)
