"""Keys and payload rows as a command carries them: prepared once, outside the engine.

Whoever makes a command (a broker's handler thread) hashes the keys and checks the sizes there,
so that the sequencer touches fixed-width columns only. The engine passes `Rows` on unopened.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.core.columns.hashing import UInt64s, hash_keys, ranked_partitions
from fasti.core.columns.xxh64 import public_hashes
from fasti.core.fields import FIELDS
from fasti.core.rows.location import ROWS_MAX
from fasti.errors import InvalidArgument
from fasti.model import Limits


class Keys:
    """A column of keys with their hashes. Equal keys hash equal under one seed."""

    def __init__(self, values: pa.Array, seed: tuple[int, int]) -> None:
        self.values = values
        self.hashes: UInt64s = hash_keys(values, seed)
        self._ranked: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def routes(self) -> UInt64s:
        """The public hash, which decides the partition. Needed only where there are several."""
        return public_hashes(self.values)

    def partitions(self, count: int) -> NDArray[np.int64]:
        """The partition of each key."""
        if count == 1:
            return np.zeros(len(self), dtype=np.int64)
        return (self.routes % np.uint64(count)).astype(np.int64)

    def ranked(self, count: int) -> NDArray[np.int64]:
        """The partition of each key in a log of so many."""
        if self._ranked is None or self._ranked[0] != count:
            self._ranked = count, ranked_partitions(self.routes, count)
        return self._ranked[1]

    @property
    def given(self) -> NDArray[np.bool_]:
        """Which rows have a key at all."""
        return self.hashes[:, 0] != 0


class Rows:
    """Payloads with their keys, headers and content types: a RecordBatch of 65,536 at most.

    Columns that no row uses are left out. `encoded` is what the journal will hold, made here so
    that the committer only has to write.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._encoded: pa.Buffer | None = None

    @classmethod
    def of(cls, payloads: Any, limits: Limits | None = None, **columns: Any) -> Rows:
        """From sequences or Arrow arrays: `key=`, `headers=` and `content_type=` may be given."""
        arrays = {}
        for name, values in {"payload": payloads, **columns}.items():
            if name not in FIELDS:
                raise InvalidArgument(f"a message has no column {name!r}", field=name)
            if values is not None:
                arrays[name] = _column(name, values)
        count = len(arrays["payload"])
        if any(len(array) != count for array in arrays.values()):
            raise InvalidArgument("the columns of a batch differ in length", field="payload")
        schema = _schema_of(tuple(arrays))
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)
        _check(batch, arrays, limits or Limits())
        return cls(batch)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def encoded(self) -> pa.Buffer:
        """The batch as an Arrow IPC message (without schema: the frame names the columns)."""
        if self._encoded is None:
            self._encoded = self.batch.serialize()
        return self._encoded

    def keys(self, seed: tuple[int, int]) -> Keys | None:
        """The key column, hashed; None if no row has a key."""
        if "key" not in self.batch.schema.names:
            return None
        return Keys(self.batch.column("key"), seed)

    def split(self) -> list[Rows]:
        """Pieces that each fit a frame."""
        if len(self) <= ROWS_MAX:
            return [self]
        return [Rows(self.batch.slice(begin, ROWS_MAX)) for begin in range(0, len(self), ROWS_MAX)]


def _column(name: str, values: Any) -> pa.Array:
    kind = FIELDS[name].type
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        array = values if isinstance(values, pa.Array) else pa.array(values, type=kind)
        return array if array.type == kind else array.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidArgument(f"{name} must be {kind}: {error}", field=name) from error


@cache
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([FIELDS[name] for name in names])


def _check(batch: pa.RecordBatch, columns: dict[str, pa.Array], limits: Limits) -> None:
    if columns["payload"].null_count:
        raise InvalidArgument("a payload may be empty but not missing", field="payload")
    if batch.num_rows > limits.batch_rows_max:
        _refuse("rows of a batch", batch.num_rows, "batch_rows_max", limits.batch_rows_max)
    if (size_bytes := batch.nbytes) > limits.batch_bytes_max:
        _refuse("bytes of a batch", size_bytes, "batch_bytes_max", limits.batch_bytes_max)
    _check_width(columns["payload"], "payload", limits.payload_bytes_max)
    if "key" in columns:
        _check_width(columns["key"], "key", limits.key_bytes_max)
        if (pc.binary_length(columns["key"]).to_numpy(zero_copy_only=False) == 0).any():
            raise InvalidArgument("a key may be missing but not empty", field="key")
    if "content_type" in columns:
        _check_width(columns["content_type"], "headers", limits.headers_bytes_max)
    if "subject" in columns:
        _check_width(columns["subject"], "subject", limits.subject_bytes_max)
    if "headers" in columns:
        _check_headers(columns["headers"], limits.headers_bytes_max)


def _check_width(column: pa.Array, name: str, limit: int) -> None:
    # The widest row can't be wider than all rows together: mostly no need to look at each.
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    if len(column) and int(offsets[-1]) - int(offsets[0]) > limit:
        widest = int(np.diff(offsets).max())
        if widest > limit:
            _refuse(f"bytes of {name}", widest, f"{name}_bytes_max", limit)


def _check_headers(column: pa.MapArray, limit: int) -> None:
    sizes = np.zeros(len(column.keys) + 1, dtype=np.int64)
    for part in (column.keys, column.items):
        lengths = pc.binary_length(part).fill_null(0).to_numpy(zero_copy_only=False)
        sizes[1:] += lengths
    ends = np.cumsum(sizes)
    offsets = column.offsets.to_numpy()
    if len(column):
        widest = int((ends[offsets[1:]] - ends[offsets[:-1]]).max())
        if widest > limit:
            _refuse("bytes of headers", widest, "headers_bytes_max", limit)


def _refuse(what: str, found: int, setting: str, limit: int) -> None:
    raise InvalidArgument(f"{found} {what}: the limit is {limit} ({setting})", field=setting)
