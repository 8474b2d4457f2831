"""Messages that arrived and wait here for their due time: earliest first, none early.

Runs lie in a heap by the turn of their first held row, which is its due time but for priority
topics, whose messages are handed over as they came. Taking looks at the broker's clock anew
for every message, with the lock, so that what a reconnection takes back can't be handed out at the
same moment. One thread takes; the session's threads add and drop.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from fasti.client.run import Run
from fasti.client.transport import BrokerClock
from fasti.errors import FastiError

_FAR_US = 1 << 62
# A longer sleep than this is cut, so that a clock that leapt is noticed.
_SLEEP_MAX_S = 60.0


class Holding:
    """What one consumer holds. `lock` is the consumer's."""

    def __init__(self, lock: threading.Lock, clock: BrokerClock) -> None:
        self.lock = lock
        self._clock = clock
        self._changed = threading.Condition(lock)
        self._left: deque[Run] = deque()
        self._heap: list[tuple[int, int, Run]] = []
        self._serial = 0
        # Due times beyond this belong to another run than the one that is being taken from.
        self.bound_us = _FAR_US
        # A lease ended that nobody renewed, because this process hung: nothing of what is held may
        # be handed out until it is known what is still ours.
        self.void = False
        # Called with the lock when somebody wants a message and there is none.
        self.ran_out: Callable[[], None] = lambda: None
        # Called with the lock when a message that is due has expired here: it is not handed over.
        self.lapsed: Callable[[Run, int], None] = lambda run, row: None
        self._fault: FastiError | None = None
        self._ended = False
        # The run that somebody takes from one by one, while it is not in the heap.
        self._open: Run | None = None
        self._takers = 0

    # With the lock

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for a message."""
        return self._takers > 0

    @property
    def holds_any(self) -> bool:
        """Whether a message is here that nobody has taken, due or not."""
        taken = self._open is None or self._open.next >= self._open.rows
        return not taken or any(run.next < run.rows for _, _, run in self._heap)

    def first_unopened(self) -> tuple[tuple[int, int] | None, float]:
        """Which row has been due for longest without being taken, and how long until one is due.

        None if none is due; infinite if none is held.
        """
        heap = self._heap
        while heap and heap[0][2].next >= heap[0][2].rows:
            heapq.heappop(heap)
        held = [each for each in (self._open, heap[0][2] if heap else None) if each is not None]
        wait_s = float("inf")
        for run in held:
            if run.next < run.rows:
                left_s = self._clock.seconds_until(int(run.turn_us[run.next]))
                if left_s <= 0:
                    return (run.serial, run.next), 0.0
                wait_s = min(wait_s, left_s)
        return None, wait_s

    def add(self, run: Run) -> None:
        """Messages have arrived, or go back."""
        if run is self._open:
            self._open = None
        if run.next >= run.rows:
            return
        turn_us = int(run.turn_us[run.next])
        if not run.serial:
            self._serial += 1
            run.serial = self._serial
        heapq.heappush(self._heap, (turn_us, run.serial, run))
        if turn_us < self.bound_us:
            self.bound_us = turn_us
        self._changed.notify_all()

    def drop_all(self) -> None:
        """Nothing of what is held may be handed out any more."""
        for _, _, run in self._heap:
            run.rows = run.next
        self._heap.clear()
        self.void = False
        self.bound_us = -1
        self._changed.notify_all()

    def _ended_unseen(self) -> None:
        self.void = True
        self.bound_us = -1
        self.ran_out()

    def _skipped(self, run: Run, ends: list[int], now_us: int) -> bool:
        """Passes over the next message of a run if it has expired; it goes back as it came."""
        row = run.next
        if not 0 < ends[row] <= now_us:
            return False
        run.next = row + 1
        self.lapsed(run, row)
        return True

    def fail(self, error: FastiError) -> None:
        """Whoever takes next is told."""
        self._fault = error
        self.bound_us = -1
        self._changed.notify_all()

    def end(self) -> None:
        """Nothing is handed out any more."""
        self._ended = True
        self.bound_us = -1
        self._changed.notify_all()

    def due_run(self) -> tuple[Run | None, float]:
        """The run whose first held message is due, or how long to sleep before looking again."""
        self._collect()
        if not self._heap or self.void:
            self.ran_out()
            return None, _SLEEP_MAX_S
        wait = self._clock.seconds_until(self._heap[0][0])
        if wait > 0:
            return None, min(wait, _SLEEP_MAX_S)
        run = self._open = heapq.heappop(self._heap)[2]
        self.bound_us = self._heap[0][0] if self._heap else _FAR_US
        return run, 0.0

    # Without the lock

    def wake(self) -> None:
        """The clock may have leapt."""
        with self.lock:
            self._changed.notify_all()

    def await_run(self, until: float | None) -> Run | None:
        """The run whose first held message is due; None at `until` (monotonic), or at the end.

        The caller takes from it while `bound_us` allows and then gives it back by `put_back`.
        Raises what `fail` was told.
        """
        with self.lock:
            while True:
                if self._fault is not None:
                    raise self._fault
                if self._ended:
                    return None
                run, wait = self.due_run()
                if run is not None:
                    return run
                if until is not None:
                    left = until - time.monotonic()
                    if left <= 0:
                        return None
                    wait = min(wait, left)
                self._takers += 1
                self._changed.wait(wait)
                self._takers -= 1

    def put_back(self, run: Run) -> None:
        """What was not taken of a run waits on.

        It never waits for the lock: an iterator that is thrown away puts back wherever Python collects
        it, in the middle of the session's own work, too. Then the next call that takes does it.
        """
        self._left.append(run)
        if self.lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self.lock.release()

    def _collect(self) -> None:
        """Runs that were put back while the lock was held."""
        while self._left:
            run = self._left.popleft()
            if not self._ended:
                self.add(run)

    def take_now(self) -> tuple[Run, int] | None:
        """The first message if it is due, as its run and row. For any thread: nobody waits here."""
        heap = self._heap
        with self.lock:
            self._collect()
            while heap and not (self.void or self._ended or self._fault):
                turn_us, serial, run = heap[0]
                row = run.next
                if row >= run.rows:
                    heapq.heappop(heap)
                    continue
                at_us = self._clock.now_us()
                turns = run.turn_list()
                if turns[row] != turn_us:
                    # Some before it went back unopened: another run may be earlier now.
                    heapq.heapreplace(heap, (turns[row], serial, run))
                    continue
                if turn_us > at_us:
                    return None
                if at_us + self._clock.unsure_us >= run.until_us:
                    self._ended_unseen()
                    return None
                if run.ends is not None and self._skipped(run, run.ends, at_us):
                    continue
                run.next = row + 1
                run.started[row] = at_us
                if run.next >= run.rows:
                    heapq.heappop(heap)
                elif turns[run.next] != turn_us:
                    heapq.heapreplace(heap, (turns[run.next], serial, run))
                return run, row
            self.ran_out()
        return None

    def take_due(self, run: Run, count: int) -> tuple[int, int]:
        """Up to `count` rows of the run that are due now, as [begin, end)."""
        with self.lock:
            now_us = self._clock.now_us()
            begin = run.next
            if now_us + self._clock.unsure_us >= run.until_us and begin < run.rows:
                self._ended_unseen()
            if self.bound_us < 0:
                return begin, begin
            until_us = min(now_us, self.bound_us)
            if run.ends is not None:
                while begin < run.rows and run.turn_us[begin] <= until_us:
                    if not self._skipped(run, run.ends, now_us):
                        break
                    begin = run.next
            due = int(np.searchsorted(run.turn_us[begin : run.rows], until_us, side="right"))
            end = begin + min(due, count)
            if run.ends is not None:
                over = (row for row in range(begin, end) if 0 < run.ends[row] <= now_us)
                end = next(over, end)
            np.frombuffer(run.started, dtype=np.int64)[begin:end] = now_us
            run.next = end
            return begin, end

    def take_each(self, run: Run) -> Iterator[int]:
        """The rows of the run that are due, one by one, as long as none elsewhere is earlier."""
        lock, now_us = self.lock, self._clock.now_us
        turns, started = run.turn_list(), run.started
        while True:
            with lock:
                row = run.next
                if row >= run.rows:
                    return
                turn_us = turns[row]
                if turn_us > self.bound_us:
                    return
                at_us = now_us()
                if turn_us > at_us:
                    return
                if at_us + self._clock.unsure_us >= run.until_us:
                    self._ended_unseen()
                    return
                if run.ends is not None and self._skipped(run, run.ends, at_us):
                    continue
                run.next = row + 1
                started[row] = at_us
            yield row
