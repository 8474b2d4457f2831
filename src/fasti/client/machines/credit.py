"""The credit of a consumer's session: what the broker may still send, and what is taken back.

The window says how many messages may be here; what is not here, the broker may send: that is the
credit. It is asked for with what is written anyway. A consumer whose hands are busy for too long is
stalled: what it has not opened goes back, the credit is withdrawn, and nothing is asked for until it
finishes a message or wants one.
"""

from __future__ import annotations

import math

from fasti.client.machines.custody import Custody
from fasti.client.machines.holding import FAR_US, Holding
from fasti.client.machines.now import Now
from fasti.client.machines.returns import Return, Segment, merged
from fasti.client.machines.window import STALL_S, Window

_CREDIT_MAX = 1 << 20


class Credit:
    """Of one session. `count` is how many messages the broker may still send."""

    def __init__(self, prefetch: int | None, count_max: int = _CREDIT_MAX) -> None:
        self._count_max = min(count_max, _CREDIT_MAX)
        self.window = Window(prefetch)
        self.count = 0
        # All of it has been used, so that the broker may have more for us.
        self._used_up = False
        self._stalled = False
        # Which message has been due for longest without being opened, and since when that is known.
        self._unopened: tuple[int, int] | None = None
        self._unopened_at = 0.0
        # It is to be withdrawn; the number of the request that does it, until it is answered.
        self._withdraw = False
        self._withdrawal = 0

    # Asking

    def wanted(self, unfinished: int) -> int:
        """How many more messages may come, while so many are here."""
        if self._stalled or self._withdrawal:
            return 0
        return min(self.window.size - unfinished, self._count_max) - self.count

    def spend(self, rows: int) -> None:
        """So many messages came by it."""
        self.count = max(0, self.count - rows)
        self._used_up = self._used_up or not self.count

    def restore(self, requested: int, granted: int) -> None:
        """Of what was asked for with a request, the broker took only so much."""
        self.count = max(0, self.count - requested + granted)

    def begin(self) -> None:
        """A new session: the broker has given up what the old one had."""
        self.count = 0
        self._stalled = self._withdraw = False
        self._withdrawal = 0

    # How handlers fare

    def ran_out(self) -> bool:
        """A message is wanted and there is none. True if acks should bring credit at once."""
        self._stalled = False
        if self._used_up:
            self.window.starve()
        return self.count < self.window.size // 2 or self.window.size == 1

    def measure(self, segment: Segment, now_us: int) -> None:
        """Fits the window to how long the last of those that are returned was here."""
        self._stalled = False
        run, rows = segment
        row = int(rows[-1])
        began_us = run.started[row]
        if not self.window.adapts or not began_us:
            return
        came_us = max(int(run.turn_us[row]), run.came_us)
        row_bytes = run.batch.nbytes // run.batch.num_rows
        if self.window.finish(began_us - came_us, now_us - began_us, row_bytes):
            self._withdraw = self.count > 0
        self._used_up = False

    def reach(self, unfinished: int) -> None:
        """A taker waits, and nothing waits to be returned: if all is in hand there are more hands."""
        if self.count <= 0:
            self.window.reach(unfinished)

    # What is not opened

    def stall_s(self, holding: Holding, now: Now) -> float:
        """How long until what is due counts as not opened; infinite if there is nothing."""
        if not self.window.adapts:
            return math.inf
        first, due_s = holding.first_unopened(now)
        if holding.takers:
            first = None  # A taker is about to open it, or waits for a fuller batch.
        if first is None or first != self._unopened:
            self._unopened, self._unopened_at = first, now.s
            return due_s + STALL_S
        return self._unopened_at + STALL_S - now.s

    def stall(self, custody: Custody) -> list[Return]:
        """What others may have, because it is not opened here."""
        self._unopened = None
        self._stalled = True
        self._withdraw = self.count > 0
        unopened = merged(custody.overdue(FAR_US))
        self.window.stall(custody.unfinished - sum(returned.rows for returned in unopened))
        return unopened

    # Withdrawing

    @property
    def to_withdraw(self) -> bool:
        """Whether a request that takes it back is to be written."""
        return self._withdraw and not self._withdrawal

    def withdraw(self, request: int) -> None:
        """A request of that number takes it back."""
        self._withdraw, self._withdrawal = False, request

    def end_withdrawal(self, request: int, done: bool) -> None:
        """A request was answered, which may be that one; not `done` if it was refused."""
        if self._withdrawal and request == self._withdrawal:
            self._withdrawal = 0
            if done:
                self.count = 0
