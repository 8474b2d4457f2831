"""A wall clock that lies, for this process alone. Imported before anything else reads the time."""

from __future__ import annotations

import time

_time, _time_ns = time.time, time.time_ns
_off_s = 0


def leap(by_s: int) -> None:
    """From now on the wall clock is off by so much more."""
    global _off_s
    _off_s += by_s


time.time = lambda: _time() + _off_s
time.time_ns = lambda: _time_ns() + _off_s * 1_000_000_000
