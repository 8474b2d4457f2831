"""Slices of time out of runs: every entry comes exactly once, however small the pieces are."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fasti.core.agenda import FOREVER
from fasti.core.replies import LoadSlice
from fasti.model import State
from fasti.storage.memory.blocks import MemoryBlocks
from fasti.storage.runs import ROW_SCHEMA, Block, place_of, rows_batch
from fasti.storage.seals import seal
from fasti.storage.slices import load_slice

Row = tuple[int, int, int, int, int]  # topic, partition, due, sequence, state


def store(rows: list[Row], per_block: int, blocks: MemoryBlocks) -> list[Block]:
    """Writes sorted rows into blocks of so many."""
    rows = sorted(rows)
    listed = []
    for begin in range(0, len(rows), per_block):
        part = rows[begin : begin + per_block]
        columns: dict[str, Any] = {
            field.name: np.zeros(len(part), dtype=field.type.to_pandas_dtype())
            for field in ROW_SCHEMA
        }
        for place, name in enumerate(("topic", "partition", "due", "sequence", "state")):
            columns[name][:] = [row[place] for row in part]
        number = begin // per_block + 1
        ends = place_of(columns, 0), place_of(columns, -1)
        block = Block(number, 1, 1, len(part), 0, *ends, delta=number % 2 == 0)
        blocks.put(block.rows_name, seal(rows_batch(columns)))
        listed.append(block)
    return listed


def read_all(
    blocks: MemoryBlocks, listed: list[Block], place: tuple[int, int], count: int, span_us: int
) -> list[tuple[int, int]]:
    """Asks for one slice after another, as the engine does."""
    entries: list[tuple[int, int]] = []
    from_us = 0
    while from_us < FOREVER:
        wanted = LoadSlice(*place, 1, from_us, from_us + span_us, count)
        loaded = load_slice(blocks, listed, wanted)
        assert loaded.through_us > from_us, "no progress"
        due = loaded.due_us.tolist()
        assert all(from_us <= moment < loaded.through_us for moment in due)
        entries += zip(due, loaded.sequences.tolist(), strict=True)
        from_us = loaded.through_us
    return sorted(entries)


@pytest.mark.parametrize("seed", range(8))
def test_every_entry_comes_once(seed: int) -> None:
    rng = random.Random(seed)
    # Few moments, so that many rows are due at the same one.
    moments = rng.choice([1, 3, 40, 100_000])
    states = [State.SCHEDULED] * 4 + [State.LEASED, State.DEAD]
    rows = [
        (rng.randrange(1, 4), rng.randrange(2), rng.randrange(moments), n, rng.choice(states))
        for n in range(200)
    ]
    blocks = MemoryBlocks()
    listed = store(rows, rng.choice([7, 50, 500]), blocks)
    for count, span_us in ((1, 10), (3, 1000), (1000, FOREVER)):
        for place in ((1, 0), (1, 1), (2, 0), (3, 1)):
            expected = sorted(
                (due, sequence)
                for *where, due, sequence, state in rows
                if tuple(where) == place and state == State.SCHEDULED
            )
            assert read_all(blocks, listed, place, count, span_us) == expected


def test_a_partition_that_no_block_has_is_complete_at_once() -> None:
    blocks = MemoryBlocks()
    listed = store([(1, 0, 5, 1, State.SCHEDULED)], 10, blocks)
    loaded = load_slice(blocks, listed, LoadSlice(9, 0, 1, 0, 100, 10))
    assert (loaded.through_us, len(loaded.sequences)) == (FOREVER, 0)


def test_blocks_that_begin_behind_the_slice_are_not_read() -> None:
    rows = [(1, 0, due, due, State.SCHEDULED) for due in range(1000)]
    blocks = MemoryBlocks()
    listed = store(rows, 10, blocks)
    read: list[str] = []
    get = blocks.get
    blocks.get = lambda name, *rest: (read.append(name), get(name, *rest))[1]  # type: ignore[method-assign]
    for wanted in (LoadSlice(1, 0, 1, 200, 220, 1000), LoadSlice(1, 0, 1, 200, FOREVER, 15)):
        read.clear()
        loaded = load_slice(blocks, listed, wanted)
        assert len(read) <= 3
        assert loaded.due_us.tolist() == list(range(200, loaded.through_us))
        assert 215 <= loaded.through_us <= 220
