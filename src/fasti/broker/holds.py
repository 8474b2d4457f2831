"""Holds: who needs the files of a shard to stay as they are for a while.

A backup reads blocks and journal for as long as it takes; until then nothing is deleted. A hold ends
when its owner says so, or has not been heard of for a minute, or when the disk is full: messages go
before backups. Any thread.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable

from fasti.errors import Gone

IDLE_S = 60.0


class Holds:
    """All holds of one shard."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._numbers = itertools.count(1)
        self._until: dict[int, float] = {}
        self._owners: dict[int, str] = {}
        self._lock = threading.Lock()

    def take(self, owner: str = "") -> int:
        """A new hold."""
        with self._lock:
            number = next(self._numbers)
            self._owners[number] = owner
            self._until[number] = self._monotonic() + IDLE_S
            return number

    def use(self, number: int) -> None:
        """Its owner is still there. Raises `gone` if it has ended."""
        with self._lock:
            if self._until.get(number, 0.0) < self._monotonic():
                self._until.pop(number, None)
                raise Gone(f"backup {number} has ended: begin it again")
            self._until[number] = self._monotonic() + IDLE_S

    def drop(self, number: int) -> None:
        """Its owner needs it no more; one that has ended is fine."""
        with self._lock:
            self._until.pop(number, None)

    def drop_all(self) -> None:
        """The disk is full, or the files are others now."""
        with self._lock:
            self._until.clear()

    def __len__(self) -> int:
        """How many there are."""
        return sum(self.by_owner().values())

    def by_owner(self) -> dict[str, int]:
        """How many each owner has."""
        now = self._monotonic()
        with self._lock:
            self._until = {n: until for n, until in self._until.items() if until >= now}
            self._owners = {n: owner for n, owner in self._owners.items() if n in self._until}
            return dict(Counter(self._owners.values()))
