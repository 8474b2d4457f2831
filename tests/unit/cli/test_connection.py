"""Every command that talks to a broker finds it by the same flags and variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from fasti.cli.main import app

VARIABLES = {
    "address": "FASTI_ADDRESS",
    "token": "FASTI_TOKEN",
    "tls_ca": "FASTI_TLS_CA",
    "tls_client_cert": "FASTI_TLS_CLIENT_CERT",
}


def all_commands(made: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(made, TyperGroup):
        yield " ".join(path), made
        return
    context = typer.Context(made)
    for name in made.list_commands(context):
        yield from all_commands(made.get_command(context, name), *path, name)


def test_who_takes_one_takes_all_and_names_their_variables() -> None:
    talking = []
    for path, command in all_commands(get_command(app)):
        options = {each.name: each for each in command.params}
        if not options.keys() & VARIABLES.keys():
            continue
        talking.append(path)
        for name, variable in VARIABLES.items():
            option = options[name]
            assert f"--{name.replace('_', '-')}" in option.opts, path
            assert variable in (option.envvar or option.help), path
    assert {"run", "produce", "topics list", "pipeline run", "pipeline user"} <= set(talking)
