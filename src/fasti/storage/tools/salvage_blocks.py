"""Going on without damaged blocks: what they held is given up, and reported.

A block of messages is left out as a whole when its rows or its payloads are damaged; if its rows can be
read the ids that are lost are known. In place of a block of a log there is one of empty rows, because
offsets have no holes. Without the state block, or with changes lost that a delta had, nothing else
could be relied on: that is beyond a repair.

Used by a repair only. One thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from fasti.core import capsule as capsules
from fasti.core.engine import Engine
from fasti.core.fields import HEADERS
from fasti.core.rows.arena import STATE_MASK
from fasti.core.rows.location import ROWS_MAX
from fasti.core.timeline.stages import Stage, StagedRows
from fasti.errors import FastiError
from fasti.model import State
from fasti.storage.blocks import BlockStore
from fasti.storage.log_blocks import LogBlock
from fasti.storage.log_rows import LOST_HEADER
from fasti.storage.manifest import Manifest
from fasti.storage.runs import Block, rows_by_partition, rows_columns
from fasti.storage.seals import seal, unseal
from fasti.storage.state_block import decode_state
from fasti.storage.tools.losses import Losses, LostRows

Lost = Callable[[tuple[int, int]], LostRows]


def is_repairable(manifest: Manifest, name: str) -> bool:
    """Whether a damaged object can be given up."""
    return name != manifest.state_name and not name.endswith(".delta")


def without_damaged(
    blocks: BlockStore,
    manifest: Manifest,
    epoch: int,
    damaged: set[str],
    lost: Lost,
    losses: Losses,
) -> Manifest:
    """The manifest of what is left; counts what is lost."""
    if not damaged:
        return manifest
    left = replace(manifest, blocks=[], logs=[])
    dead = capsules.dead_rows(decode_state(blocks.get(manifest.state_name), manifest.state_name))
    for block in manifest.blocks:
        if damaged.isdisjoint(block.names):
            left.blocks.append(block)
        else:
            _count_block(blocks, block, dead.get(block.number), lost, losses)
    for log_block in manifest.logs:
        if log_block.name in damaged:
            lost(log_block.place).add(log_block.first_offset, log_block.end - 1)
            log_block = _fill(blocks, log_block, left.next_block, epoch)
            left.next_block += 1
        left.logs.append(log_block)
    return left


def _count_block(
    blocks: BlockStore,
    block: Block,
    dead: np.ndarray[tuple[int], np.dtype[np.uint8]] | None,
    lost: Lost,
    losses: Losses,
) -> None:
    live = np.ones(block.rows, dtype=np.bool_)
    if dead is not None:
        live = np.unpackbits(dead, bitorder="little")[: block.rows] == 0
    try:
        columns = rows_columns(unseal(blocks.get(block.rows_name), block.rows_name))
    except FastiError:
        losses.note(
            f"block {block.number} is lost with {int(live.sum())} messages or entries, and which "
            "ids they had is not known"
        )
        return
    for place, rows in rows_by_partition(columns, live).items():
        lost(place).add_rows(columns["sequence"][rows])


def _fill(blocks: BlockStore, block: LogBlock, number: int, epoch: int) -> LogBlock:
    """A block of empty rows in place of one that is lost."""
    assert block.rows <= ROWS_MAX
    headers = pa.array([[(LOST_HEADER, "true")]] * block.rows, HEADERS)
    columns = {
        "payload": pa.array([b""] * block.rows, pa.binary()),
        "headers": headers,
        "created_us": pa.array(np.full(block.rows, block.first_us)),
    }
    buffers = seal(pa.RecordBatch.from_pydict(columns))
    size_bytes = sum(memoryview(buffer).nbytes for buffer in buffers)
    filler = replace(block, number=number, epoch=epoch, size_bytes=size_bytes)
    blocks.put(filler.name, buffers)
    return filler


def forget_missing(engine: Engine) -> None:
    """After recovery without some blocks: leases and stages of rows that are not there end."""
    memory, state = engine.memory, engine.state
    live = memory.leases.live()
    gone = np.zeros(len(live), dtype=np.bool_)
    for place, slot in enumerate(live.tolist()):
        topic = state.topics[int(memory.leases.topic[slot])]
        if topic.partitions:
            partition = topic.partitions[int(memory.leases.partition[slot])]
            row = partition.ledger.slot(int(memory.leases.sequence[slot]))
            state_of = int(partition.arena.flags[row] & STATE_MASK)
            gone[place] = state_of != State.LEASED or partition.arena.lease[row] != slot
    if gone.any():
        memory.consumers.unuse_all(memory.leases.consumer[live[gone]])
        memory.leases.close(live[gone])
    memory.arena.lease[0] = 0
    for name, stage in list(state.stages.items()):
        stage.batches = [part for batch in stage.batches for part in _present(engine, stage, batch)]
        if not stage.batches:
            state.close_stage(name)
            sink = state.sinks.all.get(stage.sink)
            if sink is not None:
                sink.left.discard(name)


def _present(engine: Engine, stage: Stage, batch: StagedRows) -> list[StagedRows]:
    """What is left of staged rows, in pieces that count up by one."""
    partition = engine.state.topics[stage.topic].partitions[batch.partition]
    here = partition.states(partition.ledger.slots(batch.sequences)) == State.STAGED
    if here.all():
        return [batch]
    rows = np.flatnonzero(here)
    pieces = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
    return [
        StagedRows(
            batch.partition,
            batch.sequences[piece],
            None if batch.hashes is None else batch.hashes[piece],
        )
        for piece in pieces
    ]
