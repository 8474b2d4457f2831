"""Opening a shard: the manifest's blocks, then the journal's tail. No clock is consulted.

Blocks are read in the order in which checkpoints wrote them, rows and deltas only, never payloads;
a later row of a message wins over an earlier one, and rows that are marked dead are passed over.
What then comes from the journal after the manifest's position is applied as it was when it
happened. What lies in the block store and is not named is left over from a checkpoint that never
finished, and is deleted, unless a later epoch wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fasti.core import capsule as capsules
from fasti.core.columns.index import HashIndex
from fasti.core.engine import Engine
from fasti.core.rows.arena import STATE_MASK
from fasti.core.rows.location import number_of, row_of
from fasti.errors import Corruption, Gone, IllegalTransition, NotFound
from fasti.model import State
from fasti.storage import log_blocks
from fasti.storage.blocks import BlockStore
from fasti.storage.event_codec import decode
from fasti.storage.frames import StoredFrame
from fasti.storage.journal import JournalReader
from fasti.storage.manifest import Manifest
from fasti.storage.runs import Block, Columns, epoch_in, rows_by_partition, rows_columns
from fasti.storage.seals import unseal
from fasti.storage.state_block import decode_state


def delete_leftovers(blocks: BlockStore, manifest: Manifest, epoch: int) -> None:
    """Removes objects that no manifest names, of this epoch and those before it.

    What a later epoch wrote is not this one's to judge: its manifest may name it.
    """
    named = manifest.names
    for name in blocks.list():
        if name not in named and epoch_in(name) <= epoch:
            blocks.delete(name)


def recover(engine: Engine, blocks: BlockStore, manifest: Manifest, version: int) -> None:
    """Brings a fresh engine to the manifest's position."""
    for _ in recover_in_pieces(engine, blocks, manifest, version):
        pass


def recover_in_pieces(
    engine: Engine, blocks: BlockStore, manifest: Manifest, version: int
) -> Iterator[None]:
    """The same with pauses, about one for each block, for a caller who has other things to do."""
    if not manifest.state_name:
        return
    capsule = decode_state(_get(blocks, manifest.state_name), manifest.state_name)
    capsules.restore(engine.state, capsule)
    dead = capsules.dead_rows(capsule)
    for block in manifest.blocks:
        if not block.delta:
            engine.memory.marks.add_block(block.number, block.rows, dead.get(block.number))
    listed = sorted(manifest.blocks, key=lambda block: (block.checkpoint, block.number))
    known = {block.number: block.rows for block in listed if not block.delta}
    for block in listed:
        _restore_rows(engine, block, read_rows(blocks, block), dead, known)
        yield
    yield from _restore_keys(engine, blocks, listed, dead)
    _restore_logs(engine, blocks, manifest)
    yield from _derive(engine, manifest, version)
    capsules.restore_leases(engine.state, capsule)


def _restore_logs(engine: Engine, blocks: BlockStore, manifest: Manifest) -> None:
    """Rows of logs are not read, but they must be there."""
    stored = set(blocks.list()) if manifest.logs else set()
    for block in manifest.logs:
        if block.name not in stored:
            raise missing_block(block.name)
    log_blocks.restore(engine, manifest.logs)


def replay(
    engine: Engine,
    journal: JournalReader,
    manifest: Manifest,
    seen: Callable[[StoredFrame], None] = lambda _: None,
) -> int:
    """Applies the journal's tail, and shows each frame; returns how many it had."""
    frames = 0
    for stored in tail(journal, manifest.position):
        replay_frame(engine, stored, manifest.seed)
        seen(stored)
        frames += 1
    return frames


def replay_frame(engine: Engine, stored: StoredFrame, seed: tuple[int, int]) -> None:
    """Applies one frame. Raises `Corruption` if it can't follow what was before it."""
    events, _ = decode(stored.body, seed)
    try:
        engine.replay(stored.sequence, events)
    except (AssertionError, IllegalTransition, IndexError, KeyError) as error:
        raise Corruption(
            f"frame {stored.sequence} contradicts what came before it: {error!r}",
            file="journal",
            offset=stored.sequence,
        ) from error


def tail(journal: JournalReader, position: int) -> Iterator[StoredFrame]:
    """The frames behind a position. Raises `Corruption` if the journal doesn't go on there."""
    try:
        return journal.replay(position)
    except (Gone, NotFound) as error:
        message = (
            f"the journal does not go on behind frame {position}, the blocks' last: {error.message}"
        )
        raise Corruption(message, file="journal", offset=position) from error


def read_rows(blocks: BlockStore, block: Block) -> Columns:
    """The rows of a run's block or of a delta. Raises `Corruption`."""
    return rows_columns(unseal(_get(blocks, block.rows_name), block.rows_name))


def _get(blocks: BlockStore, name: str) -> memoryview:
    try:
        return blocks.get(name)
    except NotFound as error:
        raise missing_block(name) from error


def missing_block(name: str) -> Corruption:
    """What to raise where an object that the manifest names is not there."""
    file = f"blocks/{name}"
    return Corruption(f"{file} is missing, though the manifest names it", file=file, offset=0)


def _restore_rows(
    engine: Engine,
    block: Block,
    columns: Columns,
    dead: dict[int, NDArray[np.uint8]],
    known: dict[int, int],
) -> None:
    alive = _alive(block, columns, dead, known)
    columns = {**columns, "flags": columns["state"].astype(np.uint8)}
    if block.delta:
        columns["flags"] = columns["flags"] | np.uint8(0x80)
    for (topic, partition), rows in rows_by_partition(columns, alive).items():
        known_topic = engine.state.topics.get(topic)
        if known_topic is not None:
            part = {name: values[rows] for name, values in columns.items()}
            known_topic.partitions[partition].restore_rows(part)


def _alive(
    block: Block,
    columns: Columns,
    dead: dict[int, NDArray[np.uint8]],
    known: dict[int, int],
) -> NDArray[np.bool_]:
    """Rows that still are a message's place. A delta's rows live and die with their payloads."""
    if not block.delta:
        return _unmarked(dead.get(block.number), np.arange(block.rows))
    numbers, rows = number_of(columns["location"]), row_of(columns["location"])
    alive = np.zeros(block.rows, dtype=np.bool_)
    for number in np.unique(numbers).tolist():
        if number in known:
            mine = np.flatnonzero(numbers == number)
            alive[mine] = _unmarked(dead.get(number), rows[mine])
    return alive


def _unmarked(bits: NDArray[np.uint8] | None, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    if bits is None:
        return np.ones(len(rows), dtype=np.bool_)
    marked = bits[rows >> 3] >> (rows & 7).astype(np.uint8) & np.uint8(1)
    return marked == 0


def _restore_keys(
    engine: Engine,
    blocks: BlockStore,
    listed: list[Block],
    dead: dict[int, NDArray[np.uint8]],
) -> Iterator[None]:
    """Keys of the living. A live message has one live row in runs, so no key comes twice."""
    runs = [block for block in listed if not block.delta]
    for topic in engine.state.topics.values():
        for partition in topic.partitions.made():
            expected = sum(
                block.rows
                for block in runs
                if block.first[:2] <= (topic.number, partition.number) <= block.last[:2]
            )
            partition.keys = HashIndex(partition.keeps_key, wide=True, expected=expected // 2)
    for block in runs:
        columns = rows_columns(unseal(blocks.get(block.rows_name), block.rows_name, verify=False))
        has_key = columns["hash_first"] != 0
        if not has_key.any():
            continue
        alive = has_key & _unmarked(dead.get(block.number), np.arange(block.rows))
        for (topic_number, number), rows in rows_by_partition(columns, alive).items():
            if topic_number not in engine.state.topics:
                continue
            partition = engine.state.topics[topic_number].partitions[number]
            sequences = columns["sequence"][rows]
            slots = partition.ledger.slots(sequences)
            states = partition.states(slots)
            # The row must be the message's own place: it may have been staged, or be dead.
            own = (states == State.SCHEDULED) | (states == State.LEASED)
            own &= partition.arena.location.take(slots) == columns["location"][rows]
            first, last = columns["hash_first"][rows][own], columns["hash_last"][rows][own]
            partition.keys.put(first, sequences[own], last, new=True)
        yield
    _restore_staged_keys(engine)


def _restore_staged_keys(engine: Engine) -> None:
    """Stages that are published but have not landed hold their keys already."""
    for stage in engine.state.publishing.values():
        if stage.skip:
            # Each row claims its key when it lands.
            continue
        for batch in stage.batches:
            partition = engine.state.topics[stage.topic].partitions[batch.partition]
            if batch.hashes is not None:
                ids = batch.sequences + (batch.partition << 51)
                holding = ~np.isin(ids, list(stage.skipped))
                partition.claim_keys(batch.hashes[holding], batch.sequences[holding])


def _derive(engine: Engine, manifest: Manifest, version: int) -> Iterator[None]:
    """Counts, forecasts and uses of names; and that everything in runs is yet to be loaded."""
    memory = engine.memory
    memory.epoch = manifest.checkpoint + 1
    engine.slices.version = version
    for topic in engine.state.topics.values():
        for partition in topic.partitions.made():
            partition.recount()
            partition.times.calendar.generation = memory.epoch
            partition.times.calendar.begin_at(engine.state.last_at_us)
            partition.times.loaded_until_us = 0
            for frame in partition.ledger.frames().tolist():
                rows = slice(frame << 12, (frame + 1) << 12)
                states = memory.arena.flags[rows] & STATE_MASK
                numbers = memory.arena.lease[rows]
                numbers = numbers[(numbers != 0) & (states != State.NONE)]
                for number, uses in zip(*np.unique(numbers, return_counts=True), strict=True):
                    memory.reasons.use(int(number), int(uses))
            yield
