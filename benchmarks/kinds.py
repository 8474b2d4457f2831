"""`fasti bench kinds`: the other topic kinds, each beside the machine's limits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.flight_limit import flight_limit
from benchmarks.limits import disk_limits, machine

Figures = dict[str, Any]
Show = Callable[[str], None]
# Of each part the module `kinds_NAME`, with a function `measure(directory, rows, show, limits)`.
_NAMES = ("log", "priority", "kv", "cron", "routing", "calls")
KINDS = tuple(name for name in _NAMES if find_spec(f"benchmarks.kinds_{name}"))


def kinds(only: list[str], directory: Path | None, rows: int, show: Show) -> Figures:
    """The named kinds, or all, one after another."""
    show("the machine's limits")
    with tempfile.TemporaryDirectory(prefix="fasti-bench-", dir=directory) as scratch:
        disk = disk_limits(Path(scratch))
    limits: Figures = {"disk": disk, "flight_rows_per_s": flight_limit()}
    found: Figures = {"machine": machine(), "limits": limits}
    for name in only or KINDS:
        measure = import_module(f"benchmarks.kinds_{name}").measure
        found[name] = measure(directory, rows, show, limits)
    return found


def beside(figures: Figures, limits: Figures, payload_bytes: int = 100) -> Figures:
    """A rate of messages, with its share of what Flight and the disk could do."""
    rate = figures["messages_per_s"]
    payload_mb = rate * payload_bytes / 1e6
    return {
        **figures,
        "of_flight": round(rate / limits["flight_rows_per_s"], 3),
        "payload_of_disk": round(payload_mb / limits["disk"]["durable_mb_per_s"], 3),
    }
