"""Checkpoints: what the journal's tail brought goes into a new run, and a new manifest says so.

A checkpoint begins in the engine (core/checkpoint.py), which takes a snapshot and closes an
epoch. `write` then works beside the traffic, at a byte rate: the rows whose payloads lie in the
journal go into a new run, together with those of older blocks that are worth rewriting (more than
half dead, or one small run of too many: that is all that compaction is); rows that changed but
whose payloads stay go into delta blocks; rows of logs go into log blocks (log_blocks.py);
the rest of the state goes into one block. When all of it
is durable and so is the journal up to the snapshot, the manifest is switched. Last, the engine
learns the new places (`inputs`), and what is no longer named can be deleted.

A checkpoint that fails leaves nothing behind, and the next one also takes what it would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core.capsule import dead_rows
from fasti.core.checkpoint import BlocksAdded, Plan
from fasti.core.columns.hashing import hash_keys
from fasti.core.commands import RowsInstalled, RunsInstalled
from fasti.core.engine import Engine
from fasti.core.log.commands import LogsInstalled
from fasti.core.rows.arena import CHANGED, EXPIRES, STATE_MASK
from fasti.core.rows.location import in_block, is_in_run, number_of
from fasti.core.timeline.corrupt import GiveUp
from fasti.core.traits import KINDS
from fasti.errors import FastiError
from fasti.model import SEQUENCE_BITS, State
from fasti.storage.blocks import BlockStore
from fasti.storage.log_blocks import LogWriter
from fasti.storage.manifest import Manifest
from fasti.storage.payloads import Payloads
from fasti.storage.runs import (
    BLOCK_BYTES_MAX,
    BLOCK_ROWS_MAX,
    Block,
    Columns,
    object_name,
    place_of,
    rows_batch,
    rows_by_partition,
    used_columns,
)
from fasti.storage.seals import seal
from fasti.storage.state_block import encode_state

Int64s = NDArray[np.int64]

_RUNS_MAX = 12
_REWRITTEN_BYTES_MAX = 512 << 20
_DELTA_ROWS_MIN = 65_536
_DELTA_RUNS_MAX = 12
# Rows that are sorted and written at a time: this bounds the memory of a checkpoint.
_PIECE_ROWS = 1 << 20
_KEPT = ("sequence", "due", "location", "version", "owner", "attempts", "priority")


@dataclass(slots=True)
class LostPayloads:
    """Messages of one partition whose payloads are lost."""

    topic: int
    partition: int
    sequences: Int64s
    locations: Int64s


@dataclass(slots=True)
class Written:
    """A checkpoint whose blocks are durable."""

    manifest: Manifest
    new_blocks: list[Block] = field(default_factory=list)
    installs: list[RowsInstalled] = field(default_factory=list)
    log_installs: list[LogsInstalled] = field(default_factory=list)
    # Where runs may hold something from: anywhere, in every partition of the snapshot.
    first_due_us: dict[tuple[int, int], int] = field(default_factory=dict)
    written_bytes: int = 0
    # What retention of logs had dropped, and is given back now.
    trimmed_bytes: int = 0
    # Messages of the new blocks whose payload could not be read, and where that is told now.
    lost: list[LostPayloads] = field(default_factory=list)

    def inputs(self) -> list[BlocksAdded | RowsInstalled | LogsInstalled]:
        """What the engine is told, in this order, before `finished`."""
        blocks = [(block.number, block.rows) for block in self.new_blocks if not block.delta]
        return [BlocksAdded(blocks, self.trimmed_bytes), *self.installs, *self.log_installs]

    def losses(self, engine: Engine) -> list[GiveUp]:
        """What the engine is told of messages that have no payload any more, after `inputs`."""
        return [
            GiveUp(topic.name, rows.sequences | rows.partition << SEQUENCE_BITS, rows.locations)
            for rows in self.lost
            if (topic := engine.state.topics.get(rows.topic)) is not None
            and GiveUp in topic.kind.handlers()
        ]

    def finished(self, version: int) -> RunsInstalled:
        """The input that completes the checkpoint, once the manifest has its version."""
        runs = frozenset(block.number for block in self.manifest.blocks if not block.delta)
        return RunsInstalled(version, self.manifest.checkpoint, self.first_due_us, runs)


class CheckpointWriter:
    """Writes one checkpoint, in the epoch of an opening. `pace(bytes)` is called after each object and
    may wait.
    """

    def __init__(
        self,
        blocks: BlockStore,
        payloads: Payloads,
        manifest: Manifest,
        plan: Plan,
        pace: Callable[[int], None],
        epoch: int,
    ) -> None:
        self._blocks, self._payloads, self._pace = blocks, payloads, pace
        self._plan = plan
        # In the names of its blocks.
        self._epoch = epoch
        self._seed = manifest.seed
        self._old = manifest
        self._next_block = manifest.next_block
        self._dead = dead_rows(plan.capsule)
        self._unwritten = np.array([e & 0xFF for e in plan.unwritten], dtype=np.uint8)
        self._put: list[str] = []
        self._written = Written(
            replace(
                manifest,
                position=plan.snapshot.position,
                checkpoint=plan.epoch,
                blocks=[],
                logs=[],
            ),
            trimmed_bytes=plan.trimmed_bytes,
        )

    @property
    def next_block(self) -> int:
        """The first number that this checkpoint has not used."""
        return self._next_block

    def write(self) -> Written:
        """Everything up to, not including, the switch of the manifest."""
        try:
            return self._write()
        except BaseException:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Removes what was written: it will not be used."""
        for name in self._put:
            # What can't be deleted now is when the directory is opened the next time.
            with suppress(FastiError):
                self._blocks.delete(name)
        self._put.clear()

    def _write(self) -> Written:
        staying = [b for b in self._old.blocks if b.delta or self._live(b) > 0]
        victims = choose_victims([b for b in staying if not b.delta], self._live)
        # A damaged block stays until its last row is gone: a copy of it may turn up.
        victims = [b for b in victims if not self._payloads.is_damaged(b.number)]
        # Metadata is in memory too: what a scrub found damaged is written anew.
        victims += [b for b in staying if self._lost_rows(b) and not b.delta and b not in victims]
        numbers = np.array(sorted(b.number for b in victims), dtype=np.int64)
        all_changed = self._deltas_are_stale(staying, numbers)
        all_changed |= any(b.delta and self._lost_rows(b) for b in staying)
        if all_changed:
            # Most of the old delta rows are out of date: write the valid ones together.
            staying = [b for b in staying if not b.delta]
        manifest = self._written.manifest
        manifest.blocks = [b for b in staying if b not in victims]
        self._written.first_due_us = dict.fromkeys(self._plan.snapshot.ledgers, 0)
        for moving, rows in self._pieces(numbers, all_changed):
            if moving:
                self._write_run(rows)
            else:
                self._write_delta(rows)
        manifest.blocks += self._written.new_blocks
        self._write_logs()
        manifest.state_name = object_name(self._epoch, self._take_number(), "state")
        self._store(manifest.state_name, encode_state(self._plan.capsule))
        manifest.next_block = self._next_block
        return self._written

    def _write_logs(self) -> None:
        writer = LogWriter(self._payloads, self._epoch, self._take_number, self._store)
        logs = writer.write(self._old.logs, self._plan.capsule, self._plan.logs)
        self._written.manifest.logs = logs.blocks
        self._written.log_installs = logs.installs

    def _lost_rows(self, block: Block) -> bool:
        return f"blocks/{block.rows_name}" in self._payloads.damages

    def _live(self, block: Block) -> int:
        dead = self._dead.get(block.number)
        return block.rows - (0 if dead is None else int(np.bitwise_count(dead).sum()))

    def _moving(self, columns: Columns, victims: Int64s) -> NDArray[np.bool_]:
        """Rows that go into the new run."""
        moving = ~is_in_run(columns["location"])
        if len(victims):
            # Frame sequences and block numbers overlap: only those in runs can be a victim's.
            moving |= ~moving & np.isin(number_of(columns["location"]), victims)
        return moving

    def _deltas_are_stale(self, blocks: list[Block], victims: Int64s) -> bool:
        """Whether deltas are too many, or hold more than twice the rows that they need to."""
        listed = sum(block.rows for block in blocks if block.delta)
        if not listed:
            return False
        if len({block.checkpoint for block in blocks if block.delta}) >= _DELTA_RUNS_MAX:
            return True
        changed = new = 0
        for place in self._plan.snapshot.ledgers:
            for columns in self._plan.snapshot.rows(*place):
                unmoved = ~self._moving(columns, victims)
                changed += int(np.count_nonzero(columns["flags"][unmoved] & CHANGED))
                new += int(np.count_nonzero(np.isin(columns["epoch"][unmoved], self._unwritten)))
        return not changed or listed + new > 2 * changed + _DELTA_ROWS_MIN

    def _pieces(self, victims: Int64s, all_changed: bool) -> Iterator[tuple[bool, Columns]]:
        """Sorted rows for the run (True) and for deltas (False), about a million at a time."""
        waiting: dict[bool, list[Columns]] = {True: [], False: []}
        for topic, partition in sorted(self._plan.snapshot.ledgers):
            for columns in self._plan.snapshot.rows(topic, partition, last=True):
                moving = self._moving(columns, victims)
                changed = ~moving
                if all_changed:
                    changed &= columns["flags"] & CHANGED != 0
                else:
                    changed &= np.isin(columns["epoch"], self._unwritten)
                for kind, rows in ((True, moving), (False, changed)):
                    if rows.any():
                        waiting[kind].append(self._select(columns, rows, topic, partition))
                        if _count_rows(waiting[kind]) >= _PIECE_ROWS:
                            yield kind, _sorted(waiting[kind])
                            waiting[kind] = []
        for kind, parts in waiting.items():
            if parts:
                yield kind, _sorted(parts)

    def _select(
        self, columns: Columns, rows: NDArray[np.bool_], topic: int, partition: int
    ) -> Columns:
        selected = {name: columns[name][rows] for name in _KEPT}
        selected["state"] = columns["flags"][rows] & STATE_MASK
        # What a lease's slot is called means nothing after a restart; a reason does.
        leased, dead = selected["state"] == State.LEASED, selected["state"] == State.DEAD
        selected["lease"] = np.where(leased, 0, columns["lease"][rows]).astype(np.uint32)
        has_moment = dead | (columns["flags"][rows] & EXPIRES != 0)
        selected["moment"] = np.where(has_moment, columns["moment"][rows], 0)
        if not KINDS[self._plan.snapshot.topics[topic][1].kind].has_priorities:
            # It was never written.
            selected["priority"] = np.zeros(len(dead), dtype=np.uint16)
        selected["topic"] = np.full(len(dead), topic, dtype=np.int32)
        selected["partition"] = np.full(len(dead), partition, dtype=np.int32)
        return selected

    def _write_run(self, rows: Columns) -> None:
        """Blocks of sorted rows, each with its payloads."""
        for begin in range(0, len(rows["sequence"]), BLOCK_ROWS_MAX):
            part = {name: values[begin : begin + BLOCK_ROWS_MAX] for name, values in rows.items()}
            # Sizes first: among small rows there may be some that are a million times as large.
            ends = np.cumsum(self._payloads.sizes(part["location"]))
            start = 0
            while start < len(ends):
                limit = BLOCK_BYTES_MAX + (int(ends[start - 1]) if start else 0)
                end = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
                piece = {name: values[start:end] for name, values in part.items()}
                batch = self._payloads.gather(piece["location"], lost=True)
                self._write_block(piece, batch)
                start = end

    def _write_block(self, columns: Columns, batch: pa.RecordBatch) -> None:
        number = self._take_number()
        places = in_block(number, np.arange(batch.num_rows, dtype=np.int64))
        hashes = hash_keys(batch.column("key"), self._seed)
        self._note_installs(columns, places)
        self._note_lost(columns, batch.column("payload"), places)
        columns = {
            **columns,
            "location": places,
            "hash_first": hashes[:, 0],
            "hash_last": hashes[:, 1],
        }
        payloads = used_columns(batch)
        self._note_block(number, columns, [("payloads", payloads), ("rows", rows_batch(columns))])

    def _note_installs(self, columns: Columns, places: Int64s) -> None:
        pairs = columns["topic"].astype(np.int64) << 32 | columns["partition"]
        bounds = [0, *(np.flatnonzero(pairs[1:] != pairs[:-1]) + 1).tolist(), len(pairs)]
        for begin, end in pairwise(bounds):
            topic, partition, _ = place_of(columns, begin)
            self._written.installs.append(
                RowsInstalled(
                    topic,
                    partition,
                    self._plan.epoch,
                    columns["sequence"][begin:end],
                    columns["location"][begin:end],
                    places[begin:end],
                )
            )

    def _note_lost(self, columns: Columns, payloads: pa.Array, places: Int64s) -> None:
        """Rows of damaged frames are written without their payloads, which no reader then gets."""
        if not payloads.null_count:
            return
        lost = payloads.is_null().to_numpy(zero_copy_only=False)
        for place, rows in rows_by_partition(columns, lost).items():
            sequences = columns["sequence"][rows]
            self._written.lost.append(LostPayloads(*place, sequences, places[rows]))

    def _write_delta(self, rows: Columns) -> None:
        none = np.zeros(len(rows["sequence"]), dtype=np.uint64)
        rows = {**rows, "hash_first": none, "hash_last": none}
        for begin in range(0, len(none), BLOCK_ROWS_MAX):
            part = {name: values[begin : begin + BLOCK_ROWS_MAX] for name, values in rows.items()}
            self._note_block(self._take_number(), part, [("delta", rows_batch(part))])

    def _note_block(
        self, number: int, columns: Columns, objects: list[tuple[str, pa.RecordBatch]]
    ) -> None:
        size = sum(
            self._store(object_name(self._epoch, number, kind), seal(batch))
            for kind, batch in objects
        )
        block = Block(
            number,
            self._epoch,
            self._plan.epoch,
            len(columns["sequence"]),
            size,
            place_of(columns, 0),
            place_of(columns, -1),
            delta=len(objects) == 1,
        )
        self._written.new_blocks.append(block)

    def _store(self, name: str, buffers: list[Any]) -> int:
        self._blocks.put(name, buffers)
        self._put.append(name)
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._written.written_bytes += size
        self._pace(size)
        return size

    def _take_number(self) -> int:
        self._next_block += 1
        return self._next_block - 1


def choose_victims(runs: list[Block], live: Callable[[Block], int]) -> list[Block]:
    """Blocks worth writing again: mostly dead ones, and the smallest runs when they are many."""
    victims = [block for block in runs if live(block) * 2 <= block.rows]
    by_run: dict[int, list[Block]] = {}
    for block in runs:
        by_run.setdefault(block.checkpoint, []).append(block)
    if len(by_run) > _RUNS_MAX:
        sizes = {run: sum(b.size_bytes for b in members) for run, members in by_run.items()}
        for run in sorted(by_run, key=sizes.__getitem__)[: _RUNS_MAX // 2]:
            victims += [block for block in by_run[run] if block not in victims]
    total = 0
    chosen: list[Block] = []
    for block in victims:
        total += block.size_bytes
        if total > _REWRITTEN_BYTES_MAX and chosen:
            break
        chosen.append(block)
    return chosen


def _sorted(parts: list[Columns]) -> Columns:
    """By (topic, partition, due, sequence)."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    keys = [joined["sequence"], joined["due"]]
    if joined["topic"][0] != joined["topic"][-1] or joined["partition"].any():
        keys += [joined["partition"], joined["topic"]]
    order = np.lexsort(keys)
    return {name: values[order] for name, values in joined.items()}


def _count_rows(parts: list[Columns]) -> int:
    return sum(len(part["sequence"]) for part in parts)
