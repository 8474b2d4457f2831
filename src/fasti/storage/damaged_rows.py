"""Payload rows of a damaged object: which of them are as they were written, and which are not.

A value is damaged if a damaged piece (seals.py) has a part of it: of its bytes, of the offsets that say
where they are, or of the bit that says whether it is null. Such values come back as nulls, and no
damaged byte is ever looked at: offsets are mended first, so that no read leaves its buffer. What no
piece tells of (a journal frame, a block whose head is lost) is damaged as a whole.

Any thread; nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.core.rows.location import ROWS_MAX
from fasti.storage.runs import PAYLOAD_SCHEMA
from fasti.storage.seals import Damage, damage_of, read_batch

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Salvaged:
    """Rows with nulls where values are damaged, and of each column where that is."""

    batch: pa.RecordBatch
    damaged: dict[str, Bools]
    # Where in the file the damage begins.
    offset: int

    @property
    def rows(self) -> int:
        """How many rows have lost something; all that there could be, if that is not known."""
        return int(np.count_nonzero(self.damaged["payload"]))


def salvage(data: memoryview) -> Salvaged:
    """What is left of a payload object whose checksum is wrong."""
    damage = damage_of(data)
    if damage is None or not damage.head_bytes:
        return nothing_left()
    stored = read_batch(damage.content)
    ranges = _Ranges(damage, damage.content.address)
    columns = [_mended(column, ranges) for column in stored.columns]
    damaged = {name: mask for name, (_, mask) in zip(stored.schema.names, columns, strict=True)}
    # A row that lost anything has no payload: so its reader can tell.
    damaged["payload"] = np.logical_or.reduce(list(damaged.values()))
    arrays = []
    for name, (values, _) in zip(stored.schema.names, columns, strict=True):
        places = pa.array(np.arange(len(values)), mask=damaged[name])
        arrays.append(values.take(places) if damaged[name].any() else values)
        if name == "created_us" and damaged[name].any():
            # Rows of a log are found by their times, which never go back.
            arrays[-1] = pc.fill_null_forward(arrays[-1]).fill_null(0)
    schema = pa.schema([field.with_nullable(True) for field in stored.schema])
    return Salvaged(pa.RecordBatch.from_arrays(arrays, schema=schema), damaged, damage.offset)


@lru_cache(maxsize=1)
def nothing_left() -> Salvaged:
    """As many lost rows as a frame or block may have."""
    arrays = [pa.nulls(ROWS_MAX, field.type) for field in PAYLOAD_SCHEMA]
    zeros = pa.array(np.zeros(ROWS_MAX, dtype=np.int64))
    arrays[PAYLOAD_SCHEMA.get_field_index("created_us")] = zeros
    schema = pa.schema([field.with_nullable(True) for field in PAYLOAD_SCHEMA])
    lost = np.ones(ROWS_MAX, dtype=np.bool_)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return Salvaged(batch, dict.fromkeys(schema.names, lost), 0)


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Asks for parts of buffers, which are views of the content."""

    damage: Damage
    base: int

    def of(self, buffer: pa.Buffer, begin: Int64s, end: Int64s) -> Bools:
        start = buffer.address - self.base
        return self.damage.touches(begin + start, end + start)

    def of_items(self, buffer: pa.Buffer, count: int, bits: int) -> Bools:
        """Of the first `count` items of so many bits each."""
        places = np.arange(count, dtype=np.int64)
        return self.of(buffer, places * bits // 8, (places * bits + bits + 7) // 8)


def _mended(column: pa.Array, ranges: _Ranges) -> tuple[pa.Array, Bools]:
    """The column, safe to be read, and which of its values are damaged."""
    validity, *rest = column.buffers()
    count = len(column)
    mask = np.zeros(count, dtype=np.bool_)
    if validity is not None:
        mask |= ranges.of_items(validity, count, 1)
    if pa.types.is_map(column.type):
        return _mended_map(column, ranges, mask)
    if pa.types.is_integer(column.type):
        return column, mask | ranges.of_items(rest[0], count, column.type.bit_width)
    offsets, bad = _mended_offsets(rest[0], count, ranges, 0 if rest[1] is None else rest[1].size)
    mask |= bad
    if rest[1] is not None:
        mask |= ranges.of(rest[1], offsets[:-1], offsets[1:])
    buffers = [validity, _as_buffer(offsets), rest[1]]
    return pa.Array.from_buffers(column.type, count, buffers), mask


def _mended_map(column: pa.Array, ranges: _Ranges, mask: Bools) -> tuple[pa.Array, Bools]:
    """A map: its entries are two columns side by side, of which each row has a range."""
    validity, where = column.buffers()[:2]
    parts = [_mended(part, ranges) for part in (column.keys, column.items)]
    entries = len(parts[0][0])
    offsets, bad = _mended_offsets(where, len(column), ranges, entries)
    before = np.concatenate([[0], np.cumsum(parts[0][1] | parts[1][1])])
    mask |= bad | (before[offsets[1:]] > before[offsets[:-1]])
    fields = [column.type.key_field, column.type.item_field]
    pairs = pa.StructArray.from_arrays([values for values, _ in parts], fields=fields)
    buffers = [validity, _as_buffer(offsets)]
    return pa.Array.from_buffers(column.type, len(column), buffers, children=[pairs]), mask


def _mended_offsets(
    buffer: pa.Buffer | None, count: int, ranges: _Ranges, limit: int
) -> tuple[Int64s, Bools]:
    """Offsets that go up and stay below `limit`, and which values had a damaged one."""
    if buffer is None or not count:
        return np.zeros(count + 1, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    offsets = np.frombuffer(buffer, dtype=np.int32, count=count + 1).astype(np.int64)
    bad = ranges.of_items(buffer, count + 1, 32)
    offsets[bad] = 0
    offsets = np.minimum(np.maximum.accumulate(np.maximum(offsets, 0)), limit)
    return offsets, bad[:-1] | bad[1:]


def _as_buffer(offsets: Int64s) -> pa.Buffer:
    return pa.py_buffer(offsets.astype(np.int32))
