"""Which rows of run blocks are dead: finished, or moved to a newer place.

A live message has exactly one live row in runs, or its place in the journal. When it leaves a
row, that row is marked, so that a restart doesn't bring it back; a block whose rows are all marked
can go, and one that is mostly marked is worth rewriting. One bit a row, kept per block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.core.rows.location import is_in_run, number_of, row_of

Int64s = NDArray[np.int64]

_GATHERED_MAX = 65_536


class Marks:
    """Dead rows per block number."""

    def __init__(self) -> None:
        self._dead: dict[int, NDArray[np.uint8]] = {}
        self._rows: dict[int, int] = {}
        self._gathered: list[Int64s] = []
        self._gathered_rows = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add_block(self, number: int, rows: int, dead: NDArray[np.uint8] | None = None) -> None:
        """A block is in force from now on; `dead` is its bitmap, one byte for eight rows."""
        self._rows[number] = rows
        self._dead[number] = np.zeros((rows + 7) // 8, dtype=np.uint8) if dead is None else dead

    def remove_block(self, number: int) -> None:
        """The block is gone."""
        self.settle()
        del self._rows[number], self._dead[number]

    def kill(self, locations: Int64s) -> None:
        """The messages left these places. Those in the journal need no mark."""
        locations = locations[is_in_run(locations)]
        if len(locations):
            self._gathered.append(locations)
            self._gathered_rows += len(locations)
            if self._gathered_rows >= _GATHERED_MAX:
                self.settle()

    def revive(self, locations: Int64s) -> None:
        """Takes `kill` back: the transaction was void."""
        self.settle()
        for number, rows in _by_block(locations[is_in_run(locations)]):
            bits = np.unpackbits(self._dead[number], bitorder="little")
            bits[rows] = 0
            self._dead[number] = np.packbits(bits, bitorder="little")

    def settle(self) -> None:
        """Sorts what was gathered into the bitmaps."""
        if not self._gathered:
            return
        gathered = np.concatenate(self._gathered)
        self._gathered.clear()
        self._gathered_rows = 0
        for number, rows in _by_block(gathered):
            bitmap = self._dead.get(number)
            if bitmap is not None:
                np.bitwise_or.at(bitmap, rows >> 3, np.uint8(1) << (rows & 7).astype(np.uint8))

    def blocks(self) -> list[int]:
        """The blocks in force."""
        return sorted(self._rows)

    def rows(self, number: int) -> int:
        """How many rows a block has."""
        return self._rows[number]

    def dead(self, number: int) -> int:
        """How many of them are dead."""
        self.settle()
        return int(np.bitwise_count(self._dead[number]).sum())

    def bitmaps(self) -> dict[int, NDArray[np.uint8]]:
        """A copy of every bitmap that has a dead row, for a checkpoint."""
        self.settle()
        return {number: bits.copy() for number, bits in self._dead.items() if bits.any()}


def _by_block(locations: Int64s) -> list[tuple[int, Int64s]]:
    if not len(locations):
        return []
    ordered = np.sort(locations)
    numbers = number_of(ordered)
    starts = np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])
    pieces = np.split(row_of(ordered), starts[1:])
    return list(zip(numbers[starts].tolist(), pieces, strict=True))
