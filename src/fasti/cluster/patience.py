"""How long one call waits for NATS before its caller is told `no_quorum`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fasti.errors import NoQuorum, TimedOut, Unavailable

Result = TypeVar("Result")

# In the details of a `NoQuorum`: the servers answer, and have no room.
FULL = "full"
_FULL_PAUSE_S = 1.0


class Timeouts(NamedTuple):
    """In seconds. A single request is resolved by a read after ``answer_s``; a call gives up after
    ``call_s``, and take-over after ``open_s``: a stream's new leader may take 4 to 9 to be elected.
    """

    answer_s: float = 0.3
    call_s: float = 3.0
    open_s: float = 12.0


DEFAULT_TIMEOUTS = Timeouts()


class Patience:
    """One call's. Tries again at once at first, then with pauses."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._deadline = time.monotonic() + seconds
        self._tries = 0
        # What the server said last, and whether that was that it has no room.
        self.reason = ""
        self.is_full = False

    @property
    def is_over(self) -> bool:
        """Whether it has been long enough."""
        return time.monotonic() >= self._deadline

    def check(self) -> None:
        """Before each request: `NoQuorum` when it has been long enough."""
        if self.is_over:
            said = f"; the last answer: {self.reason}" if self.reason else ""
            why = "NATS has no room" if self.is_full else "too few NATS servers answer"
            raise NoQuorum(
                f"{why} for {self._what}{said}",
                retry_after_us=1_000_000,
                details={FULL: True} if self.is_full else None,
            )

    def pause(self, reason: str, is_full: bool = False) -> None:
        """After a request that did not succeed; ``is_full``: for want of room."""
        self.reason, self.is_full = reason, is_full
        self._tries += 1
        if is_full:
            # A server that is asked again and again leads its stream no more for that.
            time.sleep(_FULL_PAUSE_S)
            return
        if self._tries > 1:
            time.sleep(min(0.002 * 2**self._tries, 0.1))


def insist(what: str, seconds: float, call: Callable[[], Result]) -> Result:
    """The result of a request that may be sent twice; `NoQuorum` if it isn't answered for so long."""
    patience = Patience(what, seconds)
    while True:
        patience.check()
        try:
            return call()
        except (TimedOut, Unavailable) as error:
            patience.pause(error.message)
