"""Changing pending messages, by name or by filter: which are meant, asking first, and the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.connection import Owner
from fasti.cli.options import From, Ids, KeyPrefix, Keys, Until, only_one
from fasti.cli.outcomes import conclude_bulk
from fasti.cli.progress import progress
from fasti.cli.signatures import option, with_options

if TYPE_CHECKING:
    from fasti.client.bulk import BulkOutcomes

All = Annotated[bool, typer.Option("--all", help="All pending messages of the topic.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only print what would become of them: nothing changes.")
]


class Pending(StrEnum):
    """The states in which a message can still be changed."""

    SCHEDULED = "scheduled"
    READY = "ready"
    LEASED = "leased"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages a command means: those that are named, or those that fit a filter."""

    ids: list[int] | None
    keys: list[str] | None
    every: bool = False
    filters: dict[str, Any] = field(default_factory=dict)

    @property
    def by_name(self) -> bool:
        """Whether ids or keys are given."""
        return bool(self.ids or self.keys)

    @property
    def target(self) -> dict[str, Any]:
        """Ids or keys, as the SDK's calls take them."""
        return {"id": self.ids} if self.ids else {"key": self.keys}

    @property
    def where(self) -> dict[str, Any]:
        """The filter, as the SDK's calls take it."""
        return {**self.filters, "everything": self.every}


def _choice(
    ids: list[int] | None, keys: list[str] | None, every: bool, owner: str, **values: Any
) -> Choice:
    """Refuses two ways of choosing at once, and none at all."""
    filters = {name: value for name, value in values.items() if value is not None}
    only_one(id=ids, key=keys, all=every)
    for name in filters:
        only_one(id=ids, key=keys, **{name: True})
    if not (ids or keys or every or filters):
        raise typer.BadParameter(
            "say which: --id 17, --key user-7, a filter such as --key-prefix cart-, or --all"
        )
    if owner:
        filters["owner"] = owner
    return Choice(ids, keys, every, filters)


_STATE = Annotated[Pending | None, typer.Option(help="Only those in this state.")]
with_choice = with_options(
    "choice",
    [
        option("ids", Ids),
        option("keys", Keys),
        option("due_from", From),
        option("due_to", Until),
        option("key_prefix", KeyPrefix),
        option("state", _STATE),
        option("every", All, False),
        option("owner", Owner, ""),
    ],
    _choice,
)


def change(
    verb: str,
    topic: str,
    apply: Callable[..., BulkOutcomes],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Counts, asks, changes with a bar, and prints how many came out how."""
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
            messages = f"{output.count_of(good, 'message')} of {topic}"
            typer.confirm(f"{verb.capitalize()} {messages}{others}?", abort=True, err=True)
    with progress(verb) as report:
        outcomes = apply(progress=report)
    conclude_bulk(verb, outcomes, as_json)
