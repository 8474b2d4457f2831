"""Percentiles, medians and spreads, with the standard library alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

_NAMES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all is not above; of a sorted sequence."""
    if not ordered:
        raise ValueError("there is no percentile of nothing")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latencies_ms(microseconds: Sequence[int]) -> dict[str, Any]:
    """As every latency is told."""
    if not microseconds:
        return {"count": 0}
    ordered = sorted(microseconds)
    return {
        "count": len(ordered),
        "min_ms": round(ordered[0] / 1e3, 3),
        **{name: round(percentile(ordered, share) / 1e3, 3) for name, share in _NAMES.items()},
        "max_ms": round(ordered[-1] / 1e3, 3),
    }


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and greatest."""
    return median(values), min(values), max(values)
