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

from fasti.core.columns.hashing import UInt64s, hash_keys, hash_one, ranked_partitions
from fasti.core.columns.xxh64 import public_hashes
from fasti.core.fields import FIELDS
from fasti.core.rows.location import ROWS_MAX
from fasti.errors import InvalidArgument
from fasti.model import Limits


class Keys:
    """A column of keys with their hashes, or one key. Equal keys hash equal under one seed."""

    def __init__(self, values: pa.Array | str, seed: tuple[int, int]) -> None:
        self._values = values
        self.hashes: UInt64s = (
            hash_one(values.encode(), seed) if type(values) is str else hash_keys(values, seed)
        )
        self._ranked: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def values(self) -> pa.Array:
        """The keys themselves."""
        one = type(self._values) is str
        return pa.array([self._values], pa.string()) if one else self._values

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

    A message that came alone has its `values` instead, as bytes by column: Arrow takes longer to make
    a batch of one row than everything else takes that is done with it. It becomes one when it is read
    with others.
    """

    __slots__ = ("_batch", "_encoded", "_size_bytes", "values")

    def __init__(
        self, batch: pa.RecordBatch | None, values: dict[str, bytes] | None = None
    ) -> None:
        self._batch, self.values = batch, values
        self._encoded: pa.Buffer | bytes | None = None
        self._size_bytes: int | None = None

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
        rows = cls(pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema))
        _check(rows, arrays, limits or Limits())
        return rows

    @classmethod
    def single(cls, payload: bytes, limits: Limits | None = None, **texts: str) -> Rows:
        """One message: `key=`, `content_type=` and `subject=` may be given."""
        values = {"payload": payload}
        for name, text in texts.items():
            values[name] = text.encode()
        limits = limits or Limits()
        for name, value in values.items():
            field, limit = _width_limit(name, limits)
            if len(value) > limit:
                _refuse(f"bytes of {field}", len(value), f"{field}_bytes_max", limit)
        if values.get("key") == b"":
            raise _empty_key()
        return cls(None, values)

    def __len__(self) -> int:
        return 1 if self._batch is None else int(self._batch.num_rows)

    @property
    def batch(self) -> pa.RecordBatch:
        """All of it in Arrow's columns."""
        if self._batch is None:
            assert self.values is not None
            arrays = [
                _column(name, [value if name == "payload" else value.decode()])
                for name, value in self.values.items()
            ]
            schema = _schema_of(tuple(self.values))
            self._batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return self._batch

    @property
    def names(self) -> list[str]:
        """Which columns there are."""
        return list(self.values) if self.values is not None else self.batch.schema.names

    @property
    def size_bytes(self) -> int:
        """What its values take."""
        if self._size_bytes is None:
            values = self.values
            alone = None if values is None else sum(map(len, values.values()))
            self._size_bytes = int(self.batch.nbytes) if alone is None else alone
        return self._size_bytes

    @property
    def encoded(self) -> pa.Buffer | bytes:
        """The batch as an Arrow IPC message (without schema: the frame names the columns); of a
        message that came alone its values, one behind the other.
        """
        if self._encoded is None:
            values = self.values
            self._encoded = self.batch.serialize() if values is None else b"".join(values.values())
        return self._encoded

    def keys(self, seed: tuple[int, int]) -> Keys | None:
        """The key column, hashed; None if no row has a key."""
        if self.values is not None:
            key = self.values.get("key")
            return None if key is None else Keys(key.decode(), seed)
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


def _check(rows: Rows, columns: dict[str, pa.Array], limits: Limits) -> None:
    if columns["payload"].null_count:
        raise InvalidArgument("a payload may be empty but not missing", field="payload")
    if len(rows) > limits.batch_rows_max:
        _refuse("rows of a batch", len(rows), "batch_rows_max", limits.batch_rows_max)
    if rows.size_bytes > limits.batch_bytes_max:
        _refuse("bytes of a batch", rows.size_bytes, "batch_bytes_max", limits.batch_bytes_max)
    for name in ("payload", "key", "content_type", "subject"):
        if name in columns:
            _check_width(columns[name], *_width_limit(name, limits))
    if "key" in columns:
        if (pc.binary_length(columns["key"]).to_numpy(zero_copy_only=False) == 0).any():
            raise _empty_key()
    if "headers" in columns:
        _check_headers(columns["headers"], limits.headers_bytes_max)


def _width_limit(name: str, limits: Limits) -> tuple[str, int]:
    """By which limit a value of a column is bounded, and how wide it may be."""
    if name == "payload":
        return name, limits.payload_bytes_max
    if name == "key":
        return name, limits.key_bytes_max
    if name == "subject":
        return name, limits.subject_bytes_max
    return "headers", limits.headers_bytes_max


def _empty_key() -> InvalidArgument:
    return InvalidArgument("a key may be missing but not empty", field="key")


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
