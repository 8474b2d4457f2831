"""Sorting by (due, sequence), the order in which messages are handed out.

Both are packed into one 64-bit number where their ranges allow it, which they nearly always do:
numpy sorts plain numbers several times faster than it sorts by two keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


def sort_pairs(due: Int64s, sequence: Int64s, of_runs: bool = False) -> tuple[Int64s, Int64s]:
    """Sorted by due, then sequence; an equal pair stands once.

    `of_runs` tells that the input is a few sorted runs one after another: numpy's stable sort
    finds them and only merges, which is more than ten times faster than sorting them.
    """
    if len(due) < 2:
        return due, sequence
    due_low, sequence_low = int(due.min()), int(sequence.min())
    sequence_bits = (int(sequence.max()) - sequence_low).bit_length()
    due_bits = (int(due.max()) - due_low).bit_length()
    if due_bits + sequence_bits <= 62:
        packed = (due - due_low) << sequence_bits | (sequence - sequence_low)
        packed.sort(kind="stable" if of_runs else "quicksort")
        packed = packed[_first_of_equals(packed)]
        return (packed >> sequence_bits) + due_low, (
            packed & ((1 << sequence_bits) - 1)
        ) + sequence_low
    # Too wide for one number. Rows that are due together nearly always stand by sequence already.
    order = np.argsort(due, kind="stable")
    ordered, its = due[order], sequence[order]
    ties = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(ties):
        return ordered, its
    if (its[ties + 1] < its[ties]).any():
        order = np.lexsort((sequence, due))
        ordered, its = due[order], sequence[order]
    first = _first_of_equals(ordered) | _first_of_equals(its)
    return ordered[first], its[first]


def _first_of_equals(values: Int64s) -> NDArray[np.bool_]:
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first
