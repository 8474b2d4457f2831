"""What the machine itself can do: the yardstick beside every figure."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

_PIECE = 1 << 20
_PIECES = 256


def disk_limits(directory: Path) -> dict[str, Any]:
    """Durable bandwidth: appends of 1 MiB, each with fdatasync, into a preallocated file.

    Preallocated means written with zeros and synced before, as the journal's segments are.
    """
    path = directory / "limit.bin"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        zeros, piece = bytes(_PIECE), os.urandom(_PIECE)
        for number in range(_PIECES):
            os.pwrite(descriptor, zeros, number * _PIECE)
        os.fsync(descriptor)
        seconds = []
        for number in range(_PIECES):
            begin = time.perf_counter()
            os.pwrite(descriptor, piece, number * _PIECE)
            os.fdatasync(descriptor)
            seconds.append(time.perf_counter() - begin)
    finally:
        os.close(descriptor)
        path.unlink()
    return {
        "how": "1 MiB appends, fdatasync each, preallocated (zero-filled) file",
        "durable_mb_per_s": round(_PIECES * _PIECE / sum(seconds) / 1e6, 1),
        "sync_p50_ms": round(float(np.percentile(seconds, 50)) * 1e3, 3),
        "sync_p99_ms": round(float(np.percentile(seconds, 99)) * 1e3, 3),
    }


def sync_limits(directory: Path, syncs: int = 3_000) -> dict[str, Any]:
    """How long the disk takes for a small durable append: 4 KiB and fdatasync, preallocated."""
    path = directory / "sync.bin"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    piece = os.urandom(4096)
    try:
        for begin in range(0, syncs * 4096, _PIECE):
            os.pwrite(descriptor, bytes(_PIECE), begin)
        os.fsync(descriptor)
        seconds = []
        for number in range(syncs):
            begin_s = time.perf_counter()
            os.pwrite(descriptor, piece, number * 4096)
            os.fdatasync(descriptor)
            seconds.append(time.perf_counter() - begin_s)
    finally:
        os.close(descriptor)
        path.unlink()
    return {
        "how": "4 KiB appends, fdatasync each, preallocated (zero-filled) file",
        **{
            f"sync_{name}_ms": round(float(np.percentile(seconds, q)) * 1e3, 3)
            for name, q in (("p50", 50), ("p99", 99), ("p999", 99.9))
        },
    }


def resident_anonymous_mb() -> float:
    """RssAnon of this process: memory that is not a file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def machine() -> dict[str, Any]:
    """What this is being measured on."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }
