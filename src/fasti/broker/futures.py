"""Futures that the broker answers whether or not anybody still waits."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


def uncancellable() -> Future[Any]:
    """A future that can't be cancelled: what was handed over happens, and will be answered."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future
