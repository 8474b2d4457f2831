"""Long work of which a process does one piece at a time, whichever shard it is for.

Checkpoints and scrubs keep to a pace that is the disk's, not a shard's: two at once would go twice as
fast. A service asks with `begin` before it takes such work; if another has the turn, its condition is
notified when the turn is free. Nothing blocks here. Any thread.
"""

from __future__ import annotations

import threading


class OneAtATime:
    """Who has the turn, and who waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object | None = None
        self._waiting: dict[object, threading.Condition] = {}

    def begin(self, holder: object, changed: threading.Condition) -> bool:
        """Whether the turn is the caller's now, or was already. If not, `changed` is notified later."""
        with self._lock:
            if self._holder is None or self._holder is holder:
                self._holder = holder
                self._waiting.pop(holder, None)
                return True
            self._waiting[holder] = changed
            return False

    def end(self, holder: object) -> None:
        """The turn is free. Not with the lock of a condition."""
        with self._lock:
            if self._holder is not holder:
                return
            self._holder = None
            waiting, self._waiting = self._waiting, {}
        # All of them look: the one that waited for longest is the first to.
        for changed in waiting.values():
            with changed:
                changed.notify_all()
