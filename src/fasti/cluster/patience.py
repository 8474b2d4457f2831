"""How long one call waits for NATS before its caller is told `no_quorum`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from fasti.errors import NoQuorum, TimedOut, Unavailable

Result = TypeVar("Result")


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
        # What the server said last.
        self.reason = ""

    @property
    def is_over(self) -> bool:
        """Whether it has been long enough."""
        return time.monotonic() >= self._deadline

    def check(self) -> None:
        """Before each request: `NoQuorum` when it has been long enough."""
        if self.is_over:
            said = f"; the last answer: {self.reason}" if self.reason else ""
            raise NoQuorum(
                f"too few NATS servers answer for {self._what}{said}", retry_after_us=1_000_000
            )

    def pause(self, reason: str) -> None:
        """After a request that did not succeed."""
        self.reason = reason
        self._tries += 1
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
