"""Looks at a port that could not be connected to, to tell a person what is missing."""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace

from fasti.client.address import Address

_PROBE_S = 2.0


def missing_in(address: Address, host: str, port: int) -> str | None:
    """What an address that could not be connected to lacks, if it is about TLS."""
    if not address.tls and speaks_tls(host, port):
        return f"the broker speaks TLS: write {replace(address, tls=True)}"
    if address.tls and asks_for_certificate(host, port):
        return (
            "the broker asks for a certificate that it trusts: give one by "
            "tls_client_cert=, --tls-client-cert or FASTI_TLS_CLIENT_CERT"
        )
    return None


def speaks_tls(host: str, port: int) -> bool:
    """Whether a port answers as TLS does, whatever its certificate."""
    try:
        with _over_tls(host, port):
            return True
    except (OSError, ValueError):
        return False


def asks_for_certificate(host: str, port: int) -> bool:
    """Whether a port ends connections of clients that show no certificate."""
    try:
        with _over_tls(host, port) as connection:
            # A broker speaks first; one that misses a certificate ends the connection without a word.
            return connection.recv(1) == b""
    except ssl.SSLError as error:
        return "certificate_required" in (error.reason or "").lower()
    except (OSError, ValueError):
        return False


def _over_tls(host: str, port: int) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection((host, port), _PROBE_S)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
