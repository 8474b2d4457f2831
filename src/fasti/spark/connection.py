"""Clients of executors and drivers: one per process, broker and token, kept between tasks."""

from __future__ import annotations

import os
import threading
from typing import Any

import fasti
from fasti.client.client import Client

_lock = threading.Lock()
_clients: dict[tuple[Any, ...], Client] = {}


def client_of(address: str, token: str | None = None) -> Client:
    """A client of that broker, in this process."""
    place = address if "://" in address else f"fasti://{address}"
    # After a fork, which Spark's workers are, the parent's threads are gone.
    name = (os.getpid(), place, token)
    with _lock:
        found = _clients.get(name)
        if found is None:
            found = _clients[name] = fasti.connect(place, token=token)
        return found
