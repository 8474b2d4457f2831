"""Messages that nobody began in time: dead at their moment, with the reason `expired`.

Each partition that has such messages plans the moment at which the next of them may be over
(`Memory.plans`), in one heap for all; a step looks only at those whose moment has come, a
bounded number of messages at a time. What is leased at its moment may still be acked; if it comes
back instead, it is dead (`lapse_over`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.core import events as ev
from fasti.core.timeline.partition import Partition
from fasti.core.work import Work

Int64s = NDArray[np.int64]

EXPIRED = "expired"
_LAPSED_PER_STEP = 5_000
# What a look costs that finds nobody: it may go through as many stale entries as a slice has.
_LOOK_COST = 500


def lapse(work: Work) -> bool:
    """What is over now dies; True if there is more."""
    plans, budget = work.state.memory.plans, _LAPSED_PER_STEP
    while budget > 0:
        place = plans.pop(work.now_us)
        if place is None:
            return False
        partition = work.state.topics[place[0]].partitions[place[1]]
        sequences = partition.times.need_expiries().pull(work.now_us, budget)
        budget -= max(_LOOK_COST, len(sequences))
        if len(sequences):
            _emit(work, partition, sequences)
    return plans.next_us() <= work.now_us


def lapse_over(work: Work, partition: Partition, sequences: Int64s, slots: Int64s) -> Int64s | None:
    """Of messages that come back, those whose moment is over die; which of them don't.

    None: all of them come back, which is usual and costs nothing to find out.
    """
    expiries = partition.times.expiries
    if expiries is None:
        return None
    over = expiries.is_over(slots, work.now_us)
    if not over.any():
        return None
    _emit(work, partition, sequences[over])
    return np.flatnonzero(~over)


def _emit(work: Work, partition: Partition, sequences: Int64s) -> None:
    where = (work.now_us, partition.topic, partition.number)
    work.emit(ev.Lapsed(*where, EXPIRED, sequences))
