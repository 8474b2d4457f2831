"""Rows of a log as they are read: from frames still in the journal, or from log blocks.

Rows that lie side by side are a slice of what was stored: nothing is copied. `created_us` is when
a row was appended, always: a frame says it for all of its rows, a block for each.

Any thread. A piece is good until a checkpoint has moved its rows, or retention dropped them: then
`Gone` or `NotFound` is raised, and the reader asks the engine (`ReadLog`) again.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s
from fasti.core.columns.xxh64 import public_hashes
from fasti.core.fields import HEADERS
from fasti.core.log.commands import KeysLoaded, LogPiece
from fasti.core.log.order import LoadKeys
from fasti.core.rows.location import IN_RUN, ROW_BITS, ROWS_MAX, row_of
from fasti.storage.payloads import Payloads
from fasti.storage.runs import PAYLOAD_SCHEMA

Int64s = NDArray[np.int64]

# The header of a row that is lost: offsets have no holes.
LOST_HEADER = "fasti-lost"
_OF_LOST = {
    "payload": pa.scalar(b"", pa.binary()),
    "headers": pa.scalar([(LOST_HEADER, "true")], HEADERS),
}


def read_piece(
    payloads: Payloads, piece: LogPiece, schema: pa.Schema = PAYLOAD_SCHEMA
) -> pa.RecordBatch:
    """The rows of a piece, with every column of PAYLOAD_SCHEMA, or some of them.

    Of rows that can't be read the payload is null (`with_losses`).
    """
    batch, _ = payloads.batch_at(piece.location)
    in_block = piece.location >= IN_RUN
    begin = piece.location & (ROWS_MAX - 1)
    columns = []
    for field in schema:
        if field.name == "created_us" and not in_block:
            columns.append(pa.array(np.full(piece.count, piece.at_us)))
        elif field.name not in batch.schema.names:
            columns.append(pa.nulls(piece.count, field.type))
        elif piece.rows is None:
            columns.append(batch.column(field.name).slice(begin, piece.count))
        else:
            columns.append(batch.column(field.name).take(pa.array(piece.rows)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def with_losses(payloads: Payloads, piece: LogPiece, batch: pa.RecordBatch) -> pa.RecordBatch:
    """For readers: in place of a row that can't be read an empty one, with a header that says so."""
    lost = payloads.lost_at(piece.location)
    if lost is None:
        return batch
    rows = row_of(locations(piece))
    mask = pa.array(lost[rows])
    arrays = list(batch.columns)
    for index, name in enumerate(batch.schema.names):
        if name in _OF_LOST:
            arrays[index] = pc.if_else(mask, _OF_LOST[name], arrays[index])
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def locations(piece: LogPiece) -> Int64s:
    """Where each row of a piece lies."""
    if piece.rows is None:
        return np.arange(piece.location, piece.location + piece.count, dtype=np.int64)
    return piece.location >> ROW_BITS << ROW_BITS | piece.rows.astype(np.int64)


def offset_at(payloads: Payloads, piece: LogPiece, time_us: int) -> int:
    """Of a piece (the answer to `FindOffset`), the first row at the time or later."""
    if piece.location < IN_RUN:
        return piece.first_offset
    batch, _ = payloads.batch_at(piece.location)
    begin = piece.location & (ROWS_MAX - 1)
    times = batch.column("created_us").to_numpy(zero_copy_only=False)
    times = times[begin : begin + piece.count]
    return piece.first_offset + int(np.searchsorted(times, time_us))


# Keys, hashed, for groups that keep order per key


def load_keys(payloads: Payloads, wanted: LoadKeys) -> KeysLoaded:
    """The hash of each row's key, 0 for none. Raises `Gone` or `NotFound` if rows have moved."""
    hashes = [_hashes(payloads, piece) for piece in wanted.pieces]
    known = np.concatenate([*hashes, np.zeros(0, dtype=np.uint64)])
    return KeysLoaded(wanted.topic, wanted.partition, wanted.first_offset, known)


def _hashes(payloads: Payloads, piece: LogPiece) -> UInt64s:
    batch, _ = payloads.batch_at(piece.location)
    if "key" not in batch.schema.names:
        return np.zeros(piece.count, dtype=np.uint64)
    keys = batch.column("key")
    if piece.rows is None:
        keys = keys.slice(piece.location & (ROWS_MAX - 1), piece.count)
    else:
        keys = keys.take(pa.array(piece.rows))
    hashes = np.maximum(public_hashes(keys), np.uint64(1))
    if keys.null_count:
        hashes[np.asarray(keys.is_null())] = 0
    return hashes
