"""Where the broker is: the options of every command that talks to one, and the client they give.

A command is written as a function with an argument `client`, or `place` if it connects by itself;
`with_client` and `with_place` put the options `--address`, `--token`, `--tls-ca` and
`--tls-client-cert` in its stead. The SDK is loaded when a command runs, so that help and completion
don't wait for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli.signatures import Command, option, parameters_of, presented, with_options
from fasti.client.address import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    NO_BROKER,
    TLS_CA_VARIABLE,
    TLS_CLIENT_CERT_VARIABLE,
    TOKEN_VARIABLE,
    known_address,
)
from fasti.errors import Unavailable

if TYPE_CHECKING:
    from fasti.client.client import Client as Client
else:
    # The type of commands' first argument, without loading the SDK.
    Client = Any

# Whether this process is a command and nothing else; a program may also call commands by itself.
own_process = False
# A person who presses Tab doesn't wait any longer. An address without a broker is noticed at once;
# this is for a broker that hangs, and a busy machine needs some of it to connect.
_COMPLETION_TIMEOUT = "3s"
_TOKEN_HELP = "The credentials, if it wants any."
_CA_HELP = "The certificate that signed the broker's."
_CERT_HELP = "Our certificate and its key, if it asks for one."


@dataclass(frozen=True, slots=True)
class Place:
    """What the command line says about where the broker is, and how to be let in."""

    # Empty: it is said elsewhere.
    address: str
    token: str | None = None
    tls_ca: Path | None = None
    tls_client_cert: Path | None = None

    def files(self) -> list[str | None]:
        """Both files, as processes in other directories find them."""
        files = (self.tls_ca, self.tls_client_cert)
        return [None if file is None else str(file.absolute()) for file in files]

    @contextmanager
    def client(self, owner: str = "") -> Iterator[Client]:
        """A client for the time of a command."""
        connect = _sdk()
        trust = {"tls_ca": self.tls_ca, "tls_client_cert": self.tls_client_cert}
        try:
            with connect(self.address, token=self.token, owner=owner, **trust) as client:
                yield client
        except Unavailable as error:
            if not error.message.startswith(NO_BROKER):
                raise
            hint = "`fasti serve --data DIR` starts a broker, --address says where one is"
            raise Unavailable(f"{error.message}; {hint}") from error


def _options(default: str, help: str, by_variables: bool = True) -> list[inspect.Parameter]:
    """The four options. Without variables, the help names those that the SDK reads."""

    def make(variable: str, kind: Any, help: str, *names: str, **how: Any) -> inspect.Parameter:
        name = names[0].removeprefix("--").replace("-", "_")
        how |= {"envvar": variable} if by_variables else {}
        help = help if by_variables else f"{help}  [{variable}]"
        declared = typer.Option(*names, help=help, rich_help_panel="Where the broker is", **how)
        return option(name, Annotated[kind, declared], default if name == "address" else None)

    file = Path | None
    return [
        make(ADDRESS_VARIABLE, str, help, "--address", "-a"),
        make(TOKEN_VARIABLE, str | None, _TOKEN_HELP, "--token"),
        make(TLS_CA_VARIABLE, file, _CA_HELP, "--tls-ca", metavar="FILE"),
        make(TLS_CLIENT_CERT_VARIABLE, file, _CERT_HELP, "--tls-client-cert", metavar="FILE"),
    ]


_HELP = "A broker, or embedded:DIR for a data directory that no broker has open."
_ANYWHERE = _options(DEFAULT_ADDRESS, _HELP)
_IN_SPARK = _options(DEFAULT_ADDRESS, "A broker, as all of Spark's processes reach it.")
# For commands that run something which may say itself where its broker is: flags win over that, and
# that over the environment, which the SDK reads.
_INSTEAD = _options("", "A broker other than its own.", by_variables=False)

with_place = with_options("place", _ANYWHERE, Place)
with_place_in_spark = with_options("place", _IN_SPARK, Place)
with_place_instead = with_options("place", _INSTEAD, Place)

Owner = Annotated[
    str,
    typer.Option(
        envvar="FASTI_OWNER",
        help="In whose name: what an owner made, only that owner may change.",
        show_default=False,
    ),
]


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics that begin so, if a broker tells them quickly; else nothing, silently."""
    address = ctx.params.get("address") or known_address()
    # A directory is not opened for this: that would lock it for the next command.
    if not address.startswith("embedded:"):
        with suppress(Exception):
            connect = _sdk()
            names = ("token", "tls_ca", "tls_client_cert")
            credentials = {name: ctx.params.get(name) for name in names}
            with connect(address, **credentials, timeout=_COMPLETION_TIMEOUT) as client:
                topics = [topic.name for topic in client.topics()]
            # Internal ones, such as inboxes, only for those who begin to type one.
            internal = incomplete.startswith("_")
            return [n for n in topics if n.startswith(incomplete) and (internal or n[0] != "_")]
    return []


Topic = Annotated[str, typer.Argument(help="The topic.", autocompletion=complete_topics)]


def _sdk() -> Callable[..., Client]:
    """`fasti.connect`, loaded now, and without pandas if this process is only a command."""
    if own_process:
        from fasti.doors.without_pandas import hide_pandas_from_arrow

        hide_pandas_from_arrow()
    from fasti.client.client import connect

    return connect


def with_client(command: Command) -> Command:
    """Makes `command(client, ...)` a command with the options that say where the broker is.

    If it has an option `owner`, the client speaks in that name.
    """

    def run(place: Place, **values: Any) -> None:
        with place.client(values.get("owner", "")) as client:
            command(client=client, **values)

    client, *own = parameters_of(command)
    return with_place(presented(run, command, [*own, client.replace(name="place")]))
