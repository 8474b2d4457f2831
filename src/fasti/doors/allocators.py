"""How a broker's process allocates memory: set before anything large is loaded.

Arrow unpacks a compressed batch of a stream before it shows it to the program, and takes no limit for it: 66 kB
become 2 GiB. Its allocator can be told to refuse large buffers, by variables of the environment, before it is loaded.

The C library gives threads up to eight heaps for each core. gRPC's threads come and go and free what others
allocated, so that each heap is full of holes: with as many heaps as cores there are fewer of them. And once it has
freed a large block, it takes blocks up to that size from its heaps too: with a fixed bound they stay mappings of
their own, which leave no hole.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
from pathlib import Path

# No batch that is taken has a buffer of more: four times `limits.batch_max`, and not below this.
_BUFFER_BYTES_MIN = 256 << 20
# All that Arrow may have at a time, reserved as address space: 4 MiB for each thread of a broker at its limits.
_RESERVED_BYTES = 48 << 30
_PREFIX = "MIMALLOC_"
# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_HEAPS_MIN = 2
# Blocks from this size on are mappings of their own: larger than what a step of the engine allocates.
_MAPPED_BYTES = 2 << 20
# What stays free at the end of a heap for the next block: without it each large step would take it from the system.
_FREE_BYTES = 64 << 20


def bound_heaps() -> None:
    """Fewer heaps of the C library, without large blocks, where the environment says nothing of them."""
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, max(_HEAPS_MIN, os.cpu_count() or 0))
        set_option(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        set_option(_M_TRIM_THRESHOLD, _FREE_BYTES)


def load_arrow_bounded(batch_bytes_max: int) -> bool:
    """Loads Arrow so that it refuses larger buffers than a batch of so many bytes can have.

    False, and Arrow is loaded as ever: where the variables are set already, or address space is scarce. Processes
    that this one starts don't inherit the bound.
    """
    names = {name for name in os.environ if name.startswith(_PREFIX)}
    bounded = not names and "pyarrow" not in sys.modules and _is_space_free()
    if bounded:
        os.environ.update(_variables(max(_BUFFER_BYTES_MIN, 4 * batch_bytes_max)))
    try:
        import pyarrow  # noqa: F401
    finally:
        for name in _variables(0) if bounded else ():
            del os.environ[name]
    return bounded


def _variables(buffer_bytes_max: int) -> dict[str, str]:
    return {
        f"{_PREFIX}RESERVE_OS_MEMORY": f"{_RESERVED_BYTES >> 20}MiB",
        f"{_PREFIX}DISALLOW_OS_ALLOC": "1",
        f"{_PREFIX}ARENA_MAX_OBJECT_SIZE": f"{buffer_bytes_max >> 20}MiB",
    }


def _is_space_free() -> bool:
    """Whether the reservation costs nothing and succeeds: without it Arrow could allocate nothing at all."""
    if sys.platform != "linux" or resource.getrlimit(resource.RLIMIT_AS)[0] >= 0:
        return False
    try:
        if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
            return False
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mmap.mmap(-1, 2 * _RESERVED_BYTES, flags=flags, prot=0).close()
    except OSError:
        return False
    return True
