"""Where a payload lies: one int64 that the engine passes on and never looks into.

A location is a journal frame's sequence or a run block's number, and a row there. The sign-free
bit 62 tells them apart. 65,536 rows at most stand in a frame or block, so the row takes 16 bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROW_BITS = 16
ROWS_MAX = 1 << ROW_BITS
_ROW_MASK = ROWS_MAX - 1
IN_RUN = 1 << 62
_NUMBER_MASK = (1 << 46) - 1

Int64s = NDArray[np.int64]


def in_frame(sequence: int, rows: Int64s | int) -> Int64s:
    """Locations in a journal frame."""
    return np.asarray(sequence << ROW_BITS | rows, dtype=np.int64)


def in_block(number: int, rows: Int64s) -> Int64s:
    """Locations in a run's payload block."""
    return (IN_RUN | number << ROW_BITS) | rows


def is_in_run(locations: Int64s) -> NDArray[np.bool_]:
    """Which of these lie in runs (the others lie in the journal)."""
    return locations >= IN_RUN


def number_of(locations: Int64s) -> Int64s:
    """The frame sequence or block number."""
    return (locations >> ROW_BITS) & _NUMBER_MASK


def row_of(locations: Int64s) -> Int64s:
    """The row within the frame or block."""
    return locations & _ROW_MASK
