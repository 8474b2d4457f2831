"""What became of the messages that a command was to change, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from fasti.cli import moments, output
from fasti.cli.exits import fail_unless

if TYPE_CHECKING:
    from fasti.client.outcomes import Outcome, Outcomes

_ROWS_MAX = 50
# What a person may want to know about an outcome besides its name.
_MEANINGS = {
    "conflict": "its version is another one, or a live message has the key",
    "not_found": "there is no such message",
    "not_owner": "it belongs to another owner: see --owner",
    "gone": "it is finished, and forgotten how",
    "dead": "it is dead: see `fasti dead`",
    "duplicate": "a live message has the key, and was kept",
    "aborted": "another row was not taken, and this one hung on it",
}


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """What became of one message, for people and for programs."""

    status: str
    id: int = 0
    version: int = 0
    key: str | None = None
    at_us: int | None = None
    by: str | None = None

    @classmethod
    def of(cls, outcome: Outcome, key: str | None = None) -> MessageOutcome:
        """From the SDK's outcome."""
        fields = (outcome.status, outcome.id, outcome.version, key, outcome.at_us, outcome.by)
        return cls(*fields)

    @property
    def ok(self) -> bool:
        """Whether what was asked for happened."""
        return self.status == "ok"

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        fields: dict[str, Any] = {"status": self.status, "id": self.id or None}
        if self.key is not None:
            fields["key"] = self.key
        fields["version"] = self.version or None
        if self.at_us is not None:
            fields["until" if self.status == "leased" else "at"] = moments.iso(self.at_us)
        if self.by is not None:
            fields["by"] = self.by
        return fields

    def explanation(self) -> str:
        """For people."""
        if self.status == "leased":
            until = f" until {moments.shown_moment(self.at_us)}" if self.at_us else ""
            return f"{self.by or 'a consumer'} has it{until}"
        if self.at_us is not None:
            return f"at {moments.shown_moment(self.at_us)}"
        meaning = _MEANINGS.get(self.status, "")
        # It was to go to several topics, and that one did not take it.
        return f"in {self.by}: {meaning}" if self.by is not None else meaning


def outcomes_of(
    outcomes: Outcome | Outcomes, keys: Sequence[str] | None = None
) -> list[MessageOutcome]:
    """From the SDK's outcome of one message, or of several."""
    rows = list(outcomes) if isinstance(outcomes, Sequence) else [outcomes]
    names: Sequence[str | None] = keys or [None] * len(rows)
    return [MessageOutcome.of(row, name) for row, name in zip(rows, names, strict=True)]


def conclude(outcomes: Sequence[MessageOutcome], as_json: bool) -> None:
    """Prints the outcomes; ends with 1 if one of them is not ok."""
    if as_json:
        output.print_json([outcome.to_dict() for outcome in outcomes])
    else:
        print_outcomes(outcomes)
    fail_unless(all(outcome.ok for outcome in outcomes))


def print_outcomes(outcomes: Sequence[MessageOutcome]) -> None:
    """A table of them; of a great many the first ones, those that are not ok before the others."""
    first = sorted(outcomes, key=lambda outcome: outcome.ok)[:_ROWS_MAX]
    shown = outcomes if len(outcomes) <= _ROWS_MAX else first
    keyed = any(outcome.key is not None for outcome in shown)
    rows = [
        (
            *((outcome.key or "",) if keyed else ()),
            str(outcome.id) if outcome.id else "",
            outcome.status,
            outcome.version or "",
            outcome.explanation(),
        )
        for outcome in shown
    ]
    names = (*(("key",) if keyed else ()), "id>", "outcome", "version>", "")
    output.print_table(*names, rows=rows)
    if len(outcomes) > len(shown):
        good = sum(outcome.ok for outcome in outcomes)
        typer.echo(
            f"{output.number(len(outcomes))} messages: {output.number(good)} ok,"
            f" {output.number(len(outcomes) - good)} not; the first {_ROWS_MAX} are shown"
        )


def conclude_bulk(verb: str, outcomes: Any, as_json: bool, dry_run: bool = False) -> None:
    """How many came out how, of a list (`Outcomes`) or of what fit a filter; ends with 1 if not
    all are ok.
    """
    counts = outcomes.counts()
    failed = outcomes.failed
    if not isinstance(failed, list):
        failed = [outcomes[row].to_dict() for row in failed.tolist()]
    if as_json:
        result = {"ok": counts.get("ok", 0), "outcomes": counts, "failed": failed}
        output.print_json(result | ({"dry_run": True} if dry_run else {}))
    else:
        _print_counts(f"{verb} (dry run)" if dry_run else verb, counts, failed)
    fail_unless(counts.get("ok", 0) == sum(counts.values()))


def _print_counts(verb: str, counts: dict[str, int], failed: list[dict[str, Any]]) -> None:
    typer.echo(f"{verb}: {output.number(counts.get('ok', 0))} ok")
    for status, number in sorted(counts.items()):
        if status != "ok":
            first = ", ".join(str(row["id"]) for row in failed if row["status"] == status)[:60]
            typer.echo(f"{verb}: {output.number(number)} {status}: {first}", err=True)
