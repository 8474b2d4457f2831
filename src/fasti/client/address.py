"""Where a broker is, as people write it, and what one needs to be let in.

The SDK, apps, Spark, the pipeline and every command take these from the same variables of the
environment. What is given as an argument, an option or a flag wins.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from fasti.errors import InvalidArgument, Unavailable

_log = logging.getLogger("fasti.client")

DEFAULT_ADDRESS = "fasti://127.0.0.1:7170"
DEFAULT_PORT = 7170
ADDRESS_VARIABLE, TOKEN_VARIABLE, TLS_CA_VARIABLE = "FASTI_ADDRESS", "FASTI_TOKEN", "FASTI_TLS_CA"
TLS_CLIENT_CERT_VARIABLE = "FASTI_TLS_CLIENT_CERT"
# How the messages of failed connections begin.
NO_BROKER = "no broker answers"
_EXAMPLES = "fasti://HOST:PORT[,HOST:PORT...], fasti+tls://HOST:PORT or embedded:DIRECTORY"


@dataclass(frozen=True, slots=True)
class Address:
    """Hosts to try in their order, or a directory for a broker inside this process."""

    hosts: tuple[tuple[str, int], ...] = ()
    tls: bool = False
    directory: str | None = None

    def location(self, number: int) -> str:
        """One of the hosts, as Flight wants it."""
        host, port = self.hosts[number]
        name = f"[{host}]" if ":" in host else host
        return f"grpc+{'tls' if self.tls else 'tcp'}://{name}:{port}"

    def __str__(self) -> str:
        if self.directory is not None:
            return f"embedded:{self.directory}"
        hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)
        return f"fasti{'+tls' if self.tls else ''}://{hosts}"

    @property
    def is_local(self) -> bool:
        """Whether nothing that is sent there leaves this machine."""
        return all(_is_loopback(host) for host, _ in self.hosts)


def _is_loopback(host: str) -> bool:
    # Imported late, like `urlsplit`: most programs send no token in clear and follow no endpoint.
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# Addresses of which it was said already, in this process.
_warned: set[str] = set()


def warn_of_clear_token(address: Address) -> None:
    """Logs, once, that everybody on the way to another host can read the token."""
    place = str(address)
    if address.tls or address.is_local or place in _warned:
        return
    _warned.add(place)
    _log.warning(
        "the token is sent to %s in clear: anyone who reads the network has it. Use fasti+tls:// "
        "(and --tls-cert and --tls-key of the broker)",
        place,
    )


def known_address() -> str:
    """The address of the environment, or else the port of this machine."""
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def known_token() -> str | None:
    """The token of the environment."""
    return os.environ.get(TOKEN_VARIABLE) or None


def known_tls_ca() -> str | None:
    """The authority of the environment: a file with certificates in PEM."""
    return os.environ.get(TLS_CA_VARIABLE) or None


def known_tls_client_cert() -> str | None:
    """The client's own certificate of the environment: a file with it and its key in PEM."""
    return os.environ.get(TLS_CLIENT_CERT_VARIABLE) or None


def parse_address(text: str | None) -> Address:
    """Reads an address; None means FASTI_ADDRESS, or else the port of this machine.

    Raises `invalid_argument` on anything else, with examples.
    """
    text = text or known_address()
    if text.startswith("embedded:"):
        directory = text.removeprefix("embedded:")
        if not directory:
            raise InvalidArgument(
                "embedded: needs a directory, as in embedded:./data", field="address"
            )
        return Address(directory=directory)
    scheme, mark, rest = text.rpartition("://")
    if mark and scheme not in ("fasti", "fasti+tls"):
        raise InvalidArgument(f"address {text!r}: write {_EXAMPLES}", field="address")
    hosts = tuple(_host(part.strip(), text) for part in rest.rstrip("/").split(","))
    return Address(hosts, tls=scheme == "fasti+tls")


def _host(part: str, text: str) -> tuple[str, int]:
    if part.startswith("["):
        host, bracket, after = part[1:].partition("]")
        port = after.removeprefix(":") if bracket else "?"
    else:
        host, colon, port = part.partition(":")
        port = port if colon else ""
    if not host or not (port or str(DEFAULT_PORT)).isdecimal() or "/" in host or "@" in host:
        raise InvalidArgument(f"address {text!r}: write {_EXAMPLES}", field="address")
    number = int(port or DEFAULT_PORT)
    if not 1 <= number <= 65_535:
        raise InvalidArgument(f"{number} is not a port", field="address", limit=65_535)
    return host, number


def host_and_port(location: str) -> tuple[str, int]:
    """Of an address that a broker names, as Flight writes it. Raises `unavailable` if it is none."""
    from urllib.parse import urlsplit

    try:
        place = urlsplit(location)
        host, port = place.hostname, place.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise Unavailable(f"the broker names an address that is none: {location!r}")
    return host, port
