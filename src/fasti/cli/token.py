"""`fasti token`: who may use a broker that was started with --credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasti.cli import output
from fasti.cli.commands import group
from fasti.cli.options import AsJson
from fasti.doors import credentials

app = group("token")

Name = Annotated[str, typer.Argument(help="Whose token it is.")]
File = Annotated[
    Path,
    typer.Option("--file", envvar="FASTI_CREDENTIALS", metavar="FILE", help="The tokens' hashes."),
]


@app.command()
def create(name: Name, file: File, as_json: AsJson = False) -> None:
    """Create a token and print it, this once: the file keeps only its hash."""
    token = credentials.create(file, name)
    if as_json:
        output.print_json({"name": name, "token": token})
    else:
        typer.echo(f"This is the token of {name}; it can't be shown again:", err=True)
        typer.echo(token)


@app.command("list")
def list_names(file: File, as_json: AsJson = False) -> None:
    """The names that have a token."""
    names = sorted(credentials.read_file(file))
    if as_json:
        output.print_json(names)
    else:
        for name in names:
            typer.echo(name)


@app.command()
def revoke(name: Name, file: File) -> None:
    """Take a token back. Brokers refuse it from the next call on."""
    credentials.revoke(file, name)
    typer.echo(f"The token of {name} is revoked.")
