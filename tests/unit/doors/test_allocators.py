"""The C library's heaps, as a broker sets them, in processes of their own."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import sys
import numpy as np
from fasti.doors.allocators import bound_heaps

def resident_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

bound_heaps()
# glibc raises its bound for mappings to the size of one that was freed.
np.ones(24 << 20, dtype=np.uint8).sum()
before_kb = resident_kb()
blocks, pins = [], []
for _ in range(4):
    blocks.append(np.ones(8 << 20, dtype=np.uint8))
    # Something that stays, behind it in the heap.
    pins.append(np.ones(100_000, dtype=np.uint8))
del blocks
print(resident_kb() - before_kb)
"""


def growth_kb(**environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="how much is resident is read from /proc")
def test_large_blocks_that_were_freed_leave_no_hole_in_the_heap() -> None:
    assert growth_kb() < 4_000


@pytest.mark.skipif(sys.platform != "linux", reason="how much is resident is read from /proc")
def test_what_the_environment_says_of_the_heaps_holds() -> None:
    assert growth_kb(MALLOC_ARENA_MAX="4") > 16_000
