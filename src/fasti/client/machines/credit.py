"""The credit of a consumer's session: what the broker may still send, and what is taken back.

The window says how many messages may be here unfinished, by how quickly they are worked off; what is
not here, the broker may send: that is the credit. It is asked for with what is written anyway.

A message that lies here unopened is one that another consumer could work on. So a consumer begins
with as many places as it has free hands (`slots`): one for a plain iteration, an app's concurrency.
If what came is finished within `QUICK_US` of its coming, and more was wanted meanwhile, the window
grows, until no taker waits for the broker or what is here is about that much work. It doubles, or leaps
to that much work at the pace at which messages were finished: `LEAP` times as many at most, because a
few that were quick say little about the thousands behind them. Where a message is finished within
`BRISK_US` it also grows without that, to `AMPLE_SIZE`: acks then travel together with others, instead
of each at once for the place that it frees, beside the next message's own way.
What waits for longer narrows it in proportion, and one message that is worked on for `SLOW_US` brings
it back to the slots. A window that was given as a number stays as it is.

When nothing is opened for `STALL_S` although something is due, the consumer is stalled: what it has
not opened goes back, the credit is withdrawn, and nothing is asked for until it finishes a message or
wants one. So the most that a change from quick to slow handlers costs another consumer's idle hands is
that long, once.

How many hands user code has is learnt where it was not said: a taker waits for a message while all
that came is in hand.
"""

from __future__ import annotations

import math

from fasti.client.machines.holding import FAR_US, Custody, Holding
from fasti.client.machines.now import Now
from fasti.client.machines.returns import Return, Segment, merged

QUICK_US = 15_000
BRISK_US = 2_000
AMPLE_SIZE = 32
LONG_US = 40_000
# With up to 25 ms in it for which an ack waits for others.
SLOW_US = 100_000
STALL_S = 0.05
LEAP = 16
# About `QUICK_US` of a loop that does nothing else, with as much again.
SIZE_MAX = 16_384
# So many may be in the hands of code that does not say how many it can hold.
HANDS_MAX = 32
# What is here is at most about so large.
BYTES_MAX = 32 << 20


class Window:
    """The window of one consumer. `size` is how many may be here unfinished, in hand and unopened."""

    __slots__ = ("_most", "_starved", "adapts", "least", "size", "slots")

    def __init__(self, fixed: int | None = None) -> None:
        self.adapts = fixed is None
        self.size = self.slots = self.least = fixed or 1
        self._most = SIZE_MAX
        self._starved = False

    def want(self, slots: int) -> None:
        """At least so many are worked on at once."""
        self.least = max(self.least, slots)
        self.slots = max(self.slots, slots)
        self.size = max(self.size, slots)

    def want_batches(self, rows: int) -> None:
        """So many are worked on at once, and while they are the next may come."""
        if not self.adapts:
            self.size = max(self.size, 4 * rows)
            return
        self.want(rows)
        self._most = max(self._most, 4 * rows)
        self.size = max(self.size, 2 * rows)

    def starve(self) -> None:
        """A taker wants a message, and all that was allowed to come has been taken."""
        self._starved = True

    def finish(self, waited_us: int, worked_us: int, row_bytes: int, pace_us: float) -> bool:
        """A message was finished that had waited so long here to be opened.

        It and those with it took `pace_us` each, by all hands together. True if the handlers are slow
        now: credit that was given before is too much.
        """
        starved, self._starved = self._starved, False
        if not self.adapts:
            return False
        before = self.size
        if worked_us > SLOW_US:
            self.size = self.slots
            return before > self.size
        if waited_us > LONG_US:
            self.size = self.size * QUICK_US // waited_us
        elif waited_us + worked_us <= QUICK_US:
            most = self._most if starved else AMPLE_SIZE if worked_us <= BRISK_US else 0
            leap = min(LEAP * self.size, int(QUICK_US / max(pace_us, 0.1)))
            self.size = max(self.size, min(max(2 * self.size, leap), most))
        self.size = max(self.slots, min(self.size, BYTES_MAX // max(1, row_bytes)))
        return False

    def reach(self, in_hand: int) -> None:
        """A taker waits for one more, while all that came is in hand."""
        if self.adapts and self.size <= in_hand < HANDS_MAX:
            self.slots = self.size = in_hand + 1

    def stall(self, in_hand: int) -> None:
        """Nothing was opened for too long: no more than what is being worked on."""
        self.slots = max(self.least, min(in_hand, HANDS_MAX))
        self.size = self.slots
        self._starved = False


_CREDIT_MAX = 1 << 20


class Credit:
    """Of one session. `count` is how many messages the broker may still send."""

    # Whether the window is that of several sessions, see `places.py`.
    shared = False

    def __init__(
        self,
        prefetch: int | None,
        count_max: int = _CREDIT_MAX,
        window: Window | None = None,
    ) -> None:
        self._count_max = min(count_max, _CREDIT_MAX)
        self.window = window or Window(prefetch)
        self.count = 0
        # How much of it was asked for with requests that have no reply yet.
        self.under_way = 0
        # All that the broker had when it sent the last was used, so that it may have more for us.
        self._used_up = False
        self._stalled = False
        # Which message has been due for longest without being opened, and since when that is known.
        self._unopened: tuple[int, ...] | None = None
        self._unopened_at = 0.0
        # When it may be that more can be asked for although nothing has happened.
        self.look_at = math.inf
        # It is to be withdrawn; the number of the request that does it, until it is answered.
        self._withdraw = False
        self._withdrawal = 0

    # Asking

    @property
    def share(self) -> int:
        """How many messages may be here by this session."""
        return self.window.size

    def wanted(self, unfinished: int, now_s: float) -> int:
        """How many more messages may come, while so many are here."""
        if self._stalled or self._withdrawal:
            return 0
        return min(self.window.size - unfinished, self._count_max) - self.count

    def surplus(self) -> int:
        """How many of those that have just come have no place: none, where there is one session."""
        return 0

    def ask(self, unfinished: int, now_s: float) -> int:
        """So many are asked for now."""
        credit = max(0, self.wanted(unfinished, now_s))
        self.count += credit
        return credit

    def spend(self, rows: int) -> None:
        """So many messages came by it."""
        self.count = max(0, self.count - rows)
        self._used_up = self.count <= self.under_way

    def restore(self, requested: int, granted: int) -> None:
        """Of what was asked for with a request, the broker took only so much."""
        self.count = max(0, self.count - requested + granted)

    def begin(self) -> None:
        """A new session: the broker has given up what the old one had."""
        self.count = self.under_way = 0
        self._used_up = self._stalled = self._withdraw = False
        self._withdrawal = 0

    # How handlers fare

    def ran_out(self) -> bool:
        """A message is wanted and there is none. True if acks should bring credit at once."""
        self._stalled = False
        if self._used_up and self.count <= self.under_way:
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
        row_bytes = run.row_bytes
        worked_us = now_us - began_us
        # From one to the next, without the time for which they waited for a reply to those before; of
        # those that were taken together, their part of the work.
        apart_us = (began_us - run.started[int(rows[0])]) / max(1, len(rows) - 1)
        pace_us = max(apart_us, worked_us / len(rows))
        if self.window.finish(began_us - came_us, worked_us, row_bytes, pace_us):
            self._take_back()

    def _take_back(self) -> None:
        """What was asked for is too much now."""
        self._withdraw = self.count > 0

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
