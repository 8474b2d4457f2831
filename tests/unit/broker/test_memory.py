"""When freed memory is given back: after growth, when it is calm, not all the time."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest

from fasti.broker.memory import MemoryReturn, anonymous_bytes, heap_bytes

MIB = 1 << 20


class Process:
    """One that holds some memory in use, and some that is free."""

    def __init__(self) -> None:
        self.used, self.free = 100 * MIB, 0
        self.returns = MemoryReturn(self.used)

    def polls(
        self, begin: float, end: float, refill: int = 0, refill_s: float = 0.0
    ) -> list[float]:
        """When memory is given back meanwhile. `refill`: so much is free again, after a while."""
        times: list[float] = []
        now = begin
        while now < end:
            if not times or now - times[-1] >= refill_s:
                self.free = refill or self.free
            if self.returns.is_due(now, self.used + self.free):
                times.append(now)
                self.free = 0
            now += 0.1
        return times


def test_a_burst_is_given_back_and_then_nothing_is_done() -> None:
    process = Process()
    assert process.polls(0, 10) == []
    process.free = 500 * MIB
    assert process.polls(10, 10.4) == []
    assert len(process.polls(10.4, 11)) == 1
    assert process.free == 0
    # Two more looks whether something was free a moment later.
    assert len(process.polls(11, 100)) == 2


def test_a_small_process_gives_back_what_a_large_one_keeps() -> None:
    small, large = Process(), Process()
    large.used += 900 * MIB
    large.returns = MemoryReturn(large.used)
    for process in (small, large):
        process.free = 30 * MIB
        process.polls(0, 10)
    assert (small.free, large.free) == (0, 30 * MIB)


def test_what_was_in_use_the_first_time_is_given_back_the_next() -> None:
    process = Process()
    process.used += 500 * MIB
    assert len(process.polls(0, 2)) == 1
    process.used -= 500 * MIB
    process.free = 500 * MIB
    assert process.polls(2, 10)
    assert process.free == 0


def test_memory_that_comes_again_is_left_longer_each_time() -> None:
    times = Process().polls(0, 600, refill=300 * MIB, refill_s=2)
    assert 3 < len(times) < 15
    assert times[-1] - times[-2] > 100


def test_memory_that_comes_again_at_once_is_left() -> None:
    assert len(Process().polls(0, 600, refill=300 * MIB)) <= 3


def test_a_process_knows_its_size() -> None:
    before = anonymous_bytes()
    # A mapping of its own: other memory may be what was freed before.
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block[::4096] = b"x" * len(block[::4096])
        assert anonymous_bytes() - before > 32 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="glibc tells")
def test_the_heap_tells_what_is_used_and_what_is_kept() -> None:
    before = heap_bytes()
    blocks = [ctypes.create_string_buffer(100_000) for _ in range(100)]
    during = heap_bytes()
    assert during["used"] - before["used"] > 9_000_000
    del blocks
    assert heap_bytes()["used"] < during["used"]
