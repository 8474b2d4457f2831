"""What a client has made, held weakly, so that it can be ended with the client.

Any thread. A plain weak set can't be looked through while another thread adds to it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from fasti.client import forking
from fasti.errors import Closed

_Made = TypeVar("_Made")


class _Closes(Protocol):
    def close(self) -> None: ...


_Closing = TypeVar("_Closing", bound=_Closes)


def keep(kept: Kept[_Closing], made: _Closing) -> None:
    """Has the client end it; if it is being closed at this moment it is ended here, and refused."""
    if not kept.add(made):
        made.close()
        raise Closed("the client is closed")


class Kept(Generic[_Made]):
    """Things of one kind."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[_Made] = weakref.WeakSet()
        # The collector of garbage may come by in the middle of this, and with it a finaliser that comes here.
        self._lock = threading.RLock()
        self._ended = False
        forking.register(self)

    def _fork_locks(self) -> list[threading.RLock]:
        """Taken before the process forks: the set is whole then."""
        return [self._lock]

    def _forked(self) -> None:
        """In a child process, which has the same things."""

    def add(self, made: _Made) -> bool:
        """False if it comes too late: the caller ends what it made."""
        with self._lock:
            if not self._ended:
                self._made.add(made)
            return not self._ended

    def discard(self, made: _Made) -> None:
        """It has ended by itself."""
        with self._lock:
            self._made.discard(made)

    def end(self) -> list[_Made]:
        """All of them, to be ended; none is added any more."""
        with self._lock:
            self._ended = True
            return list(self._made)

    def __iter__(self) -> Iterator[_Made]:
        with self._lock:
            # Mostly there is none, and to look through a weak set takes longer than to ask how many there are.
            return iter(list(self._made) if len(self._made) else ())
