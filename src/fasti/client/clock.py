"""The broker's clock as a client knows it over a network: never ahead of the truth.

A question written at `t0` and answered at `t1`, by this process's monotonic clock, with `now_us`
means: at `t1` the broker's clock showed at least `now_us`, at `t0` at most `now_us`. So

    offset = broker − monotonic  lies in  [now_us − t1, now_us − t0]

and the lower end is used: a slow network makes it lower, which makes us late and never early. Any
word of the broker's that carries `now_us` raises the lower end if it came faster (`heard`). The two
clocks may run at slightly different speeds, so what was learnt is trusted less as it ages: it loses
`_DRIFT_PPM` of its age.

The broker slows its clock down when its machine's was set back. It says with each answer for how long
it goes on at full speed for certain, counted from `t0` at the earliest (`STEADY_US`, or `steady_us` if
that is less), and it never goes slower than at half speed. Beyond that time we count half, until the
next answer. So a broker that slows down doesn't make us early, though we learn of it later.

And it never stays above the newest upper end: if it was, the broker's clock
was set back or another broker answers, and all that was known is dropped. Only an answer that can't
be true together with what was known says that a clock leapt: one that comes quickly after a slow one
merely tells more.

The wall clock of this machine plays no part, so its steps change nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("fasti.client")

# Clocks disciplined by NTP differ by far less; undisciplined quartz by up to about this much.
_DRIFT_PPM = 100
# As the protocol has it: how long a broker's clock goes on at full speed after it was told, and how
# many times slower it may go after that.
STEADY_US = 10_000_000
_SLOWER = 2
# A change of the offset beyond this is no drift: a clock was set.
_JUMP_US = 100_000


def monotonic_us() -> int:
    """This process's monotonic clock."""
    return time.monotonic_ns() // 1000


class ClockEstimate:
    """What is known of a broker's clock. Any thread may ask and tell.

    `offset_us` and `error_us` (the width of the last sample) are for people and metrics; `jumps`
    counts how often the offset leapt.
    """

    def __init__(self, monotonic: Callable[[], int] = monotonic_us) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        # One tuple, replaced whole, so that readers need no lock: lower end, when it was learnt, and
        # until when the broker's clock goes at full speed for certain.
        self._best: tuple[int, int, int] | None = None
        # The upper end, likewise.
        self._most: tuple[int, int] | None = None
        self.error_us = 0
        # By how much the broker's clock is further if it was not slowed, as of the last reading.
        self.unsure_us = 0
        self.jumps = 0
        self.samples = 0

    def _forked(self) -> None:
        """In a child process: the lock may have been a thread's that is not here."""
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether there was a sample at all."""
        return self._best is not None

    @property
    def offset_us(self) -> int:
        """Broker's clock minus our monotonic one, at least."""
        return self._best[0] if self._best else 0

    def now_us(self) -> int:
        """The lower end of what the broker's clock shows now; 0 while nothing is known."""
        # For every message: what `_held_us` does, written out.
        best = self._best
        if best is None:
            return 0
        at_us = self._monotonic()
        lower, learnt_us, steady_until = best
        now_us = at_us + lower - (at_us - learnt_us) * _DRIFT_PPM // 1_000_000
        return now_us if at_us <= steady_until else at_us + (self._held_us(at_us) or 0)

    def seconds_until(self, at_us: int) -> float:
        """How long to sleep until `now_us()` has reached it; 0 or less if it has."""
        return (at_us - self.now_us()) / 1_000_000

    def listen(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Calls `moved` whenever the estimate leapt; returns how to stop that."""
        with self._lock:
            self._listeners.append(moved)

        def stop() -> None:
            with self._lock:
                if moved in self._listeners:
                    self._listeners.remove(moved)

        return stop

    def sample(
        self, asked_us: int, answered_us: int, now_us: int, steady_us: int = STEADY_US
    ) -> None:
        """Takes in a question's answer: both times by our monotonic clock."""
        lower, upper = now_us - answered_us, now_us - asked_us
        with self._lock:
            self.samples += 1
            self.error_us = answered_us - asked_us
            held = self._held_us(answered_us)
            offset_us = lower if held is None or held > upper else max(held, lower)
            # Those that wait for a moment have waited for too long, or not for long enough.
            moved = held is None or not -_JUMP_US < offset_us - held < _JUMP_US
            leapt = self._narrow(lower, upper, held, answered_us)
            # What is kept was valid a moment ago; from here on it ages anew.
            steady_until = asked_us + min(steady_us, STEADY_US)
            if held is not None and held <= upper and self._best is not None:
                # What was promised before holds too.
                steady_until = max(steady_until, self._best[2])
            self._best = (offset_us, answered_us, steady_until)
            self.unsure_us = 0
            self.jumps += leapt
            listeners = list(self._listeners) if moved or leapt else []
        if leapt and held is not None:
            logger.warning("the broker's clock leapt by %.3f s", (offset_us - held) / 1_000_000)
        for tell in listeners:
            tell()

    def _narrow(self, lower: int, upper: int, held: int | None, at_us: int) -> bool:
        """Takes in an upper end; whether what was known before can't be true together with it."""
        most = self._most
        above = upper if most is None else most[0] + (at_us - most[1]) * _DRIFT_PPM // 1_000_000
        contradicts = lower > above or (held is not None and held > upper)
        self._most = (upper if contradicts else min(above, upper), at_us)
        back = held is not None and held > upper + _JUMP_US
        return back or lower > above + _JUMP_US

    def heard(self, now_us: int) -> None:
        """The broker wrote `now_us` at some time before this moment: its clock is at least there."""
        at_us = self._monotonic()
        held = self._held_us(at_us)
        if held is None or now_us - at_us <= held:
            return
        with self._lock:
            held = self._held_us(at_us)
            if held is not None and self._best is not None and now_us - at_us > held:
                # It may have been under way for long: it says nothing about the time to come.
                self._best = (now_us - at_us, at_us, self._best[2])
                self.unsure_us = 0

    def forget(self) -> None:
        """Another broker may answer from now on: nothing is known until the next sample."""
        with self._lock:
            self._best = self._most = None

    def _held_us(self, at_us: int) -> int | None:
        """What we would say at a moment, less that moment."""
        best = self._best
        if best is None:
            return None
        lower, learnt_us, steady_until = best
        held = lower - (at_us - learnt_us) * _DRIFT_PPM // 1_000_000
        slow_us = at_us - max(steady_until, learnt_us)
        if slow_us > 0:
            self.unsure_us = slow_us - slow_us // _SLOWER
            held -= self.unsure_us
        return held
