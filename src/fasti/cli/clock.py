"""`fasti clock`: what the broker's clock makes of its machine's, and believing a leap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from fasti.cli import moments, output
from fasti.cli.commands import group
from fasti.cli.connection import Client, with_client
from fasti.cli.exits import fail_unless
from fasti.cli.options import AsJson

if TYPE_CHECKING:
    from fasti.client.clock_info import ClockInfo

app = group("clock", default="show")
_STATES = {
    "following": "it follows the wall clock",
    "slowed": "the wall clock was set back: it goes slower until that has caught up",
    "doubting": "the wall clock leapt ahead: it is not believed yet",
}


@app.command()
@with_client
def show(client: Client, as_json: AsJson = False) -> None:
    """What the broker's clock shows, beside the wall clock of its machine. Ends with 1 if it doesn't
    follow that.

    `show` may be left out.

    [dim]fasti clock[/dim]
    """
    info = client.clock_info()
    if as_json:
        output.print_json(_as_json(info))
    else:
        now_us, wall_us = moments.microseconds(info.now), moments.microseconds(info.wall)
        typer.echo(f"broker's clock  {moments.shown_moment(now_us)}")
        typer.echo(f"wall clock      {moments.shown_moment(wall_us)} ({info.offset_s:+.3f} s)")
        typer.echo(_STATES.get(info.state, info.state) + _wait(info))
    fail_unless(info.state == "following")


@app.command()
@with_client
def accept(client: Client, as_json: AsJson = False) -> None:
    """Believe the leap of the wall clock now: it is right.

    What is due by it is handed out then, and what has expired by it goes. That can't be undone. Ends
    with 1 if no leap is in doubt.

    [dim]fasti clock accept[/dim]
    """
    changed = client.accept_clock()
    info = client.clock_info()
    if as_json:
        output.print_json({"changed": changed, **_as_json(info)})
    elif changed:
        now = moments.shown_moment(moments.microseconds(info.now))
        typer.echo(f"accepted: the broker's clock shows {now}")
    else:
        typer.echo("no leap of the wall clock is in doubt", err=True)
    fail_unless(changed)


def _wait(info: ClockInfo) -> str:
    return "" if info.believed_in is None else f", and will be in {info.believed_in}"


def _as_json(info: ClockInfo) -> dict[str, Any]:
    return {
        "now": moments.iso(moments.microseconds(info.now)),
        "wall": moments.iso(moments.microseconds(info.wall)),
        "offset_s": info.offset_s,
        "state": info.state,
        "believed_in_s": None if info.believed_in is None else info.believed_in.total_seconds(),
    }
