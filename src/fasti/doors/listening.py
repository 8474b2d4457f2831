"""Sockets and certificates: what must be right before a broker may say that it listens."""

from __future__ import annotations

import errno
import socket
import time
from pathlib import Path

from fasti.doors.private_files import check_private
from fasti.errors import AlreadyExists, FastiError, InvalidArgument, PermissionDenied
from fasti.settings.values import Address

_BACKLOG = 1024
_PAUSE_S = 0.02


def bind(address: Address, patience_s: float = 0.0) -> socket.socket:
    """A listening socket. Raises what a person can act on.

    With patience it waits for an address in use: after a crash the port of the broker before may
    be held for a moment longer by that one's HTTP process.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _bind(address)
        except AlreadyExists:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)


def _bind(address: Address) -> socket.socket:
    family, host = _resolved(address)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise refusal(address, error) from error
    return listener


def check_free(address: Address) -> None:
    """Whether an address can be listened at: gRPC, which will, says only that it couldn't."""
    bind(address).close()


def refusal(address: Address, error: OSError) -> FastiError:
    """Why an address can't be had."""
    if error.errno == errno.EADDRINUSE:
        return AlreadyExists(f"{address} is in use by another process")
    if error.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(f"{address}: this user may not listen there")
    return InvalidArgument(f"{address}: {error.strerror}", field="listen")


def _resolved(address: Address) -> tuple[socket.AddressFamily, str]:
    try:
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise InvalidArgument(f"{address}: {error.strerror}", field="listen") from error
    family, _, _, _, place = addresses[0]
    return family, str(place[0])


def read_certificate(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Chain and key, after a look whether they are PEM and belong together."""
    # Imported late: most brokers start without.
    import ssl

    check_private(key)
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            certificate, key, password=lambda: ""
        )
        return certificate.read_bytes(), key.read_bytes()
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise InvalidArgument(
            f"{certificate} and {key} are not a certificate and its key: {reason}", field="tls_cert"
        ) from error
    except OSError as error:
        raise PermissionDenied(f"{error.filename or certificate}: {error.strerror}") from error


def read_authority(path: Path) -> bytes:
    """The certificates that clients' must be signed by, after a look whether they are PEM."""
    import ssl

    try:
        ssl.create_default_context().load_verify_locations(path)
        return path.read_bytes()
    except ssl.SSLError as error:
        raise InvalidArgument(f"{path} has no certificate in PEM", field="tls_client_ca") from error
    except OSError as error:
        raise PermissionDenied(f"{error.filename or path}: {error.strerror}") from error
