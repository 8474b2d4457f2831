"""Reductions of columns that are as quick on one row as they are on thousands.

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
