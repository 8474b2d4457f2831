"""`fasti backup`: all that a broker holds, into a directory of this machine, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fasti.cli import output
from fasti.cli.connection import Address, TlsCa, TlsClientCert, Token, client_of
from fasti.cli.exits import FOUND_SOMETHING
from fasti.client.address import DEFAULT_ADDRESS
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.storage.backup import Backup


def backup(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Where to: a new directory, or one with an older backup of the same broker, which "
            "then gets only what is new.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Back up this data directory, which no broker has open, instead of asking one.",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="At most so much per second, such as 20MiB; the broker has a limit.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and no progress.")] = False,
    address: Address = DEFAULT_ADDRESS,
    token: Token = None,
    tls_ca: TlsCa = None,
    tls_client_cert: TlsClientCert = None,
) -> None:
    """Copy all that a broker holds into a directory, while it runs.

    Everything that was acknowledged before it began is in it, transactions whole. `fasti restore`
    makes a data directory of it. If it is interrupted, run it again: it goes on where it was.
    """
    with progress_bar("backup", not as_json) as progress:
        if data is not None:
            from fasti.storage.backup import back_up, directory_source

            with directory_source(data) as source:
                done = back_up(source, directory, progress)
        else:
            with client_of(address, token, tls_ca, tls_client_cert) as client:
                done = client.backup(directory, progress=progress, rate=size_bytes(rate))
    _print(done, as_json)
    if done.damaged:
        named = ", ".join(done.damaged)
        typer.echo(f"damaged where they come from, and copied as they are: {named}", err=True)
        raise typer.Exit(FOUND_SOMETHING)


def _print(done: Backup, as_json: bool) -> None:
    if as_json:
        output.print_json(done.to_dict())
        return
    typer.echo(
        f"{done.path}: a backup of shard {done.shard} at position {output.number(done.position)}, "
        f"{output.number(done.files)} files with {output.size(done.size_bytes)}, of which "
        f"{output.size(done.copied_bytes)} came now; checksums verified"
    )


def size_bytes(text: str | None) -> int:
    """A size such as 20MiB, 0 for none. Raises `invalid_argument`."""
    if text is None:
        return 0
    from fasti.settings.values import Size

    try:
        return Size().read(text)
    except ValueError as error:
        raise InvalidArgument(str(error), field="rate") from error


@contextmanager
def progress_bar(what: str, wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, on standard error; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
