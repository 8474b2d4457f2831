"""Telling people that a broker is away, and that it is back: once each, however many wait for it.

A client's consumers lose the broker together and try again on their own, many times. The log gets a
warning when the first of them has lost it, and a line when all that wait have found it again, with
how long it was. Any thread may call.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import Any

from fasti.errors import FastiError

logger = logging.getLogger("fasti.client")

# What means that no broker answers there; anything else is an answer.
_AWAY = frozenset({"unavailable", "closed", "timed_out", "unknown"})

_LOCK = threading.Lock()
_of_brokers: weakref.WeakKeyDictionary[Any, Absence] = weakref.WeakKeyDictionary()


def absence_of(transport: Any) -> Absence:
    """What is known of the broker behind a transport, for all who use it and those to its other shards."""
    broker = getattr(transport, "broker", transport)
    with _LOCK:
        if broker not in _of_brokers:
            _of_brokers[broker] = Absence()
        return _of_brokers[broker]


class Absence:
    """Of one broker, for one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = 0.0
        # Who has lost it, by something that is theirs alone.
        self._waiting: set[int] = set()

    def lost(self, who: int, name: str, error: FastiError) -> None:
        """A session's connection is gone, or can't be had."""
        if error.code not in _AWAY:
            return
        with self._lock:
            first = not self._waiting
            self._waiting.add(who)
            if first:
                self._since = time.monotonic()
        if first:
            logger.warning(
                "the broker is away (%s): %s waits and connects again by itself", error, name
            )

    def found(self, who: int) -> None:
        """It answers again."""
        if self._leave(who):
            logger.info("the broker is back after %.1f s", time.monotonic() - self._since)

    def left(self, who: int) -> None:
        """A session waits for it no longer."""
        self._leave(who)

    def _leave(self, who: int) -> bool:
        if not self._waiting:
            return False
        with self._lock:
            waited = who in self._waiting
            self._waiting.discard(who)
            return waited and not self._waiting
