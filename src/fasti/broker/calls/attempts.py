"""Connections of one consumer, in the order in which it made them.

A consumer that lost its connection makes another. Both are on their way at once, and the older one
may get here last: it must not take the name from the newer one, which would be ended as if another
consumer had come. So a consumer numbers its attempts, under a name of its own (its life), and an
older one than the newest that is open here is refused.

Any thread may call. Only what is open is known: with nobody there is nobody to be ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from fasti.errors import Closed

_Opened = TypeVar("_Opened")

# Topic, group, consumer, and its life.
Name = tuple[str, str, str, str]


class Attempts:
    """The newest attempt of each life."""

    def __init__(self) -> None:
        self._newest: dict[Name, int] = {}
        self._lock = threading.Lock()

    def open(self, name: Name, attempt: int, made: Callable[[], _Opened]) -> _Opened:
        """What `made` gives, made in the order of the attempts. Raises `closed` for an older one."""
        if not name[-1]:
            return made()
        with self._lock:
            if attempt < self._newest.get(name, attempt):
                raise Closed("a newer connection of this consumer is open")
            opened = made()
            self._newest[name] = attempt
        return opened

    def close(self, name: Name, attempt: int) -> None:
        """It is open no more."""
        with self._lock:
            if self._newest.get(name) == attempt:
                del self._newest[name]
