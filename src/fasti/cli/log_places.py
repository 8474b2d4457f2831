"""Places in a log as people write them on a command line."""

from __future__ import annotations

from datetime import datetime

import typer

from fasti.cli import moments

Place = str | int | datetime


def place(text: str, option: str) -> Place:
    """`earliest`, `latest` (or `end`), an offset, or a time: ISO 8601 with a zone, or `-1h`."""
    written = text.strip()
    if written in ("earliest", "start"):
        return "earliest"
    if written in ("latest", "end"):
        return "latest"
    if written.isdecimal():
        return int(written)
    try:
        return moments.moment_or_distance(written)
    except typer.BadParameter as error:
        raise typer.BadParameter(
            f"{text!r} is not a place in a log: write earliest, latest, an offset such as 1000, or a "
            f"time such as 2026-12-24T18:00+01:00 or -1h ({error.message})",
            param_hint=option,
        ) from None
