"""The clock that notices when the wall clock is set."""

from __future__ import annotations

import sys

import pytest

from fasti.broker.clock import STEP_US, WatchedClock, watch_settings

HOUR_US = 3_600_000_000


class TwoClocks:
    """Wall and monotonic time, moved apart by hand; a reading may take a while."""

    def __init__(self) -> None:
        self.wall, self.mono, self.reading_us = 10**15, 0, 0

    def now_us(self) -> int:
        self.mono += self.reading_us
        self.wall += self.reading_us
        return self.wall

    def tick(self) -> int:
        return self.mono

    def pass_by(self, us: int, gained: int = 0) -> None:
        self.mono += us
        self.wall += us + gained


def test_a_step_is_told_once_with_its_size() -> None:
    clocks, steps = TwoClocks(), list[int]()
    clock = WatchedClock(steps.append, clocks)
    clocks.pass_by(5_000_000)
    assert clock.now_us() == clocks.wall
    assert steps == []
    clocks.pass_by(1_000, gained=HOUR_US)
    assert clock.now_us() == clocks.wall
    clock.now_us()
    assert steps == [HOUR_US]
    clocks.pass_by(1_000, gained=-2 * HOUR_US)
    clock.now_us()
    assert steps == [HOUR_US, -2 * HOUR_US]


def test_a_clock_that_is_slewed_has_not_stepped() -> None:
    clocks, steps = TwoClocks(), list[int]()
    clock = WatchedClock(steps.append, clocks)
    for _ in range(100):
        clocks.pass_by(60_000_000, gained=30_000)  # 500 ppm, a minute at a time.
        clock.now_us()
    clocks.pass_by(100 * HOUR_US, gained=100 * HOUR_US // 2_000)  # And long unread.
    clock.now_us()
    assert steps == []


def test_small_steps_that_add_up_within_a_moment_are_one() -> None:
    clocks, steps = TwoClocks(), list[int]()
    clock = WatchedClock(steps.append, clocks)
    for _ in range(4):
        clocks.pass_by(10, gained=STEP_US // 3)
        clock.now_us()
    assert len(steps) == 1


def test_a_reader_that_was_stopped_between_the_clocks_proves_nothing() -> None:
    clocks, steps = TwoClocks(), list[int]()
    clock = WatchedClock(steps.append, clocks)
    clocks.reading_us = HOUR_US
    clock.now_us()
    clocks.reading_us = 0
    clock.now_us()
    assert steps == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when its clock is set")
def test_the_system_can_be_asked_to_tell() -> None:
    assert watch_settings(lambda: None)
