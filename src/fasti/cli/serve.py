"""`fasti serve`: the broker. Its flags are made from the declarations of the settings."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli.exits import print_error
from fasti.cli.signatures import option, presented
from fasti.errors import FastiError
from fasti.extras import required
from fasti.settings.declared import BROKER, GUARD, LIMITS, SETTINGS, SHARD, Setting
from fasti.settings.load import ServeSettings, load
from fasti.settings.page import as_toml
from fasti.settings.values import Switch

if TYPE_CHECKING:
    from fasti.doors.process import Ready


def run(
    config: Path | None,
    print_config: bool,
    check: bool,
    ready_fd: int | None,
    until_stdin_ends: bool,
    **flags: Any,
) -> None:
    """Serve a data directory to clients until a signal ends it.

    Without any flag: the data is in ./fasti-data, clients connect to fasti://127.0.0.1:7170, and
    http://127.0.0.1:7180 has health and metrics. Flags beat environment variables, which beat the
    settings file.
    """
    settings = load({setting.key: flags[setting.name] for setting in SETTINGS}, config=config)
    if print_config:
        typer.echo(as_toml(settings), nl=False)
    elif check:
        typer.echo("The settings are good.")
    else:
        _serve(settings, ready_fd, until_stdin_ends)


def _serve(settings: ServeSettings, ready_fd: int | None, until_stdin_ends: bool) -> None:
    # Imported late: looking at settings should not take half a second.
    from fasti.doors.allocators import bound_heaps, load_arrow_bounded

    bound_heaps()
    load_arrow_bounded(settings.shard.limits.batch_bytes_max)
    from fasti.doors.without_pandas import hide_pandas_from_arrow

    hide_pandas_from_arrow()
    from fasti.broker.logs import set_up

    with required("broker", "`fasti serve`"):
        from fasti.doors.process import end, serve

    def ready(started: Ready) -> None:
        secure = settings.tls_cert is not None
        http = f", http{'s' if secure else ''}://{started.http}" if started.http else ""
        place = f"fasti{'+tls' if secure else ''}://{started.listen}"
        typer.echo(f"Fasti listens at {place}{http}. Ctrl-C stops it.")
        if ready_fd is not None:
            with os.fdopen(ready_fd, "w") as pipe:
                pipe.write(started.to_json() + "\n")

    set_up(settings.log_level, settings.log_format)
    try:
        serve(settings, ready, until_stdin_ends)
    except FastiError as error:
        end(print_error(error))
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
    panels = {"Broker": BROKER, "Shard": SHARD, "Guard": GUARD, "Limits": LIMITS}
    return [
        option("config", Annotated[Path | None, config]),
        option("print_config", Annotated[bool, print_config], False),
        option("check", Annotated[bool, check], False),
        option("ready_fd", Annotated[int | None, typer.Option("--ready-fd", hidden=True)]),
        option("until_stdin_ends", Annotated[bool, until_stdin_ends], False),
        *(_option(setting, panel) for panel, group in panels.items() for setting in group),
    ]


serve = presented(run, run, _parameters())
