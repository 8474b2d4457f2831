"""Payloads by location: from frames still in memory, from the journal, or from run blocks.

Threads: `gather` from any thread, also while the committer appends and a checkpoint installs.
`keep` is the sequencer's. What was decoded lately is cached, a bounded number of batches.

A block or frame is checked against its checksum when it is first read: no payload that the disk
has changed is ever handed out, nor copied into a new block under a fresh checksum.

A location is good for as long as its message is there, unless a checkpoint moves it: then `Gone`
or `NotFound` tells whoever held on to it without a snapshot, and the message has a newer one.
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
from fasti.core.location import ROW_BITS, is_in_run, number_of, row_of
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
        self._cache: OrderedDict[tuple[bool, int], tuple[pa.RecordBatch, int]] = OrderedDict()
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
        order = np.argsort(locations, kind="stable")
        ordered = locations[order]
        sources = ordered >> ROW_BITS
        starts = np.flatnonzero(np.concatenate([[True], sources[1:] != sources[:-1]]))
        starts = starts[: len(locations)]
        in_run, numbers = is_in_run(ordered[starts]).tolist(), number_of(ordered[starts]).tolist()
        rows = pa.array(row_of(ordered))
        counts = np.diff([*starts.tolist(), len(ordered)])
        found = [self._batch(*source) for source in zip(in_run, numbers, strict=True)]
        parts = []
        for (batch, _), start, count in zip(found, starts.tolist(), counts.tolist(), strict=True):
            wanted = rows.slice(start, count)
            names, columns = batch.schema.names, batch.columns
            parts.append({n: c.take(wanted) for n, c in zip(names, columns, strict=True)})
        written_us = np.repeat(np.array([at for _, at in found], dtype=np.int64), counts)
        arrays = [_joined(field, parts, counts, written_us) for field in PAYLOAD_SCHEMA]
        whole = pa.RecordBatch.from_arrays(arrays, schema=PAYLOAD_SCHEMA)
        if (order[1:] > order[:-1]).all():
            return whole
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return whole.take(pa.array(back))

    def sizes(self, locations: Int64s) -> Int64s:
        """About how many bytes each of these rows has, so that nobody gathers too many."""
        order = np.argsort(locations, kind="stable")
        sources = locations[order] >> ROW_BITS
        sizes = np.zeros(len(locations), dtype=np.int64)
        for rows in np.split(order, np.flatnonzero(sources[1:] != sources[:-1]) + 1):
            if len(rows):
                place = locations[rows]
                batch, _ = self._batch(bool(is_in_run(place[:1])[0]), int(number_of(place[:1])[0]))
                sizes[rows] = _row_bytes(batch, row_of(place))
        return sizes

    def forget(self, in_run: bool, wanted: Callable[[int], bool]) -> None:
        """Drops cached batches whose frame or block is not wanted any more."""
        with self._lock:
            for key in [k for k in self._cache if k[0] == in_run and not wanted(k[1])]:
                del self._cache[key]
            if not in_run:
                for frame in [f for f in self._kept if not wanted(f)]:
                    self._kept_bytes -= self._kept.pop(frame)[0].batch.nbytes

    def _batch(self, in_run: bool, number: int) -> tuple[pa.RecordBatch, int]:
        """A frame's or block's batch as it was written, and when (0 for a block)."""
        with self._lock:
            found = self._cache.get((in_run, number))
            if found is not None:
                self._cache.move_to_end((in_run, number))
                return found
            kept = None if in_run else self._kept.get(number)
        if kept is not None:
            return kept[0].batch, kept[1]
        if in_run:
            name = f"{number:012d}.payloads"
            found = unseal(self._blocks.get(name), name), 0
        else:
            rows, at_us = decode_rows(self._journal.body(number))
            assert rows is not None, "a location names a frame with payloads"
            found = rows.batch, at_us
        with self._lock:
            self._cache[in_run, number] = found
            while len(self._cache) > _CACHED_BATCHES:
                self._cache.popitem(last=False)
        return found


def _row_bytes(batch: pa.RecordBatch, rows: Int64s) -> Int64s:
    """The bytes of rows, but for content types, which are short; read off the offsets alone."""
    total = np.full(len(rows), 64, dtype=np.int64)
    for name in ("payload", "key"):
        if name in batch.schema.names:
            ends = _offsets(batch.column(name))
            total += ends[rows + 1] - ends[rows]
    if "headers" in batch.schema.names:
        headers = batch.column("headers")
        entries = headers.offsets.to_numpy()
        for part in (headers.keys, headers.items):
            ends = _offsets(part)
            total += ends[entries[rows + 1]] - ends[entries[rows]]
    return total


def _offsets(array: pa.Array) -> NDArray[np.int32]:
    if not len(array):
        return np.zeros(1, dtype=np.int32)
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def _joined(
    field: pa.Field, parts: list[dict[str, pa.Array]], counts: Int64s, written_us: Int64s
) -> pa.Array:
    """One column of all parts, some of which may have left it out."""
    given = [part.get(field.name) for part in parts]
    if all(array is None for array in given):
        if field.name == "created_us":
            return pa.array(written_us)
        return pa.nulls(len(written_us), field.type)
    arrays = [
        pa.nulls(int(count), field.type) if array is None else array
        for array, count in zip(given, counts, strict=True)
    ]
    joined = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    if field.name == "created_us" and joined.null_count:
        return pc.coalesce(joined, pa.array(written_us))
    return joined
