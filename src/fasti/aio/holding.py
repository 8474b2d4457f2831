"""Messages that wait for their due time, for an event loop: nothing here ever blocks.

The same heap and the same rules as for threads; but instead of sleeping on a condition, whoever
finds nothing due asks to be rung (`watch`), and sets the loop's own timer for the first due time.
It is rung once, and only by what matters: something earlier than what it watches, or the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from fasti.client.holding import Holding
from fasti.client.run import Run
from fasti.client.transport import BrokerClock
from fasti.errors import FastiError

_FAR_US = 1 << 62
_NOBODY = -1
# A longer sleep than this is cut, so that a clock that leapt is noticed.
_SLEEP_MAX_S = 60.0


class Room(Protocol):
    """Where tasks wait for a consumer's messages."""

    @property
    def occupied(self) -> bool: ...


class LoopHolding(Holding):
    """What one consumer holds. `ring` may be called by any thread, with the lock.

    `room` is set before anybody waits.
    """

    room: Room | None = None

    def __init__(self, lock: threading.Lock, clock: BrokerClock, ring: Callable[[], None]) -> None:
        super().__init__(lock, clock)
        self._ring = ring
        # Who watches is rung by messages due before this, and by trouble.
        self._watched_us = _NOBODY

    @property
    def awaited(self) -> bool:
        """Whether a task waits for a message."""
        return self.room is not None and self.room.occupied

    # With the lock, by the session's threads

    def add(self, run: Run) -> None:
        """Messages have arrived, or go back."""
        super().add(run)
        if self._heap and self._heap[0][0] < self._watched_us:
            self._tell()

    def drop_all(self) -> None:
        """Nothing of what is held may be handed out any more."""
        super().drop_all()
        self._tell()

    def fail(self, error: FastiError) -> None:
        """Whoever takes next is told."""
        super().fail(error)
        self._tell()

    def end(self) -> None:
        """Nothing is handed out any more."""
        super().end()
        self._tell()

    def _tell(self) -> None:
        if self._watched_us != _NOBODY:
            self._watched_us = _NOBODY
            self._ring()

    # Without the lock

    def wake(self) -> None:
        """The clock may have leapt."""
        with self.lock:
            self._tell()

    @property
    def ended(self) -> bool:
        """Whether nothing will be handed out any more, because nobody wants it."""
        return self._ended

    @property
    def over(self) -> bool:
        """Whether nothing will be handed out any more, for this or another reason."""
        return self._ended or self._fault is not None

    def take_run(self) -> Run | None:
        """The run whose first held message is due, if there is one; as `await_run`."""
        with self.lock:
            if self._fault is not None:
                raise self._fault
            return None if self._ended else self.due_run()[0]

    def watch(self, everything: bool = False) -> float:
        """Seconds until the first message is due; 0 or less: look now. Asks to be rung.

        With `everything` whatever arrives rings, not only what is earlier.
        """
        with self.lock:
            if self._ended or self._fault is not None:
                return 0.0
            self._watched_us = _FAR_US
            if not self._heap or self.void:
                self.ran_out()
                return _SLEEP_MAX_S
            first_us = self._heap[0][0]
            if not everything:
                self._watched_us = first_us
            return min(self._clock.seconds_until(first_us), _SLEEP_MAX_S)

    def seconds_until_due(self, count: int) -> float:
        """How long until `count` of those held are due; infinite if there are not so many."""
        with self.lock:
            held = [run.turn_us[run.next : run.rows] for _, _, run in self._heap]
            if self.void or sum(map(len, held)) < count:
                return np.inf
            last_us = int(np.partition(np.concatenate(held), count - 1)[count - 1])
            return self._clock.seconds_until(last_us)
