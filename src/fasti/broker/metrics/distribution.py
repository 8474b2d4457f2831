"""How values are distributed: counts per bucket, as a histogram metric wants them.

Whoever observes holds a lock or is the only thread that does; readers take copies and may see
a sum that is one observation behind its counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Distribution:
    """Counts of values up to each bound, and of those beyond the last; and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """One value. A value that equals a bound counts below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: NDArray[np.float64]) -> None:
        """Many values at once."""
        places = np.searchsorted(self.bounds, values, side="left")
        for place, count in enumerate(np.bincount(places, minlength=len(self.counts)).tolist()):
            self.counts[place] += count
        self.total += float(values.sum())

    def copy(self) -> Distribution:
        """As it is now."""
        copied = Distribution(self.bounds)
        copied.counts, copied.total = list(self.counts), self.total
        return copied

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of bound and count up to it, ending with `+Inf`: Prometheus' form."""
        sums = np.cumsum(self.counts).tolist()
        names = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, sums, strict=True))
