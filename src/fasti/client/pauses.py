"""How long to wait before the next try to connect: longer each time, never all clients at once."""

from __future__ import annotations

from collections.abc import Callable

from fasti.errors import FastiError
from fasti.model import back_off

_FIRST_S, _MAX_S = 0.02, 2.0

# Errors that may be over soon: connect again. User code is told of all others.
PASSING = frozenset(
    {
        *("overloaded", "storage_full", "no_quorum", "unknown"),
        *("unavailable", "closed", "timed_out", "moved"),
    }
)


class Pauses:
    """The pauses of one connection. `draw` gives random numbers from 0 to 1."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._tries = 0

    def next_s(self, error: FastiError) -> float:
        """After one more failure; at least as long as the broker asked for, within bounds."""
        self._tries += 1
        pause_s = back_off(_FIRST_S, self._tries, _MAX_S)
        if error.retry_after_us is not None:
            pause_s = max(pause_s, min(error.retry_after_us / 1_000_000, _MAX_S))
        return pause_s * (0.5 + self._draw() / 2)

    def well(self) -> None:
        """The connection works again."""
        self._tries = 0
