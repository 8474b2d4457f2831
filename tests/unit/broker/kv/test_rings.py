"""What a ring of a key-value topic's changes holds on to."""

from __future__ import annotations

import threading

import numpy as np

from fasti.broker.kv.rings import MOMENTS_MAX, Ring
from fasti.core.keys import Rows
from fasti.core.kv.events import Removed


def test_small_changes_are_bounded_by_their_number() -> None:
    """Each holds on to kilobytes, though its batch says that it has a few bytes."""
    ring = Ring(1, threading.Condition())
    ring.begin(0)
    nothing = np.zeros(1, dtype=np.int64)
    batch = Rows.of([b""]).batch
    for position in range(1, MOMENTS_MAX + 11):
        removed = Removed(0, 1, 0, 0, nothing, nothing)
        ring.add([(removed, batch)], position)
    assert ring.base == 10
    assert ring.after(9) is None
    found = ring.after(10)
    assert found is not None
    assert (len(found[0]), found[1]) == (MOMENTS_MAX, MOMENTS_MAX + 10)
