"""`fasti pipeline`: everything that happened as tables, figures, an audit and a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli import output
from fasti.cli.commands import group
from fasti.cli.connection import Place, with_place_in_spark
from fasti.cli.exits import fail_unless
from fasti.cli.options import AsJson, JsonLines, duration, headers_of
from fasti.cli.pipeline_user import user
from fasti.cli.stages import print_figures, print_findings, print_rows, shown_stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fasti.pipeline.lake import Lake
    from fasti.pipeline.runner import RunResult
    from fasti.pipeline.tables import Table

app = group("pipeline")
tables_app = typer.Typer(name="tables", help="The tables of a lake, and their rows.")

LakeDir = Annotated[
    Path,
    typer.Option(
        "--lake",
        envvar="FASTI_LAKE",
        metavar="DIR",
        help="Where the tables lie: a directory of its own, not the broker's data.",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        envvar="FASTI_SPARK_MASTER",
        metavar="MASTER",
        help="Where Spark runs: local[*], spark://host:7077, yarn, k8s://..., or sc://host:15002 "
        "through Spark Connect. Elsewhere than here --lake must be a directory that all of Spark's "
        "machines share.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark. May be repeated."),
]
Payload = Annotated[bool, typer.Option(help="Keep payloads in bronze too.")]
Skip = Annotated[
    bool,
    typer.Option(
        "--skip-gap", help="Go on where the feed begins if it no longer reaches back to the lake."
    ),
]
Check = Annotated[bool, typer.Option("--audit/--no-audit", help="Audit what is new.")]
Page = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where the page goes.")
]
LAKE = Path("fasti-lake")


@app.command()
@with_place_in_spark
def once(
    place: Place,
    lake: LakeDir = LAKE,
    master: Master = "local[*]",
    conf: Conf = None,
    payload: Payload = False,
    audit: Check = True,
    skip_gap: Skip = False,
    as_json: AsJson = False,
) -> None:
    """Bring all tables up to now, write the report, and end.

    Run it again, or after a kill, and it goes on where it was: nothing is lost or counted twice.

    [dim]fasti pipeline once --lake ./lake[/dim]
    """
    options = {"payload": payload, "audit": audit, "on_gap": "skip" if skip_gap else "fail"}
    broker = _broker(place)
    with _lake_and_session(lake, master, conf, broker, new=True) as (tables, spark):
        done = _run(tables, spark, broker, place.token, options)
    _print_done(tables, done, as_json)


@app.command()
@with_place_in_spark
def run(
    place: Place,
    lake: LakeDir = LAKE,
    interval: Annotated[timedelta, duration("A round so often: 30s, 5m.")] = "1m",  # type: ignore[assignment]
    master: Master = "local[*]",
    conf: Conf = None,
    payload: Payload = False,
    audit: Check = True,
    skip_gap: Skip = False,
    as_json: AsJson = False,
) -> None:
    """Keep all tables and the report up to date until Ctrl-C.

    Ctrl-C and SIGTERM end it after the step that is under way. The page loads itself again.
    """
    options = {"payload": payload, "audit": audit, "on_gap": "skip" if skip_gap else "fail"}
    broker = _broker(place)
    with _lake_and_session(lake, master, conf, new=True) as (tables, spark):
        done = _run(tables, spark, broker, place.token, options, interval.total_seconds())
    _print_done(tables, done, as_json)


@app.command()
@with_place_in_spark
def audit(
    place: Place,
    lake: LakeDir = LAKE,
    fail_on_findings: Annotated[
        bool, typer.Option("--fail-on-findings", help="Exit with 1 if there are any.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full/--new", help="Look at everything, or only at what is new.")
    ] = True,
    tables_only: Annotated[
        bool, typer.Option("--tables-only", help="Ask no broker: look at the tables as they are.")
    ] = False,
    master: Master = "local[*]",
    conf: Conf = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Bring the tables up to now, and look whether everything that was promised was kept.

    Every message is accounted for, nothing was early, delivered twice or after its end, and the
    broker's counts agree with its feed: exactly, also under traffic. Anything found is a row.
    """
    from fasti.pipeline.inventory import first_rows

    broker = None if tables_only else _broker(place)
    with _lake_and_session(lake, master, conf, broker, new=not tables_only) as (tables, spark):
        if broker is None:
            _run_offline(tables, spark, full)
        else:
            _run(tables, spark, broker, place.token, {"full": full})
        findings = first_rows(tables, "audit", limit).to_pylist()
        count = tables.gold("audit").rows()
    print_findings(tables, findings, count, as_json)
    fail_unless(not (count and fail_on_findings))


@app.command()
def report(
    lake: LakeDir = LAKE,
    out: Page = None,
    refresh: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="The page loads itself again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make one page of a lake's figures: lateness, throughput, forecast, retries, audit.

    The page is whole in itself: it fetches nothing. Spark isn't needed.
    """
    from fasti.pipeline.report import write

    path, figures = write(_lake_at(lake), out, refresh)
    if as_json:
        output.print_json({"path": str(path), **figures.headlines()})
    else:
        print_figures(figures.headlines())
        typer.echo(path)


@tables_app.callback(invoke_without_command=True)
def tables(context: typer.Context, lake: LakeDir = LAKE, as_json: AsJson = False) -> None:
    """List the tables of a lake: rows, version, size."""
    context.obj = lake
    if context.invoked_subcommand is not None:
        return
    from fasti.pipeline.inventory import inventory

    output.print_list(
        inventory(_lake_at(lake)),
        as_json,
        to_dict=asdict,
        columns=("table", "rows>", "version>", "files>", "size>"),
        row=lambda t: (t.name, t.rows, t.version, t.files, output.size(t.size_bytes)),
        empty="The lake has no tables.",
    )


@tables_app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The table: lateness, messages, audit ...")],
    lake: Annotated[Path | None, typer.Option("--lake", metavar="DIR", hidden=True)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    as_json: JsonLines = False,
) -> None:
    """Print rows of a table."""
    from fasti.pipeline.inventory import first_rows

    print_rows(first_rows(_lake_at(lake or context.obj), name, limit), as_json)


@app.command()
def compact(lake: LakeDir = LAKE, as_json: AsJson = False) -> None:
    """Write small files of all tables again as large ones."""
    _print_files(lake, lambda table: table.compact(), "files put together", as_json)


@app.command()
def vacuum(
    lake: LakeDir = LAKE,
    keep: Annotated[timedelta, duration("Keep what was in use so long ago.")] = "7d",  # type: ignore[assignment]
    as_json: AsJson = False,
) -> None:
    """Delete files that no table has any more, and that no reader may still be reading."""
    hours = keep.total_seconds() / 3600
    _print_files(lake, lambda table: table.vacuum(hours), "files deleted", as_json)


# What they have in common


def _broker(place: Place) -> str:
    """Where it is, checked before Spark is started."""
    from fasti.pipeline.local import checked_address
    from fasti.spark.connection import located

    return located(checked_address(place.address), *place.files())


@contextmanager
def _lake_and_session(
    lake: Path,
    master: str,
    conf: list[str] | None,
    broker: str | None = None,
    *,
    new: bool,
) -> Iterator[tuple[Lake, SparkSession]]:
    """`broker`: one that must be there now; a run that goes on waits for it."""
    from fasti.pipeline import local

    local.require()
    settings = headers_of(conf, "--conf")
    place = local.lake_at(lake, new)
    typer.echo("starting Spark ...", err=True)
    with local.session(place, master, settings, broker) as spark:
        yield place, spark


def _run(
    lake: Lake,
    spark: SparkSession,
    address: str,
    token: str | None,
    options: dict[str, Any],
    every_s: float | None = None,
) -> RunResult:
    from fasti.pipeline import runner, stages
    from fasti.pipeline.local import keep_running

    page = stages.ReportPage(refresh_s=None if every_s is None else max(5, round(every_s)))
    workflow = stages.pipeline(lake, address, token, report=page, **options)
    with shown_stages() as progress:
        if every_s is None:
            return runner.run(workflow, spark, progress=progress)
        return keep_running(workflow, spark, every_s, progress, lambda t: typer.echo(t, err=True))


def _run_offline(lake: Lake, spark: SparkSession, full: bool) -> None:
    from fasti.pipeline import runner, stages

    with shown_stages() as progress:
        runner.run(stages.offline(lake, full=full), spark, progress=progress)


def _print_done(lake: Lake, done: RunResult, as_json: bool) -> None:
    """The figures and where the page is."""
    from fasti.pipeline.figures import figures

    page = lake.root / "report.html"
    headlines = figures(lake).headlines() if page.exists() else {}
    if as_json:
        result = {"rows": done.rows, "rounds": done.rounds, "stopped": done.stopped}
        output.print_json({**result, "report": str(page), **headlines})
    elif headlines:
        print_figures(headlines)
        typer.echo(page)


def _lake_at(directory: Path) -> Lake:
    """A lake to look at without Spark."""
    from fasti.pipeline import local

    local.require(spark=False)
    return local.lake_at(directory)


def _print_files(directory: Path, work: Callable[[Table], int], what: str, as_json: bool) -> None:
    """Works on the files of every table, and prints how many of each were touched."""
    from fasti.pipeline.inventory import tables as tables_of

    lake = _lake_at(directory)
    with lake.lock():
        counts = {name: work(table) for name, table in tables_of(lake).items()}
    if as_json:
        output.print_json(counts)
        return
    output.print_table("table", f"{what}>", rows=list(counts.items()))


app.add_typer(tables_app)
# Behind those that have to do with the lake.
app.command()(user)
