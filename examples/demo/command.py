"""`fasti demo`: see Fasti schedule, deliver, be killed and go on, and check what it promised."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from examples.demo.facts import BARS_US, Lateness, Show, Verdict
from examples.demo.pipeline import Piped, Tell
from examples.demo.pipeline import run as run_pipeline
from examples.demo.story import Story
from fasti.cli import output
from fasti.cli.bars import print_bars
from fasti.cli.exits import FOUND_SOMETHING
from fasti.cli.stages import print_figures
from fasti.errors import AlreadyExists
from fasti.extras import required

# Near, far, seconds.
Numbers = tuple[int, int, float]


def demo(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the data here; a new or empty directory."),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="On a cluster: kills one of three brokers, then one of three NATS servers.",
        ),
    ] = False,
    near: Annotated[
        int | None,
        typer.Option(
            min=10, help="Messages due while you watch.", show_default="20000; --cluster: 6000"
        ),
    ] = None,
    far: Annotated[
        int | None,
        typer.Option(
            min=10, help="Messages due in the next 30 days.", show_default="100000; --cluster: 6000"
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.5, help="How long the near ones last.", show_default="10; --cluster: 30"
        ),
    ] = None,
    lake: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the pipeline's tables and the report here."),
    ] = None,
    pipeline: Annotated[
        bool, typer.Option(help="End with the data pipeline over what happened, and its report.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """See a broker deliver on time, be killed in the middle, and lose nothing.

    Starts a broker on a free port and three worker processes, schedules messages, moves and cancels
    some, kills the broker with SIGKILL and starts it again while all others go on. Everything that
    was promised is compared with what happened; then the data pipeline runs over the broker's change
    feed, and its report is written. Exits with 1 if a message was lost, misplaced, sent twice, early,
    or delivered after its cancel or ack was acknowledged, or if the audit found anything.

    With `--cluster` it starts three NATS servers and three brokers instead, and kills a broker and a NATS
    server; there is no pipeline then.
    """
    given = (near, far, seconds)
    near, far, seconds = _defaults(
        (6_000, 6_000, 30.0) if cluster else (20_000, 100_000, 10.0), given
    )
    if cluster:
        _on_a_cluster(data, near, far, seconds, as_json)
        return
    _check_empty(data)
    place = tempfile.TemporaryDirectory(prefix="fasti-demo-") if data is None else nullcontext(data)
    piped: list[Piped] = []
    with place as directory, _showing() as screen:
        show = screen.show

        def afterwards(address: str) -> None:
            # Kept, unlike the data: somebody will want to look at the report.
            where = Path(tempfile.mkdtemp(prefix="fasti-demo-lake-")) if lake is None else lake
            show("the data pipeline: starting Spark", 0, 0)
            tell: Tell = lambda stage: show(f"the data pipeline: {stage}", 0, 0)  # noqa: E731
            piped.append(run_pipeline(address, where, tell))

        story = Story(Path(directory), near, far, seconds, show, afterwards if pipeline else None)
        verdict = story.run()
    found = piped[0] if piped else None
    if as_json:
        told = {} if found is None else {"pipeline": found.to_dict()}
        output.print_json({**verdict.to_dict(), **told})
    else:
        print_verdict(verdict, data)
        if found is not None:
            print_piped(found)
    if not verdict.ok or (found is not None and found.figures.get("findings")):
        raise typer.Exit(FOUND_SOMETHING)


def _defaults(usual: Numbers, given: tuple[int | None, int | None, float | None]) -> Numbers:
    near, far, seconds = (
        other if value is None else value for value, other in zip(given, usual, strict=True)
    )
    return int(near), int(far), seconds


def _on_a_cluster(data: Path | None, near: int, far: int, seconds: float, as_json: bool) -> None:
    with required("cluster", "`fasti demo --cluster`"):
        import nats  # noqa: F401

        from examples.demo.cluster_report import print_cluster_verdict
        from examples.demo.cluster_story import ClusterStory
        from fasti.doors.nats_servers import find_server

    find_server()
    _check_empty(data)
    place = tempfile.TemporaryDirectory(prefix="fasti-demo-") if data is None else nullcontext(data)
    with place as directory, _showing() as screen:
        story = ClusterStory(Path(directory), near, far, seconds, screen.show, screen.say)
        verdict = story.run_cluster()
    if as_json:
        output.print_json(verdict.to_dict())
    else:
        print_cluster_verdict(verdict, data)
    if not verdict.ok:
        raise typer.Exit(FOUND_SOMETHING)


def _check_empty(data: Path | None) -> None:
    if data is not None and data.exists() and any(data.iterdir()):
        raise AlreadyExists(f"{data} is not empty: the demo wants a directory of its own")


class Screen(NamedTuple):
    """What is shown while it runs: how far it is, and lines that stay."""

    show: Show
    say: Callable[[str], None]


@contextmanager
def _showing() -> Iterator[Screen]:
    """A progress bar on a terminal, a line per phase elsewhere; on stderr, out of the way."""
    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    if not console.is_terminal:
        yield Screen(_plain(console), say)
        return
    columns = (TextColumn("{task.description:<30}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def show(phase: str, done: int, total: int) -> None:
            progress.update(task, description=phase, completed=done, total=total)

        yield Screen(show, say)


def _plain(console: Console) -> Show:
    told: list[str] = []

    def show(phase: str, done: int, total: int) -> None:
        if not told or told[-1] != phase:
            told.append(phase)
            console.print(f"{phase} ...")

    return show


def print_verdict(verdict: Verdict, data: Path | None) -> None:
    """For people: the story, what came of it, the promises, how late it was, what is coming."""
    console = output.console()
    story = [(f"{at:.1f} s", what) for at, what in verdict.story]
    output.print_table("time>", "what happened", rows=story)
    output.print_table("how many", ">", rows=_course(verdict))
    output.print_table("promise", "broken>", "", rows=promises(verdict))
    rows = [
        lateness_row("before the kill", verdict.before),
        lateness_row("due while the broker was away", verdict.outage),
        lateness_row("due after the new start", verdict.after),
    ]
    names = ("lateness in ms", "messages>", "earliest>", "p50>", "p95>", "p99>", "max>")
    output.print_table(*names, rows=rows)
    console.print("Lateness while the broker was there:")
    print_bars(console, _histogram(verdict.up))
    console.print("\nWhat is coming, per day (UTC):")
    print_bars(console, [(_day(start_us), count) for start_us, count in verdict.forecast])
    if data is not None:
        console.print(f"\nThe data is in {data}: try `fasti storage stats {data}`.")


def print_piped(found: Piped) -> None:
    """For people: what the pipeline made of the change feed, and where the report is."""
    console = output.console()
    if found.trouble:
        console.print(f"\nNo report: {found.trouble}", markup=False, soft_wrap=True)
        return
    console.print("\nWhat the data pipeline made of the broker's change feed:")
    print_figures(found.figures)
    tables = f"`fasti pipeline tables --lake {found.lake}`"
    console.print(f"The tables: {tables}", markup=False, soft_wrap=True)
    # As an address: terminals make a link of it, and browsers take it as it is.
    page = Path(found.figures["report"]).absolute().as_uri()
    console.print(f"The report, for a browser: {page}", markup=False, soft_wrap=True)


def _course(verdict: Verdict) -> list[tuple[str, object]]:
    return [
        ("scheduled", verdict.scheduled),
        ("moved", verdict.moved),
        ("cancelled", verdict.cancelled),
        ("delivered", verdict.delivered),
        ("delivered again (their ack was under way at the kill)", verdict.delivered_again),
        ("changes without an answer, because of the kill", verdict.unknown),
        ("without a broker", f"{verdict.outage_seconds:.2f} s"),
        ("size on disk, with spare segments", output.size(verdict.size_bytes)),
        *((f"{name} at the end", count) for name, count in verdict.states.items() if count),
        ("the whole run", f"{verdict.seconds:.1f} s"),
    ]


def promises(verdict: Verdict) -> list[tuple[str, int, str]]:
    broken = {
        "nothing is lost": verdict.lost,
        "nothing that fell due is held back": verdict.undelivered,
        "nothing is early": verdict.early,
        "nothing is delivered after its cancel was acknowledged": verdict.after_cancel,
        "nothing is delivered after its ack was acknowledged": verdict.after_ack,
        "nothing that was sent once became two messages": verdict.sent_twice,
        "nothing pending stands at another time than promised": verdict.misplaced,
    }
    return [(name, count, "BROKEN" if count else "kept") for name, count in broken.items()]


def lateness_row(name: str, late: Lateness) -> tuple[object, ...]:
    values = (late.earliest_ms, late.p50_ms, late.p95_ms, late.p99_ms, late.max_ms)
    return (name, late.count, *(f"{value:.2f}" for value in values))


def _histogram(late: Lateness) -> list[tuple[str, int]]:
    names = [f"up to {end_us / 1000:g} ms" for end_us in BARS_US] + ["more"]
    last = max((place for place, count in enumerate(late.bars) if count), default=0)
    return list(zip(names, late.bars, strict=True))[: last + 1]


def _day(start_us: int) -> str:
    return datetime.fromtimestamp(start_us / 1e6, UTC).strftime("%a %m-%d")
