"""The ticks by which leases end: time in which the broker did not look at them doesn't count.

A process can hang as a whole: a machine that is out of memory or frozen, a disk that answers after
seconds, SIGSTOP. Consumers lived on meanwhile and their heartbeats wait at the door, so it would be
wrong to let every lease end at the first look afterwards, before the heartbeats are heard. The
sequencer plans when to look next; when it comes much later than that, these ticks go on from its
last look. That is at most a third of a lease before the trouble began wherever consumers live,
because each of their heartbeats makes the sequencer look. The price: leases of consumers that are
really gone last longer by as much.

For the sequencer's thread alone.
"""

from __future__ import annotations

import logging

from fasti.broker.machine_clock import SystemClock, Ticking

_log = logging.getLogger("fasti.broker.ticks")

# A look that comes so much later than planned is no delay of the scheduler's.
HUNG_US = 250_000


class LeaseTicks:
    """Reads a clock for leases. A virtual clock leaps on purpose: that is never taken for trouble."""

    def __init__(self, clock: Ticking) -> None:
        self._clock = clock
        self._may_hang = isinstance(clock, SystemClock)
        self._lost_us = 0
        self._looked = clock.tick()

    def now(self) -> int:
        """The tick now."""
        return self._clock.tick() - self._lost_us

    def look(self, planned: int | None) -> int:
        """The tick to judge by. `planned` is when the next lease might have ended, if any."""
        tick = self.now()
        if self._may_hang and planned is not None and tick - planned > HUNG_US:
            _log.warning(
                "the broker hung for about %.1f s: leases go on from where they were",
                (tick - planned) / 1e6,
            )
            self._lost_us += tick - self._looked
            tick = self._looked
        self._looked = tick
        return tick
