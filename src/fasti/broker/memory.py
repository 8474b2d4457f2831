"""Giving freed memory back to the operating system.

A checkpoint sorts and gathers millions of rows; the allocators keep what it freed, in case it is
wanted again. It is not, until the next checkpoint, and an operator looks at the process's size.
"""

from __future__ import annotations

import ctypes
import sys

import pyarrow as pa


def give_memory_back() -> None:
    """Asks Arrow's allocator and, on Linux, the C library to let go of unused memory."""
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
