"""Reading the time index back from runs: which messages fall due in a range of time.

Runs and deltas are sorted by due within a partition, so a range is a binary search in each block
that may have some of it. What comes back may be out of date (moved, cancelled, leased since); the
engine drops such entries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fasti.core.agenda import FOREVER
from fasti.core.commands import SliceLoaded
from fasti.core.replies import LoadSlice
from fasti.model import State
from fasti.storage.blocks import BlockStore
from fasti.storage.runs import Block, Columns, rows_columns
from fasti.storage.seals import unseal

Int64s = NDArray[np.int64]


def load_slice(blocks: BlockStore, listed: list[Block], wanted: LoadSlice) -> SliceLoaded:
    """About `wanted.count` entries from `wanted.from_us` on, in due order, and how far they go.

    Blocks are read in the order of their first entries, and only as far as there is something to find:
    with a hundred million pending a slice lies in a few blocks of some thousand.
    """
    found_due: list[Int64s] = []
    found_sequence: list[Int64s] = []
    next_us, until_us, rows = FOREVER, wanted.to_us, 0
    near = [block for block in listed if _may_have(block, wanted)]
    for block in sorted(near, key=lambda block: _begins_us(block, wanted)):
        if _begins_us(block, wanted) >= until_us:
            # So do all that follow.
            next_us = min(next_us, _begins_us(block, wanted))
            break
        data = blocks.get(block.rows_name)
        columns = rows_columns(unseal(data, block.rows_name, verify=False))
        begin, end = _rows_of(columns, block, wanted)
        due = columns["due"][begin:end]
        low, high = np.searchsorted(due, [wanted.from_us, wanted.to_us]).tolist()
        high = min(high, _end_of_piece(due, low, wanted.count))
        if high < len(due):
            next_us = min(next_us, int(due[high]))
        scheduled = columns["state"][begin + low : begin + high] == State.SCHEDULED
        found_due.append(due[low:high][scheduled])
        found_sequence.append(columns["sequence"][begin + low : begin + high][scheduled])
        rows += len(found_due[-1])
        if rows > wanted.count:
            # What lies beyond so many is cut off.
            until_us = min(until_us, _nth(found_due, wanted.count) + 1)
    return _cut(wanted, found_due, found_sequence, next_us)


def _begins_us(block: Block, wanted: LoadSlice) -> int:
    """No row of the partition that the block has is due before this."""
    first = block.first
    return first[2] if first[:2] == (wanted.topic, wanted.partition) else 0


def _nth(dues: list[Int64s], count: int) -> int:
    due = np.concatenate(dues)
    return int(np.partition(due, count)[count])


def _end_of_piece(due: Int64s, low: int, count: int) -> int:
    """About `count` rows further, but never between rows that are due at the same moment."""
    if low + count >= len(due):
        return len(due)
    high = int(np.searchsorted(due, due[low + count], side="left"))
    return high if high > low else int(np.searchsorted(due, due[low], side="right"))


def _cut(
    wanted: LoadSlice, dues: list[Int64s], sequences: list[Int64s], next_us: int
) -> SliceLoaded:
    due = np.concatenate([*dues, np.zeros(0, dtype=np.int64)])
    sequence = np.concatenate([*sequences, np.zeros(0, dtype=np.int64)])
    # Blocks hold rows at `next_us` that were not read: the answer ends before them.
    through_us = next_us
    if len(due) > wanted.count:
        # Cut, but not so short that it would be no progress at all.
        nth = _nth([due], wanted.count)
        through_us = min(through_us, max(nth, int(due.min()) + 1))
    within = due < through_us
    return SliceLoaded(
        wanted.topic,
        wanted.partition,
        wanted.version,
        through_us,
        sequence[within],
        due[within],
    )


def _may_have(block: Block, wanted: LoadSlice) -> bool:
    place = (wanted.topic, wanted.partition)
    return block.first[:2] <= place <= block.last[:2] and (
        (*place, wanted.from_us) <= block.last or block.last[:2] > place
    )


def _rows_of(columns: Columns, block: Block, wanted: LoadSlice) -> tuple[int, int]:
    """The rows of the partition within a block."""
    if block.first[:2] == block.last[:2]:
        return 0, block.rows
    begin, end = np.searchsorted(columns["topic"], [wanted.topic, wanted.topic + 1]).tolist()
    partitions = columns["partition"][begin:end]
    low, high = np.searchsorted(partitions, [wanted.partition, wanted.partition + 1]).tolist()
    return begin + low, begin + high
