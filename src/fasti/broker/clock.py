"""The broker's two clocks: wall time for due times, monotonic time for leases."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Both in microseconds. A virtual one stands in for it in tests."""

    def now_us(self) -> int:
        """Wall time, UTC."""

    def tick(self) -> int:
        """Monotonic time from any origin."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def tick(self) -> int:
        return time.monotonic_ns() // 1000
