"""Reductions of columns that are as quick on one row as they are on thousands, and sorting pairs.

Most commands carry a handful of rows, and then numpy's own `min`, `all` or `flatnonzero` spend ten
times longer on being called than on their work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Integers = NDArray[np.integer[Any]]

# Up to here a Python list is faster.
_SHORT = 16


def lowest(values: Integers) -> int:
    """The smallest value of a column that has some."""
    if len(values) <= _SHORT:
        return int(min(values.tolist()))
    return int(values.min())


def highest(values: Integers) -> int:
    """The greatest value of a column that has some."""
    if len(values) <= _SHORT:
        return int(max(values.tolist()))
    return int(values.max())


def every(mask: Bools) -> bool:
    """Whether it holds for all rows (of none, too)."""
    return int(np.count_nonzero(mask)) == len(mask)


def some(values: Bools | Integers) -> bool:
    """Whether it holds for a row, or a value is not zero."""
    return int(np.count_nonzero(values)) > 0


def rows_where(mask: Bools) -> NDArray[np.intp]:
    """The rows for which it holds, in order."""
    return mask.nonzero()[0]


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values in order, each once. numpy's `unique` hashes them, which takes far longer."""
    ordered = np.sort(values)
    if len(ordered) < 2:
        return ordered
    first = np.empty(len(ordered), dtype=np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


Int64s = NDArray[np.int64]


def sort_pairs(due: Int64s, sequence: Int64s, of_runs: bool = False) -> tuple[Int64s, Int64s]:
    """Sorted by due, then sequence, the order of handing out; an equal pair stands once.

    Both are packed into one number where their ranges allow it, which they nearly always do: numpy
    sorts plain numbers several times faster than it sorts by two keys.

    `of_runs` tells that the input is a few sorted runs one after another: numpy's stable sort
    finds them and only merges, which is more than ten times faster than sorting them.
    """
    if len(due) < 2:
        return due, sequence
    due_low, sequence_low = int(due.min()), int(sequence.min())
    sequence_bits = (int(sequence.max()) - sequence_low).bit_length()
    due_bits = (int(due.max()) - due_low).bit_length()
    if due_bits + sequence_bits <= 62:
        # In place: large columns come from the kernel page by page, each time.
        packed = due - due_low
        packed <<= sequence_bits
        packed += sequence
        packed -= sequence_low
        packed.sort(kind="stable" if of_runs else "quicksort")
        first = _first_of_equals(packed)
        if not every(first):
            packed = packed[first]
        ordered = packed >> sequence_bits
        ordered += due_low
        packed &= (1 << sequence_bits) - 1
        packed += sequence_low
        return ordered, packed
    # Too wide for one number. Rows that are due together nearly always stand by sequence already.
    order = np.argsort(due, kind="stable")
    ordered, its = due.take(order), sequence.take(order)
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
