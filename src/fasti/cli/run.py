"""`fasti run`: the handlers of an app, in one process or several."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from fasti.cli.connection import Place, with_place_instead
from fasti.cli.options import duration

if TYPE_CHECKING:
    from fasti.app.app import App


@with_place_instead
def run(
    place: Place,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP",
            help="Where the app is, as in `shop.tasks:app`.",
            show_default=False,
        ),
    ],
    workers: Annotated[
        int, typer.Option("--workers", "-w", min=1, help="How many processes run it.")
    ] = 1,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", "-c", min=1, help="For every handler, whatever it was declared with."
        ),
    ] = None,
    grace: Annotated[
        timedelta | None,
        duration("How long running handlers may go on after SIGTERM.  [default: the app's, 30s]"),
    ] = None,
    log_level: Annotated[
        str, typer.Option(envvar="FASTI_LOG_LEVEL", help="What is logged, to stderr.")
    ] = "info",
    log_format: Annotated[
        str, typer.Option(envvar="FASTI_LOG_FORMAT", help="text, or json: an object per line.")
    ] = "text",
) -> None:
    """Run the handlers of an app until SIGTERM or Ctrl-C.

    The first signal lets running handlers finish, a second one ends them. A worker process that dies
    is started again.

    [dim]fasti run shop.tasks:app --workers 4[/dim]
    """
    # Imported late: the other commands need none of it.
    from fasti.app.loading import load
    from fasti.app.reach import Reach
    from fasti.app.supervisor import WorkerPlan, supervise
    from fasti.broker.logs import set_up

    set_up(log_level, log_format)
    app = load(reference)
    reach = Reach(place.address or None, place.token, *place.files())
    app.use(reach)
    if grace is not None:
        app.grace_s = grace.total_seconds()
    typer.echo(_banner(app, reference, workers, concurrency), err=True)
    if workers == 1:
        app.run(concurrency=concurrency)
        return
    plan = WorkerPlan(reference, reach, concurrency, app.grace_s, (log_level, log_format))
    supervise(plan, workers)


def _banner(app: App, reference: str, workers: int, concurrency: int | None) -> str:
    from fasti.client.address import parse_address

    lines = [f"{reference} at {parse_address(app.address)}, workers: {workers}"]
    width = max((len(handler.topic) for handler in app.handlers), default=0)
    for handler in app.handlers:
        most = concurrency or handler.settings.concurrency
        kind = handler.settings.kind
        lines.append(f"  {handler.topic:{width}}  {handler.label}, {most} at a time by {kind}")
    return "\n".join([*lines, "Ctrl-C stops it."])
