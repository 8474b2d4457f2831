"""Clients of executors and drivers: one per process, broker and token, kept between tasks.

A place travels to executors as text: an address, behind a `#` the file of the authority that
signed the broker's certificate, and behind another one that of the client's own, if there are any.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import fasti
from fasti.client.client import Client

_lock = threading.Lock()
_clients: dict[tuple[Any, ...], Client] = {}


def located(address: str, tls_ca: str | None, tls_client_cert: str | None = None) -> str:
    """An address together with the authority that is to be trusted, and what the client shows."""
    return f"{address}#{tls_ca or ''}#{tls_client_cert or ''}".rstrip("#")


def client_of(place: str, token: str | None = None) -> Client:
    """A client of that broker, in this process. Its threads end with the process."""
    address, tls_ca, tls_client_cert = (*place.split("#"), "", "")[:3]
    address = address if "://" in address else f"fasti://{address}"
    # After a fork, which Spark's workers are, the parent's threads are gone.
    name = (os.getpid(), place, token)
    with _lock:
        client = _clients.get(name)
        if client is None:
            client = _clients[name] = fasti.connect(
                address,
                token=token,
                tls_ca=tls_ca or None,
                tls_client_cert=tls_client_cert or None,
            )
        return client
