"""`fasti serve`: the broker. Its flags are made from the declarations of the settings."""

from __future__ import annotations

import inspect
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli.exits import ERROR_EXITS, print_error
from fasti.cli.signatures import option, presented
from fasti.errors import FastiError
from fasti.extras import required
from fasti.settings.declared import BROKER, GUARD, LIMITS, SETTINGS, SHARD, Setting
from fasti.settings.load import ServeSettings, load
from fasti.settings.page import as_toml
from fasti.settings.values import Switch

if TYPE_CHECKING:
    from fasti.doors.lifetime import Ready


def run(
    config: Path | None,
    print_config: bool,
    check: bool,
    ready_fd: int | None,
    until_stdin_ends: bool,
    process_number: int | None,
    **flags: Any,
) -> None:
    """Serve a data directory to clients until a signal ends it.

    Without any flag: the data is in ./fasti-data, clients connect to fasti://127.0.0.1:7170, and
    http://127.0.0.1:7180 has health and metrics. Flags beat environment variables, which beat the
    settings file. With --shards 8 --processes 4 several processes serve one directory, on as many cores.
    """
    settings = load({setting.key: flags[setting.name] for setting in SETTINGS}, config=config)
    if print_config:
        typer.echo(as_toml(settings), nl=False)
    elif check:
        typer.echo("The settings are good.")
    elif settings.processes > 1:
        _supervise(settings, ready_fd, until_stdin_ends)
    else:
        _serve(settings, ready_fd, until_stdin_ends, process_number)


def _supervise(settings: ServeSettings, ready_fd: int | None, until_stdin_ends: bool) -> None:
    from fasti.broker.logs import set_up

    with required("broker", "`fasti serve`"):
        from fasti.doors.lifetime import end
        from fasti.doors.supervisor import supervise

    def ready(started: Ready) -> None:
        _say_ready(settings, started)
        _write(ready_fd, started.to_json())

    def changed(facts: dict[str, Any]) -> None:
        _write(ready_fd, json.dumps(facts))

    if ready_fd is not None:
        # Who reads the first line may not care for those that follow: nothing waits for it.
        os.set_blocking(ready_fd, False)
        os.set_inheritable(ready_fd, False)
    set_up(settings.log_level, settings.log_format)
    try:
        supervise(settings, ready, changed, until_stdin_ends)
    except FastiError as error:
        end(print_error(error))
    end(0)


def _write(descriptor: int | None, line: str) -> None:
    if descriptor is not None:
        with suppress(OSError):
            os.write(descriptor, line.encode() + b"\n")


def _say_ready(settings: ServeSettings, started: Ready) -> None:
    secure = settings.tls_cert is not None
    http = f", http{'s' if secure else ''}://{started.http}" if started.http else ""
    place = f"fasti{'+tls' if secure else ''}://{started.listen}"
    typer.echo(f"Fasti listens at {place}{http}. Ctrl-C stops it.")


def _serve(
    settings: ServeSettings,
    ready_fd: int | None,
    until_stdin_ends: bool,
    process_number: int | None,
) -> None:
    # Imported late: looking at settings should not take half a second.
    from fasti.doors.allocators import bound_heaps, load_arrow_bounded

    bound_heaps()
    load_arrow_bounded(settings.shard.limits.batch_bytes_max)
    from fasti.doors.without_pandas import hide_pandas_from_arrow

    hide_pandas_from_arrow()
    from fasti.broker.logs import fields, set_up

    with required("broker", "`fasti serve`"):
        from fasti.doors.lifetime import end
        from fasti.doors.process import serve
        from fasti.protocol.problems import error_to_json

    said = False

    def ready(started: Ready) -> None:
        nonlocal said
        said = True
        _say_ready(settings, started)
        if ready_fd is not None:
            with os.fdopen(ready_fd, "w") as pipe:
                pipe.write(started.to_json() + "\n")

    set_up(settings.log_level, settings.log_format, process=process_number)
    # One of several says so in other words: all of them are ready when the supervisor is.
    line = "ready" if process_number is None else "this process is ready"
    try:
        serve(settings, ready, until_stdin_ends, line)
    except FastiError as error:
        if process_number is None:
            end(print_error(error))
        # The supervisor prints it, if it was the first start.
        if not said:
            _write(ready_fd, json.dumps({"error": error_to_json(error)}))
        logging.getLogger("fasti.broker").error(error.message, extra=fields(code=error.code))
        end(ERROR_EXITS.get(error.code, ERROR_EXITS["error"]))
    end(0)


def _option(setting: Setting, panel: str) -> inspect.Parameter:
    switch = isinstance(setting.kind, Switch)
    names = [f"{setting.flag}/--no-{setting.flag[2:]}"] if switch else [setting.flag]
    default = "none" if setting.default is None else setting.kind.show(setting.default)
    declaration = typer.Option(
        *names,
        metavar=None if switch else setting.kind.metavar,
        help=f"{_plain(setting.meaning)} [dim]\\[{setting.variable}][/dim]",
        rich_help_panel=panel,
        show_default=default,
    )
    kind: Any = bool | None if switch else str | None
    return option(setting.name, Annotated[kind, declaration])


def _plain(meaning: str) -> str:
    """A meaning without the links of the documentation."""
    return meaning.partition(" See [")[0].replace("`", "")


def _parameters() -> list[inspect.Parameter]:
    config = typer.Option("--config", metavar="FILE", help="Settings in TOML. \\[FASTI_CONFIG]")
    print_config = typer.Option(
        "--print-config", help="Print the settings in force as TOML, and exit."
    )
    check = typer.Option("--check", help="Look whether the settings are good, and exit.")
    until_stdin_ends = typer.Option("--until-stdin-ends", hidden=True)
    process_number = typer.Option("--process-number", hidden=True)
    panels = {"Broker": BROKER, "Shard": SHARD, "Guard": GUARD, "Limits": LIMITS}
    return [
        option("config", Annotated[Path | None, config]),
        option("print_config", Annotated[bool, print_config], False),
        option("check", Annotated[bool, check], False),
        option("ready_fd", Annotated[int | None, typer.Option("--ready-fd", hidden=True)]),
        option("until_stdin_ends", Annotated[bool, until_stdin_ends], False),
        option("process_number", Annotated[int | None, process_number]),
        *(_option(setting, panel) for panel, group in panels.items() for setting in group),
    ]


serve = presented(run, run, _parameters())
