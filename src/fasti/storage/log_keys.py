"""The keys of a log's rows, hashed, for groups that keep order per key. Any thread."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fasti.core.columns.hashing import UInt64s
from fasti.core.columns.xxh64 import public_hashes
from fasti.core.log.commands import KeysLoaded, LogPiece
from fasti.core.log.order import LoadKeys
from fasti.core.rows.location import ROWS_MAX
from fasti.storage.payloads import Payloads


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
