"""The process's memory: how much it is, and giving freed memory back to the operating system.

A checkpoint sorts and gathers millions of rows, a burst of large requests comes and goes; the
allocators keep what was freed, in case it is wanted again. It is not, until the next time, and an
operator looks at the process's size.
"""

from __future__ import annotations

import ctypes
import os
import sys

import pyarrow as pa

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Growth that is worth the work of giving back: a thirty-second, within these bounds: callers that come
# and go leave holes, a little more each minute. And what tells that more may follow.
_GROWTH_SHARE = 32
_GROWTH_BYTES_MIN, _GROWTH_BYTES_MAX = 4 << 20, 64 << 20
_FREED_BYTES = 16 << 20
# So long it has not grown: what it grew for is over, or will last.
_CALM_S = 0.5
# Giving back what is wanted again at once costs more than it brings: the pauses double then.
_PAUSE_S, _PAUSE_MAX_S = 5.0, 160.0


def give_memory_back() -> None:
    """Asks Arrow's allocator and, on Linux, the C library to let go of unused memory.

    Arrow's listens to the main thread only; the C library to any.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def anonymous_bytes() -> int:
    """Resident memory of this process that no file is behind; 0 where the system doesn't tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = file.read(256).split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


_HEAP_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _HeapInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _HEAP_FIELDS)


def heap_bytes() -> dict[str, int]:
    """What the C library has allocated, and what it keeps of what was freed; nothing if it doesn't tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if ask is None:
        return {}
    ask.restype = _HeapInfo
    info = ask()
    return {"used": info.uordblks + info.hblkhd, "free": info.fordblks}


class MemoryReturn:
    """Decides when memory is to be given back: after the process has grown. For one thread."""

    def __init__(self, size_bytes: int) -> None:
        self._base = self._highest = size_bytes
        self._grew_at = self._next_at = 0.0
        self._pause_s = _PAUSE_S
        # What was in use the first time may be free a moment later.
        self._again = 0
        # The size when memory was to be given back, until the result can be seen.
        self._before: int | None = None

    def is_due(self, now: float, size_bytes: int) -> bool:
        """Whether to give memory back now; asked often. `now` is monotonic."""
        if self._before is not None and now >= self._grew_at + _CALM_S:
            self._see_result(size_bytes)
        self._base = min(self._base, size_bytes)
        if size_bytes > self._highest:
            self._highest, self._grew_at = size_bytes, now
        if now < max(self._next_at, self._grew_at + _CALM_S):
            return False
        worthwhile = max(_GROWTH_BYTES_MIN, min(self._base // _GROWTH_SHARE, _GROWTH_BYTES_MAX))
        if self._highest - self._base > worthwhile:
            at_once = self._next_at > 0 and now - self._next_at < 2 * _CALM_S
            self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S) if at_once else _PAUSE_S
            self._again = 2
        if not self._again:
            return False
        self._before, self._grew_at = size_bytes, now
        self._next_at = now + self._pause_s
        return True

    def _see_result(self, size_bytes: int) -> None:
        assert self._before is not None
        if self._before - size_bytes < _FREED_BYTES:
            self._again -= 1
        self._base = self._highest = size_bytes
        self._before = None
