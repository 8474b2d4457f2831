"""How long to wait before the next try to connect: longer each time, never all at once."""

from __future__ import annotations

import random

from fasti.errors import FastiError
from fasti.model import back_off

_FIRST_S, _MAX_S = 0.02, 2.0

# What may be over soon: connect again. Everything else is told to whoever waits.
PASSING = frozenset({"overloaded", "storage_full", "unknown", "unavailable", "closed", "timed_out"})


class Pauses:
    """Of one connection. For whoever has its lock."""

    def __init__(self) -> None:
        self._tries = 0

    def next_s(self, error: FastiError) -> float:
        """After one more failure; at least as long as the broker asked for, within bounds."""
        self._tries += 1
        pause = back_off(_FIRST_S, self._tries, _MAX_S)
        if error.retry_after_us is not None:
            pause = max(pause, min(error.retry_after_us / 1_000_000, _MAX_S))
        return pause * random.uniform(0.5, 1.0)

    def well(self) -> None:
        """It works again."""
        self._tries = 0
