"""Rows in groups, each in an order: what was before a row, what is first, last, and in sum.

The building block of `silver`: numpy over whole columns, no loop over rows. Places are those of the
groups' order; `take` and `gathered` get columns in the rows' own order there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of whole numbers, and which of them are there; the others are 0."""

    values: Ints
    known: Mask


class RowGroups:
    """Rows of the same name together, in the order of a third number."""

    def __init__(self, order: Ints, first: Mask) -> None:
        self._order = order
        self.starts: Ints = np.flatnonzero(first)
        self.count = len(self.starts)
        self.ends: Ints = np.append(self.starts[1:], len(order))
        self._group: Ints = np.cumsum(first) - 1

    @classmethod
    def of(cls, outer: Ints, inner: Ints, place: Ints) -> RowGroups:
        """Groups by two numbers."""
        order = np.lexsort((place, inner, outer))
        outer, inner = outer[order], inner[order]
        first = np.ones(len(order), dtype=np.bool_)
        first[1:] = (outer[1:] != outer[:-1]) | (inner[1:] != inner[:-1])
        return cls(order, first)

    def group_of_rows(self) -> Ints:
        """The group of each row, in the rows' own order."""
        groups = np.empty(len(self._order), dtype=np.int64)
        groups[self._order] = self._group
        return groups

    # Columns in the groups' order

    def numbers(self, column: Any) -> Numbers:
        """Of whole numbers or moments."""
        known = self.known(column)
        values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()[self._order]
        return Numbers(values, known)

    def mask(self, column: Any) -> Mask:
        """Of truths; unknown is false."""
        mask: Mask = pc.fill_null(column, False).to_numpy()[self._order]
        return mask

    def known(self, column: Any) -> Mask:
        """Where there is a value."""
        if not column.null_count:
            return np.ones(len(self._order), dtype=np.bool_)
        known: Mask = pc.is_valid(column).to_numpy()[self._order]
        return known

    # Questions

    def before(self, numbers: Numbers) -> Numbers:
        """For each row the last number that is there before it, in its group."""
        places = np.where(numbers.known, np.arange(len(numbers.known)), -1)
        last = np.empty_like(places)
        last[:1] = -1
        np.maximum.accumulate(places[:-1], out=last[1:])
        known = last >= self.starts[self._group]
        return Numbers(np.where(known, numbers.values[last], 0), known)

    def first(self, mask: Mask) -> Ints:
        """Where the first row is that the mask has, by group; -1: nowhere."""
        places = np.flatnonzero(mask)[::-1]
        return self._placed(places)

    def last(self, mask: Mask) -> Ints:
        """Where the last one is."""
        return self._placed(np.flatnonzero(mask))

    def _placed(self, places: Ints) -> Ints:
        # Of several for one group the one that is written last stays.
        by_group = np.full(self.count, -1, dtype=np.int64)
        by_group[self._group[places]] = places
        return by_group

    def sum(self, values: Ints) -> Ints:
        sums: Ints = np.add.reduceat(values, self.starts)
        return sums

    def any(self, mask: Mask) -> Mask:
        result: Mask = np.logical_or.reduceat(mask, self.starts)
        return result

    # Answers

    def take(self, column: Any, places: Ints) -> Any:
        """A column's values at these places, null at -1."""
        rows = pa.array(self._order[places], mask=places < 0)
        taken = column.take(rows)
        return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken

    def gathered(self, numbers: Numbers, places: Ints) -> pa.Array:
        """Numbers at these places, null at -1 and where there is none."""
        missing = (places < 0) | ~numbers.known[places]
        return pa.array(numbers.values[places], mask=missing)
