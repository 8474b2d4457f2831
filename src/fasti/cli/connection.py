"""Where the broker is: the options of every command that talks to one, and the client they give.

A command is written as a function whose first argument is the client; `with_client` makes it one
for typer, with the options `--address`, `--token`, `--tls-ca` and `--tls-client-cert` added at its
end. The SDK is loaded when a command runs, so that help and completion don't wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fasti.cli.signatures import Command, option, parameters_of, presented
from fasti.client.address import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    NOBODY,
    TLS_CA_VARIABLE,
    TLS_CLIENT_CERT_VARIABLE,
    TOKEN_VARIABLE,
    known_address,
)
from fasti.errors import Unavailable

if TYPE_CHECKING:
    from fasti.client.client import Client

PANEL = "Where the broker is"
# Whether this process is a command and nothing else; a program may also call commands by itself.
own_process = False
# A person who presses Tab doesn't wait any longer. An address without a broker is noticed at once;
# this is for a broker that hangs, and a busy machine needs some of it to connect.
_COMPLETION_TIMEOUT = "3s"
_PLACE = ("address", "token", "tls_ca", "tls_client_cert")

Address = Annotated[
    str,
    typer.Option(
        "--address",
        "-a",
        envvar=ADDRESS_VARIABLE,
        help="A broker, or embedded:DIR for a data directory that no broker has open.",
        rich_help_panel=PANEL,
    ),
]
# For what runs in several processes.
BrokerAddress = Annotated[
    str,
    typer.Option(
        "--address",
        "-a",
        envvar=ADDRESS_VARIABLE,
        help="A broker, as all of Spark's processes reach it.",
        rich_help_panel=PANEL,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar=TOKEN_VARIABLE, help="The credentials, if it wants any.", rich_help_panel=PANEL
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar=TLS_CA_VARIABLE,
        metavar="FILE",
        help="The certificate that signed the broker's.",
        rich_help_panel=PANEL,
    ),
]
TlsClientCert = Annotated[
    Path | None,
    typer.Option(
        envvar=TLS_CLIENT_CERT_VARIABLE,
        metavar="FILE",
        help="Our certificate and its key, if it asks for one.",
        rich_help_panel=PANEL,
    ),
]
# For commands that run something which may say itself where its broker is: flags win over that, and
# that over the environment, which the SDK reads.
OtherAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        help=f"A broker other than its own.  [{ADDRESS_VARIABLE}]",
        rich_help_panel=PANEL,
    ),
]
OtherToken = Annotated[
    str | None,
    typer.Option(
        "--token",
        help=f"The credentials, if it wants any.  [{TOKEN_VARIABLE}]",
        rich_help_panel=PANEL,
    ),
]
OtherTlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help=f"The certificate that signed the broker's.  [{TLS_CA_VARIABLE}]",
        rich_help_panel=PANEL,
    ),
]
OtherTlsClientCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-client-cert",
        metavar="FILE",
        help=f"Our certificate and its key, if it asks for one.  [{TLS_CLIENT_CERT_VARIABLE}]",
        rich_help_panel=PANEL,
    ),
]
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
            credentials = {name: ctx.params.get(name) for name in _PLACE[1:]}
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


@contextmanager
def client_of(
    address: str,
    token: str | None = None,
    tls_ca: Path | None = None,
    tls_client_cert: Path | None = None,
    owner: str = "",
) -> Iterator[Client]:
    """A client for the time of a command."""
    connect = _sdk()
    try:
        trust = {"tls_ca": tls_ca, "tls_client_cert": tls_client_cert}
        with connect(address, token=token, owner=owner, **trust) as client:
            yield client
    except Unavailable as error:
        if not error.message.startswith(NOBODY):
            raise
        hint = "`fasti serve --data DIR` starts a broker, --address says where one is"
        raise Unavailable(f"{error.message}; {hint}") from error


def with_client(command: Command) -> Command:
    """Makes `command(client, ...)` a command with the options that say where the broker is.

    If it has an option `owner`, the client speaks in that name.
    """
    own = parameters_of(command)[1:]

    def run(**values: Any) -> None:
        place = {name: values.pop(name) for name in _PLACE}
        with client_of(**place, owner=values.get("owner", "")) as client:
            command(client, **values)

    where = [
        option("address", Address, DEFAULT_ADDRESS),
        option("token", Token, None),
        option("tls_ca", TlsCa, None),
        option("tls_client_cert", TlsClientCert, None),
    ]
    return presented(run, command, [*own, *where])
