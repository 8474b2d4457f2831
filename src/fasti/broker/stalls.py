"""What held messages up, counted by cause.

Each cause has a length from which on it counts; what is shorter is ordinary. Lengths are wall time, so a
machine that gives the broker too few cores has stalls as well, mostly steps. `command` says what took the
longest part of a step: the one with the most rows, or nothing if it only handed messages out.

Any thread may note and read; counts are for metrics.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fasti.broker.request import Request

# From how long on each counts, in seconds.
LEAST_S: dict[str, float] = {
    # All threads wait while garbage is collected.
    "collection": 0.005,
    # A step of the engine: nothing else is decided meanwhile.
    "step": 0.01,
    # Frames on their way into the journal, a new segment included; and their sync.
    "write": 0.05,
    "sync": 0.05,
    # No segment was prepared in time: bulk waited for one, or the sequencer made it in its turn.
    "room": 0.0,
    "segment": 0.0,
}


class Stalls:
    """One per shard; it stays over recoveries."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # Known from the beginning, so that a rate can be told of the first one.
        self._counts: Counter[tuple[str, str]] = Counter(
            dict.fromkeys(((c, "") for c in LEAST_S), 0)
        )
        self._collecting_since = 0.0

    def note(self, cause: str, seconds: float = 0.0, requests: Sequence[Request] = ()) -> None:
        """Something took so long; it counts if that is long for its cause."""
        if seconds >= LEAST_S[cause]:
            with self._lock:
                self._counts[cause, _longest(requests)] += 1

    def since(self, cause: str, begin: float, requests: Sequence[Request] = ()) -> None:
        """The same for what began at that monotonic moment and has just ended."""
        if self._monotonic() - begin >= LEAST_S[cause]:
            self.note(cause, LEAST_S[cause], requests)

    def collector(self, phase: str, _: Mapping[str, Any]) -> None:
        """For `gc.callbacks`: called before and after each collection, by the thread that does it."""
        # Without the lock: a collection may begin while this very thread holds it.
        if phase == "start":
            self._collecting_since = self._monotonic()
        elif self._monotonic() - self._collecting_since >= LEAST_S["collection"]:
            self._counts["collection", ""] += 1

    def counts(self) -> dict[tuple[str, str], int]:
        """By cause and command."""
        with self._lock:
            return dict(self._counts)


def _longest(requests: Sequence[Request]) -> str:
    inputs = [command for request in requests for command in request.inputs]
    if not inputs:
        return ""
    return type(max(inputs, key=lambda command: command.count_rows())).__name__
