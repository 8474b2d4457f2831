"""How many messages may be with a consumer unfinished: decided by how quickly they are worked off.

A message that lies here unopened is one that another consumer could work on. So a consumer begins
with as many places as it has free hands (`slots`): one for a plain iteration, an app's concurrency.
If what came is finished within `QUICK_US` of its coming, and more was wanted meanwhile, the window
doubles, until nobody waits for the broker or what is here is about that much work. Where a message
is finished within `BRISK_US` it also grows without that, to `AMPLE_SIZE`: acks then travel together
with others, instead of each at once for the place that it frees, beside the next message's own way. What waits for
longer narrows it in proportion, and one message that is worked on for `SLOW_US` brings it back to
the slots. When nothing is opened for `STALL_S` although something is due, everything unopened goes
back and the credit is withdrawn (the session does that): so the most that a change from quick to
slow handlers costs another consumer's idle hands is that long, once.

How many hands user code has is learnt where nobody said it: somebody waits for a message while all
that came is in hand.

A window that was given as a number stays as it is.
"""

from __future__ import annotations

QUICK_US = 15_000
BRISK_US = 2_000
AMPLE_SIZE = 32
LONG_US = 40_000
# With up to 25 ms in it for which an ack waits for others.
SLOW_US = 100_000
STALL_S = 0.05
SIZE_MAX = 4_096
# So many may be in the hands of code that does not say how many it can hold.
HANDS_MAX = 32
# What is here is at most about so large.
BYTES_MAX = 32 << 20


class Window:
    """Of one consumer. `size` is how many may be here unfinished, in hand and unopened."""

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
        """Somebody wants a message, and all that was allowed to come has been taken."""
        self._starved = True

    def finish(self, waited_us: int, worked_us: int, row_bytes: int) -> bool:
        """A message was finished that had waited so long here for somebody to open it.

        True if the handlers are slow now: credit that was given before is too much.
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
        elif waited_us + worked_us <= QUICK_US and (starved or self._is_brisk(worked_us)):
            self.size = min(2 * self.size, self._most)
        self.size = max(self.slots, min(self.size, BYTES_MAX // max(1, row_bytes)))
        return False

    def _is_brisk(self, worked_us: int) -> bool:
        return self.size < AMPLE_SIZE and worked_us <= BRISK_US

    def reach(self, in_hand: int) -> None:
        """Somebody waits for one more, while all that came is in hand."""
        if self.adapts and self.size <= in_hand < HANDS_MAX:
            self.slots = self.size = in_hand + 1

    def stall(self, in_hand: int) -> None:
        """Nothing was opened for too long: no more than what is being worked on."""
        self.slots = max(self.least, min(in_hand, HANDS_MAX))
        self.size = self.slots
        self._starved = False
