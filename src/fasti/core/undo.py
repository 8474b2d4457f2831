"""Taking back what a transaction did, should its last command turn out to be impossible.

While a transaction is being decided, everything that changes state leaves a note here of how to
put it back; what can't be put back (a lease's slot that serves somebody else) waits until the
transaction stands. Entries in the time index are not taken back: they are hints that are checked.

Only messages change in transactions: topics, stages and leases are not opened there.
"""

from __future__ import annotations

from collections.abc import Callable


class Undo:
    """Notes in order; `rollback` carries them out from the last to the first."""

    def __init__(self) -> None:
        self.active = False
        self._notes: list[Callable[[], None]] = []
        self._waiting: list[Callable[[], None]] = []

    def begin(self) -> None:
        """From now on notes are taken."""
        assert not self.active, "transactions don't nest"
        self.active = True

    def note(self, restore: Callable[[], None]) -> None:
        """How to take the next change back."""
        if self.active:
            self._notes.append(restore)

    def when_settled(self, finish: Callable[[], None], restore: Callable[[], None]) -> None:
        """Carries `finish` out when the transaction stands: at once, if there is none."""
        if not self.active:
            finish()
            return
        self._waiting.append(finish)
        self._notes.append(restore)

    def once_settled(self, finish: Callable[[], None]) -> None:
        """The same for what leaves nothing to restore, should the transaction be void."""
        if self.active:
            self._waiting.append(finish)
        else:
            finish()

    def commit(self) -> None:
        """The transaction stands."""
        self.active = False
        self._notes.clear()
        for finish in self._waiting:
            finish()
        self._waiting.clear()

    def rollback(self) -> None:
        """The transaction never was."""
        self.active = False
        self._waiting.clear()
        while self._notes:
            self._notes.pop()()
