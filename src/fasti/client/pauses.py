"""How long to wait before the next try to connect: longer each time, never all clients at once."""

from __future__ import annotations

from collections.abc import Callable

from fasti.errors import FastiError
from fasti.model import back_off

_FIRST_S, _MAX_S = 0.02, 2.0
# A shard that is not where it was is led by another broker in a moment: for some seconds it is looked for often.
_MOVING_MAX_S, _MOVING_TRIES = 0.1, 40

# Errors that may be over soon: connect again. User code is told of all others.
PASSING = frozenset(
    {
        *("overloaded", "storage_full", "no_quorum", "unknown"),
        *("unavailable", "closed", "timed_out", "moved"),
    }
)


def pause_s(error: FastiError, tries: int) -> float:
    """After so many failures in a row, the first is 1; to be drawn from the half of it to all.

    An error that names a shard says that its leader is gone or has left; with `retry_after_us` 0, that it is
    known where the shard is now.
    """
    of_shard = "shard" in error.details
    if of_shard and error.retry_after_us == 0 and tries <= 1:
        return 0.0
    return back_off(
        _FIRST_S, tries, _MOVING_MAX_S if of_shard and tries <= _MOVING_TRIES else _MAX_S
    )


class Pauses:
    """The pauses of one connection. `draw` gives random numbers from 0 to 1."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._tries = 0

    def next_s(self, error: FastiError) -> float:
        """After one more failure; at least as long as the broker asked for, within bounds."""
        self._tries += 1
        wait_s = pause_s(error, self._tries)
        if error.retry_after_us is not None:
            wait_s = max(wait_s, min(error.retry_after_us / 1_000_000, _MAX_S))
        return wait_s * (0.5 + self._draw() / 2)

    def well(self) -> None:
        """The connection works again."""
        self._tries = 0
