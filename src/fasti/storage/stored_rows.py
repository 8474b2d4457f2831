"""The payload rows of one frame or block, as they were written, in memory.

What is worked out of them once, so that each gathering need not, stands here too: where the values of a
column lie, and how large rows are. Never changed; any thread.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core.keys import Rows
from fasti.storage.damages import DamagedFile
from fasti.storage.runs import PAYLOAD_SCHEMA

Int64s = NDArray[np.int64]

# What Arrow calls a view of a value, but for short ones, which stand in it themselves. Its second field
# has the first four bytes, for comparisons; nothing compares these.
VIEW = np.dtype([("length", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
INLINE_BYTES = 12
_NO_BYTES = pa.py_buffer(b"")


class Values:
    """The values of a column of bytes or text."""

    __slots__ = ("_column", "_views", "data", "first", "width")

    def __init__(self, column: pa.Array) -> None:
        self._column = column
        self._views: NDArray[np.void] | None = None
        self.data: pa.Buffer = column.buffers()[2] or _NO_BYTES
        ends = _offsets(column)
        # Where the first one begins; and how long all are: 0 if that differs, one is null, or they are short.
        self.first = int(ends[0])
        width = (int(ends[-1]) - self.first) // max(1, len(column))
        alike = width > INLINE_BYTES and not column.null_count and (np.diff(ends) == width).all()
        self.width = width if alike else 0

    @property
    def views(self) -> NDArray[np.void]:
        """A view of each value, in a buffer without a number yet. The length of what is null is -1."""
        if self._views is None:
            column, ends = self._column, _offsets(self._column)
            views = np.zeros(len(column), dtype=VIEW)
            views["length"], views["offset"] = np.diff(ends), ends[:-1]
            short = np.flatnonzero(views["length"] <= INLINE_BYTES)
            if len(short) and self.data.size:
                places = ends[short][:, None] + np.arange(INLINE_BYTES)
                content = np.frombuffer(self.data, dtype=np.uint8).take(places, mode="clip")
                views.view(np.uint8).reshape(len(views), -1)[short, 4:] = content
            if column.null_count:
                views["length"][column.is_null().to_numpy(zero_copy_only=False)] = -1
            self._views = views
        return self._views


class _Absent:
    """What a frame that has left the column out has of it: nulls."""

    __slots__ = ()
    data, first, width = _NO_BYTES, 0, 0
    # However far a row lies beyond, it is taken from here.
    views = np.array([(-1, 0, 0, 0)], dtype=VIEW)


_ABSENT = _Absent()
AnyValues = Values | _Absent


class StoredRows:
    """A frame's or block's rows."""

    __slots__ = (
        *("_created", "_values", "_widest"),
        *("at_us", "batch", "columns", "damaged", "found", "names"),
    )

    def __init__(
        self,
        batch: pa.RecordBatch,
        at_us: int,
        damaged: dict[str, NDArray[np.bool_]] | None = None,
        found: DamagedFile | None = None,
    ) -> None:
        self.batch = batch
        # Of each column which values can't be read, and what is wrong; None: all is well.
        self.damaged, self.found = damaged, found
        # When the frame was written; 0 for a block, whose rows say it themselves.
        self.at_us = at_us
        # Blocks have all columns, also those that no message of theirs has: as if they hadn't.
        self.columns: dict[str, pa.Array] = {
            name: column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if column.null_count < len(column)
        }
        # Most frames have the same: what they have together is found by few comparisons.
        self.names = tuple(self.columns)
        self._widest = 0
        self._values: dict[str, AnyValues] = {}
        self._created: Int64s | None = None

    @property
    def size_bytes(self) -> int:
        """What is counted of it."""
        return int(self.batch.nbytes)

    def stored(self) -> StoredRows:
        """Itself, decoded."""
        return self

    def lost(self, names: list[str]) -> NDArray[np.bool_]:
        """Which rows have lost a value of these columns."""
        lost = np.zeros(self.batch.num_rows, dtype=np.bool_)
        for name in names:
            mask = None if self.damaged is None else self.damaged.get(name)
            if mask is not None:
                lost |= mask
        return lost

    def values(self, name: str) -> AnyValues:
        """Where the values of a column of bytes or text lie."""
        values = self._values.get(name)
        if values is None:
            column = self.columns.get(name)
            values = self._values[name] = _ABSENT if column is None else Values(column)
        return values

    def created_us(self) -> Int64s:
        """When each message was made: what its row says, or when the frame was written."""
        if self._created is None:
            column = self.columns.get("created_us")
            if column is None:
                self._created = np.full(self.batch.num_rows, self.at_us, dtype=np.int64)
            else:
                self._created = column.fill_null(self.at_us).to_numpy()
        return self._created

    @property
    def widest(self) -> int:
        """No row has more bytes than this, about."""
        if not self._widest:
            sizes = row_bytes(self.columns, np.arange(self.batch.num_rows))
            self._widest = int(sizes.max(initial=1))
        return self._widest


class SmallFrame:
    """A frame of few bytes, as the journal has it, to be decoded by who asks for it."""

    __slots__ = ("_encoded", "_names", "at_us", "values")

    def __init__(self, rows: Rows, at_us: int) -> None:
        # Of a message that came alone.
        self.values = rows.values
        self._encoded, self._names = rows.encoded, rows.names
        self.at_us = at_us

    @property
    def size_bytes(self) -> int:
        """What is counted of it."""
        return len(self._encoded)

    def stored(self) -> StoredRows:
        """Its rows."""
        if self.values is not None:
            return StoredRows(Rows(None, self.values).batch, self.at_us)
        schema = schema_of(tuple(self._names))
        return StoredRows(pa.ipc.read_record_batch(self._encoded, schema), self.at_us)


@lru_cache(maxsize=64)
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """Of these payload columns."""
    return pa.schema([PAYLOAD_SCHEMA.field(name) for name in names])


def row_bytes(columns: dict[str, pa.Array], rows: Int64s) -> Int64s:
    """The bytes of rows, but for content types, which are short; read off the offsets alone."""
    total = np.full(len(rows), 64, dtype=np.int64)
    for name in ("payload", "key"):
        if name in columns:
            ends = _offsets(columns[name])
            total += ends[rows + 1] - ends[rows]
    if "headers" in columns:
        headers = columns["headers"]
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
