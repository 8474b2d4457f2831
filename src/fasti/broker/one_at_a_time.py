"""Long work of which a process does one piece at a time, whichever shard it is for.

Checkpoints and scrubs keep to a pace that is the disk's, not a shard's: two at once would go twice as
fast. A service asks with `begin` before it takes such work; if another has the turn it waits for a word
(`wake`), which it gets when the turn is free. Nothing blocks here. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class OneAtATime:
    """Who has the turn, and who waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object | None = None
        self._waiting: dict[object, Callable[[], None]] = {}

    def begin(self, holder: object, wake: Callable[[], None]) -> bool:
        """Whether the turn is the caller's now, or was already. If not, `wake` is called later."""
        with self._lock:
            if self._holder is None or self._holder is holder:
                self._holder = holder
                self._waiting.pop(holder, None)
                return True
            self._waiting[holder] = wake
            return False

    def end(self, holder: object) -> None:
        """The turn is free. Not with a lock that a `wake` takes."""
        with self._lock:
            if self._holder is not holder:
                return
            self._holder = None
            waiting, self._waiting = self._waiting, {}
        # All of them look: the one that waited for longest is the first to.
        for wake in waiting.values():
            wake()
