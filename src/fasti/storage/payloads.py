"""Payloads by location: from frames still in memory, from the journal, or from run blocks.

Threads: `gather` from any thread, also while the committer appends and a checkpoint installs.
`keep` is the sequencer's. What was decoded lately is cached, a bounded number of batches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.core.keys import Rows
from fasti.core.location import is_in_run, number_of, row_of
from fasti.storage.blocks import BlockStore
from fasti.storage.event_codec import decode_rows
from fasti.storage.journal import Journal
from fasti.storage.runs import PAYLOAD_SCHEMA, unseal

Int64s = NDArray[np.int64]

_CACHED_BATCHES = 4096


class Payloads:
    """Reads payload rows."""

    def __init__(self, journal: Journal, blocks: BlockStore, kept_bytes: int = 32 << 20) -> None:
        self._journal, self._blocks = journal, blocks
        self._kept: OrderedDict[int, tuple[Rows, int]] = OrderedDict()
        self._kept_bytes, self._kept_bytes_max = 0, kept_bytes
        self._cache: OrderedDict[tuple[bool, int], pa.RecordBatch] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, frame: int, rows: Rows, at_us: int) -> None:
        """A frame that is on its way to the journal, and may be asked for before it is there."""
        with self._lock:
            self._kept[frame] = (rows, at_us)
            self._kept_bytes += rows.batch.nbytes
            written = self._journal.last_sequence
            while self._kept_bytes > self._kept_bytes_max:
                oldest = next(iter(self._kept))
                if oldest > written:
                    return
                self._kept_bytes -= self._kept.pop(oldest)[0].batch.nbytes

    def gather(self, locations: Int64s) -> pa.RecordBatch:
        """The payload rows at these places, in this order, with every column of the schema."""
        if not len(locations):
            return _empty()
        order = np.argsort(locations, kind="stable")
        ordered = locations[order]
        numbers, rows, in_run = number_of(ordered), row_of(ordered), is_in_run(ordered)
        starts = np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])
        if (in_run[1:] != in_run[:-1]).any():
            starts = np.union1d(starts, np.flatnonzero(in_run[1:] != in_run[:-1]) + 1)
        parts = []
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(ordered)], strict=True):
            batch = self._batch(bool(in_run[start]), int(numbers[start]))
            parts.append(batch.take(pa.array(rows[start:end])))
        if len(parts) == 1:
            whole = parts[0]
        else:
            whole = pa.concat_batches(parts)
        if (order[1:] > order[:-1]).all():
            return whole
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return whole.take(pa.array(back))

    def forget(self, in_run: bool, wanted: Callable[[int], bool]) -> None:
        """Drops cached batches whose frame or block is not wanted any more."""
        with self._lock:
            for key in [k for k in self._cache if k[0] == in_run and not wanted(k[1])]:
                del self._cache[key]

    def _batch(self, in_run: bool, number: int) -> pa.RecordBatch:
        with self._lock:
            found = self._cache.get((in_run, number))
            if found is not None:
                self._cache.move_to_end((in_run, number))
                return found
            kept = None if in_run else self._kept.get(number)
        if in_run:
            name = f"{number:012d}.payloads"
            batch = unseal(self._blocks.get(name), name, verify=False)
        elif kept is not None:
            return _complete(kept[0].batch, kept[1])
        else:
            rows, at_us = decode_rows(self._journal.body(number))
            assert rows is not None, "a location names a frame with payloads"
            batch = _complete(rows.batch, at_us)
        with self._lock:
            self._cache[in_run, number] = batch
            while len(self._cache) > _CACHED_BATCHES:
                self._cache.popitem(last=False)
        return batch


def _complete(batch: pa.RecordBatch, at_us: int) -> pa.RecordBatch:
    """Adds the columns that the batch leaves out."""
    arrays = []
    for field in PAYLOAD_SCHEMA:
        if field.name in batch.schema.names:
            array = batch.column(field.name)
            if field.name == "created_us" and array.null_count:
                array = pc.fill_null(array, at_us)
        elif field.name == "created_us":
            array = pa.array(np.full(batch.num_rows, at_us, dtype=np.int64))
        else:
            array = pa.nulls(batch.num_rows, field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=PAYLOAD_SCHEMA)


def _empty() -> pa.RecordBatch:
    arrays = [pa.array([], type=field.type) for field in PAYLOAD_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=PAYLOAD_SCHEMA)
