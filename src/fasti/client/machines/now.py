"""What the clocks show, as the shells hand it in."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Now(NamedTuple):
    """One reading of both clocks."""

    # This process's, which only goes on.
    s: float
    # The lower end of what the broker's may show, and how much further it may be.
    us: int
    unsure_us: int
    # How many seconds until the broker's clock shows a time.
    until: Callable[[int], float]
