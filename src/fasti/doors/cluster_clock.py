"""This broker's clock in its cluster: what beats tell of it, and what the others' clocks say to its leaps."""

from __future__ import annotations

from fasti.broker.clock import ClockState
from fasti.broker.host import Host
from fasti.cluster.member_clocks import MemberClocks

# A clock that is off by so much more than at the last look was set.
_STEP_US = 50_000


class ClockWatch:
    """One per process. For one thread."""

    def __init__(self, host: Host, clocks: MemberClocks) -> None:
        self._clock, self._clocks = host.clock, clocks
        self._machine = host.threads.runtime.clock
        self._monotonic = host.threads.runtime.monotonic
        self._ahead_us = self._measure_us()

    def time_us(self, at_s: float) -> int:
        """The time at a moment by the monotonic clock, as this broker goes by it now."""
        return int(at_s * 1e6) + self._measure_us()

    def look(self, alive: set[str]) -> None:
        """Notices that the clock was set; a leap that the clocks of the others have as well is believed."""
        ahead_us = self._measure_us()
        if abs(ahead_us - self._ahead_us) > _STEP_US:
            self._clocks.forget()
        self._ahead_us = ahead_us
        if self._clock.state is ClockState.DOUBTING and self._clocks.is_right(alive):
            self._clock.accept()

    def _measure_us(self) -> int:
        """How far the time that the broker goes by is ahead of time that can't be set; or the time that it
        will go by, if a leap of its machine's clock is believed.
        """
        now_us = max(self._clock.now_us(), self._machine.wall_ns() // 1000)
        return now_us - int(self._monotonic() * 1e6)
