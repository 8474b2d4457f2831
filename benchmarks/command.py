"""`fasti bench`: figures of this machine, beside its limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fasti.cli.exits import terminated_softly
from fasti.extras import required

app = typer.Typer(help="Measure Fasti on this machine, beside the machine's own limits.")

_PARTS = ["lease-ack", "engine", "single", "durable", "checkpoint", "pending"]

Directory = Annotated[
    Path | None, typer.Option(help="Where to write; by default the temporary directory.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.callback()
def bench() -> None:
    """Measure Fasti on this machine, beside the machine's own limits.

    All but `engine` start a broker and clients in processes of their own, on the loopback.
    """


@app.command()
def engine(
    only: Annotated[
        list[str] | None, typer.Option(help=f"A part: {', '.join(_PARTS)}. May be repeated.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1_500_000, help="Messages, instead of each part's own number.")
    ] = None,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Engine and storage in one process: speed, memory, opening after a kill."""
    from benchmarks.run import run

    parts = only or _PARTS
    for part in parts:
        if part not in _PARTS:
            raise typer.BadParameter(f"{part!r} is not one of {', '.join(_PARTS)}")
    _print(run(parts, directory, rows), as_json)


@app.command()
def throughput(
    rows: Annotated[int, typer.Option(min=100_000, help="Messages of each measurement.")] = (
        3_000_000
    ),
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Messages a second over the wire: in batches and one by one, in, out and both at once."""
    from benchmarks.throughput import throughput as measure

    with _showing() as show:
        found = measure(directory, rows, show)
    _print(found, as_json)


@app.command()
def lateness(
    seconds: Annotated[float, typer.Option(min=2, help="How long each measurement lasts.")] = 60.0,
    rate: Annotated[int, typer.Option(min=100, help="Messages a second.")] = 10_000,
    pending: Annotated[int, typer.Option(min=5_000, help="Others that stay pending.")] = 1_000_000,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """How late messages are: steady traffic, beside other work, bursts, one at a time."""
    from benchmarks.lateness import lateness as measure

    with _showing() as show:
        found = measure(directory, seconds, rate, pending, show)
    _print(found, as_json)


@app.command()
def shards(
    rows: Annotated[int, typer.Option(min=100_000, help="Messages of each measurement.")] = (
        1_000_000
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Of each shape; medians count.")] = 3,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """What several shards and processes cost the broker for each message, and while idle."""
    from benchmarks.shards import shards as measure

    with _showing() as show:
        found = measure(directory, rows, rounds, show)
    _print(found, as_json)


@app.command()
def cluster(
    only: Annotated[
        list[str] | None,
        typer.Option(help="A part: produce, latency, kill, nodes, join. May be repeated."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of each rate and lost server.")] = 3,
    kills: Annotated[int, typer.Option(min=1, help="How often a broker is killed.")] = 20,
    seconds: Annotated[float, typer.Option(min=0.5, help="How long each rate is measured.")] = 6.0,
    quick: Annotated[bool, typer.Option("--quick", help="One round and four kills.")] = False,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Three NATS servers, three brokers, three shards: rates, lateness, and what is lost and killed.

    All of it takes about ten minutes on two cores, `--quick` about four, and some gigabytes of disk
    meanwhile. Ends with code 1 if something is not as asked.
    """
    with required("cluster", "`fasti bench cluster`"):
        from benchmarks.cluster import PARTS, phases, shortfalls
        from benchmarks.cluster import cluster as measure

    for part in only or []:
        if part not in PARTS:
            raise typer.BadParameter(f"{part!r} is not one of {', '.join(PARTS)}")
    rounds, kills = (1, 4) if quick else (rounds, kills)
    with _stepping(phases(only or [], rounds, kills)) as show, terminated_softly():
        found = measure(only or [], directory, rounds, kills, seconds, show)
    _print(found, as_json)
    for line in shortfalls(found):
        typer.echo(line, err=True)
    if shortfalls(found):
        raise typer.Exit(1)


@app.command()
def consumer(
    rows: Annotated[int, typer.Option(min=20_000, help="Messages of each measurement.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Of each measurement; medians count.")] = 3,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Messages one by one with default settings, beside the best by hand: loop, app, asyncio, send."""
    from benchmarks.consumer import consumer as measure

    with _showing() as show:
        found = measure(directory, rows, rounds, show)
    _print(found, as_json)


@app.command()
def pending(
    rows: Annotated[int, typer.Option(min=100_000, help="Messages pending.")] = 10_000_000,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """With many messages pending: the broker's memory, rates, and changes at random."""
    from benchmarks.recovery import pending as measure

    with _showing() as show:
        found = measure(directory, rows, show)
    _print(found, as_json)


@app.command()
def kinds(
    only: Annotated[
        list[str] | None, typer.Option(help="One of log, priority, kv, cron, routing, calls.")
    ] = None,
    rows: Annotated[int, typer.Option(min=10_000, help="Messages of each measurement.")] = (
        3_000_000
    ),
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """The other topic kinds over the wire: logs and groups, priority, key-value, schedules."""
    from benchmarks.kinds import KINDS
    from benchmarks.kinds import kinds as measure

    for kind in only or []:
        if kind not in KINDS:
            raise typer.BadParameter(f"{kind!r} is not one of {', '.join(KINDS)}")
    with _showing() as show:
        found = measure(only or [], directory, rows, show)
    _print(found, as_json)


@app.command()
def recovery(
    rows: Annotated[int, typer.Option(min=5_000, help="Messages pending.")] = 1_000_000,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """How soon a broker that was killed is ready again, and whether anything was lost."""
    from benchmarks.recovery import recovery as measure

    with _showing() as show:
        found = measure(directory, rows, show)
    _print(found, as_json)


@app.command()
def spark(
    only: Annotated[
        list[str] | None,
        typer.Option(help="A part: reads, schedule, bronze, silver, following. May be repeated."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1_000, help="Messages of each measurement.")] = (
        5_000_000
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Of each measurement; medians count.")] = 3,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """The Spark connector and the pipeline, beside Spark's own Parquet of the same rows.

    All of it takes about a quarter of an hour on two cores, up to 8 GB of disk and 6 GB of memory;
    each part removes what it wrote. `--rows 500000` is a quick look.
    """
    with required("spark", "`fasti bench spark`"):
        from benchmarks.spark import PARTS, phases
        from benchmarks.spark import spark as measure

        for part in only or []:
            if part not in PARTS:
                raise typer.BadParameter(f"{part!r} is not one of {', '.join(PARTS)}")
        total = phases(only or [])
    with _stepping(total) as show, terminated_softly():
        found = measure(only or [], directory, rows, show, rounds)
    _print(found, as_json)


@app.command()
def peers(
    only: Annotated[
        str, typer.Option(help="Peers, separated by commas; Fasti is always measured too.")
    ] = "",
    scenario: Annotated[str, typer.Option(help="Scenarios, separated by commas.")] = "",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Of each measurement; by default 3, with --quick 1.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A look, in about five minutes.")] = False,
    long: Annotated[
        bool, typer.Option("--long", help="With 10 M pending and 2,000 topics: minutes more.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Of the order; drawn and printed if not given.")
    ] = (None),
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="After these no further measurement begins.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file for what was found, as JSON.")] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Write docs/benchmarks.md and its charts too.")
    ] = False,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Fasti beside beanstalkd, Redis, PostgreSQL, RabbitMQ, NATS, Procrastinate and Celery.

    Each runs as a server on the loopback with its own Python client. What is not installed is skipped
    and said: `make bench-peers-install`. All of it takes more than an hour on two cores.
    """
    from benchmarks.peers import command as peers_command

    names, scenarios = peers_command.checked(only, scenario)
    run = peers_command.PeersRun(names, scenarios, rounds or (1 if quick else 3), quick, long)
    with _stepping(run.total()) as show, terminated_softly():
        found = run.measure(seed, minutes, directory, out, show)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        peers_command.print_tables(found)
    if page:
        peers_command.write_page([run.out(out)])


@app.command(name="peers-page")
def peers_page(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="What `fasti bench peers --out` wrote; else docs/benchmarks/results.json."
        ),
    ] = None,
) -> None:
    """Write docs/benchmarks.md and its charts from the results of one or several runs."""
    from benchmarks.peers import command as peers_command

    peers_command.write_page(files or [])


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 60.0,
    clients: Annotated[int, typer.Option(min=10, help="How many at a time.")] = 50,
    directory: Directory = None,
    as_json: AsJson = False,
) -> None:
    """Clients that come, go and are killed; a broker that must not grow.

    Prints the broker's memory without mapped files, threads, descriptors and use of its memory
    budget each minute, and ends with code 1 if its memory grew by 2 % or more between the second
    and the last quarter. The load uses about a core.
    """
    from benchmarks.soak import soak as measure

    def show(sample: dict[str, Any]) -> None:
        typer.echo("  ".join(f"{name} {value}" for name, value in sample.items()), err=as_json)

    with terminated_softly():
        found = measure(directory, minutes, clients, show)
    _print(found if as_json else {**found, "samples": len(found["samples"])}, as_json)
    if found["flat"] is False:
        raise typer.Exit(1)


@contextmanager
def _stepping(total: int) -> Iterator[Callable[[str], None]]:
    """Like `_showing`, with a bar: each phase that begins ends the one before."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        with _showing() as show:
            yield show
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=-1)
        yield lambda phase: bar.update(task, description=phase, advance=1)


@contextmanager
def _showing() -> Iterator[Callable[[str], None]]:
    """What is being measured, on stderr: a moving line on a terminal, lines elsewhere."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status("starting") as status:
            yield lambda phase: status.update(phase)
    else:
        yield lambda phase: console.print(f"{phase} ...")


def _print(results: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        _print_table(results)


def _print_table(results: dict[str, Any]) -> None:
    console = Console()
    plain = {name: value for name, value in results.items() if not isinstance(value, dict)}
    parts = {name: value for name, value in results.items() if isinstance(value, dict)}
    for part, figures in ({"settings": plain} | parts if plain else parts).items():
        drawn = Table("figure", "value", title=part, title_justify="left")
        for name, value in _flat(figures):
            drawn.add_row(name, f"{value:,}" if isinstance(value, int | float) else str(value))
        console.print(drawn)


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in figures.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows
