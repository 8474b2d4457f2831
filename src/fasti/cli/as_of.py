"""As of when a read with `--stale` is, for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import typer

from fasti.cli import moments

if TYPE_CHECKING:
    from fasti.client.stale import Stale

T = TypeVar("T")


class AsOf:
    """As of when a stale read is; nothing, until one was taken."""

    def __init__(self) -> None:
        self.at_us: int | None = None

    def take(self, found: Stale[T]) -> T:
        """What it gave."""
        self.at_us = found.as_of_us
        return found.value

    @property
    def fields(self) -> dict[str, Any]:
        """For programs."""
        return {} if self.at_us is None else {"as_of": moments.iso(self.at_us)}

    def print_line(self) -> None:
        """For people, beside what was read."""
        if self.at_us is not None:
            typer.echo(f"As of {moments.shown_moment(self.at_us)}; there may be news.", err=True)
