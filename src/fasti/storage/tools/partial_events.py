"""Parts of events, and stand-ins, for mending what a gap left (mending.py)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Who had a lease whose beginning is lost, and for how long it is held: a start arms it anew.
NOBODY = "(unknown: lost with a part of the journal)"
HOLD_US = 1_000_000


def only(event: Any, good: NDArray[np.bool_]) -> Any:
    """The event for some of its rows."""
    if good.all():
        return event
    columns = {
        column.name: value[good]
        for column in fields(event)
        if isinstance(value := getattr(event, column.name), np.ndarray) and len(value) == len(good)
    }
    return replace(event, **columns)
