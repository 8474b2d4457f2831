"""Columns of rows that lie in many frames and blocks, in the order asked for.

A delivery of messages that fall due in another order than they came has some rows of each of hundreds of
frames. So what costs several calls for each frame and column would cost more than all copying: numpy says
where each value lies, and Arrow copies them at once (views). Only headers are taken frame by frame.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.core.rows.location import ROW_BITS, row_of
from fasti.storage.stored_rows import INLINE_BYTES, VIEW, AnyValues, StoredRows

Int64s = NDArray[np.int64]
Places = NDArray[np.intp]

# The function behind `Array.take`, without the look-ups and checks around it: many small calls.
_TAKE = pc.get_function("array_take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)
_FEW = 256
# From how many places on values are gathered by views.
_MANY = 8
_VIEWS = {pa.binary(): pa.binary_view(), pa.string(): pa.string_view()}


def split_places(locations: Int64s) -> tuple[Int64s, Places | None]:
    """A location in each frame or block, and which of these is each row's (None: there is but one)."""
    sources = locations >> ROW_BITS
    if not len(sources):
        return locations, None
    low = int(sources.min())
    span = int(sources.max()) - low + 1
    if span == 1:
        return locations[:1], None
    if span < 1 << 16:
        # Frames that were written one after another: found without sorting.
        numbers = sources - low
        present = np.zeros(span, dtype=np.bool_)
        present[numbers] = True
        distinct = np.flatnonzero(present)
        places = np.empty(span, dtype=np.intp)
        places[distinct] = np.arange(len(distinct))
        return (distinct + low) << ROW_BITS, places.take(numbers)
    found, of = np.unique(sources, return_inverse=True)
    return found << ROW_BITS, of


class GatheredRows:
    """Rows that are wanted, and the frames or blocks that they lie in. For one thread."""

    __slots__ = ("_by_place", "_order", "_rows_by_place", "counts", "of", "rows", "stored")

    def __init__(self, locations: Int64s, stored: list[StoredRows], of: Places | None) -> None:
        self.rows = row_of(locations)
        self.stored, self.of = stored, of
        # One place, or none.
        self.counts = np.full(len(stored), len(locations))
        if of is not None:
            self.counts = np.bincount(of, minlength=len(stored))
        # As they are asked for, they may stand by place already.
        self._by_place = of is None or bool((of[1:] >= of[:-1]).all())
        self._order: Places | None = None
        self._rows_by_place = self.rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def order(self) -> Places | None:
        """That sorts them by place; None: they stand so."""
        if self._order is None and not self._by_place and self.of is not None:
            # numpy sorts small numbers without comparing.
            few = len(self.stored) <= 1 << 16
            self._order = np.argsort(self.of.astype(np.uint16) if few else self.of, kind="stable")
            self._rows_by_place = self.rows[self._order]
        return self._order

    def pieces(self) -> list[tuple[StoredRows, int, Int64s]]:
        """By place: where its rows begin in `order`, and which they are."""
        assert self._by_place or self.order is not None
        ends = np.cumsum(self.counts).tolist()
        begins = [0, *ends][:-1]
        return [
            (stored, begin, self._rows_by_place[begin:end])
            for stored, begin, end in zip(self.stored, begins, ends, strict=True)
        ]

    def put_back(self, by_place: NDArray[Any]) -> NDArray[Any]:
        """From the order of places to the order asked for."""
        if self.order is None:
            return by_place
        values = np.empty_like(by_place)
        values[self.order] = by_place
        return values

    def is_one_range(self) -> bool:
        """Whether they lie behind each other in one place, as most deliveries' do."""
        rows = self.rows
        return len(self.stored) == 1 and (
            len(rows) == 1
            or (
                int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all())
            )
        )

    def columns(self, schema: pa.Schema) -> list[pa.Array]:
        """Every column of the schema."""
        if self.is_one_range():
            return _sliced(self.stored[0], int(self.rows[0]), len(self.rows), schema)
        present = {name for names in {stored.names for stored in self.stored} for name in names}
        return [
            _joined(field, self) if field.name in present else _left_out(field, self)
            for field in schema
        ]

    def written_us(self) -> Int64s:
        """When the frame of each row was written."""
        moments = np.fromiter((stored.at_us for stored in self.stored), np.int64, len(self.stored))
        return np.repeat(moments, len(self)) if self.of is None else moments.take(self.of)


def _sliced(stored: StoredRows, begin: int, count: int, schema: pa.Schema) -> list[pa.Array]:
    """Nothing is copied."""
    found = []
    for field in schema:
        column = stored.columns.get(field.name)
        if column is not None:
            column = column.slice(begin, count)
        if field.name == "created_us" and (column is None or column.null_count):
            written = pa.array(np.full(count, stored.at_us, dtype=np.int64))
            column = written if column is None else pc.coalesce(column, written)
        found.append(_nulls(field, count) if column is None else column)
    return found


def _nulls(field: pa.Field, count: int) -> pa.Array:
    """A column that most messages leave out."""
    return _few_nulls(field.type, count) if count <= _FEW else pa.nulls(count, field.type)


# A small delivery costs mostly such calls. Not slices of a longer one: its null maps would travel
# whole.
_few_nulls = lru_cache(maxsize=256)(lambda kind, count: pa.nulls(count, kind))


def _left_out(field: pa.Field, gathered: GatheredRows) -> pa.Array:
    """A column that no place has."""
    if field.name == "created_us":
        return pa.array(gathered.written_us())
    return _nulls(field, len(gathered))


def _joined(field: pa.Field, gathered: GatheredRows) -> pa.Array:
    """One column of all places, some of which may have left it out, in the order asked for."""
    name = field.name
    if name == "created_us":
        return pa.array(_joined_moments(gathered))
    if len(gathered.stored) > _MANY and field.type in _VIEWS:
        joined = _joined_by_views(field, gathered)
        if joined is not None:
            return joined
    arrays = []
    for stored, _, rows in gathered.pieces():
        column = stored.columns.get(name)
        if column is None:
            arrays.append(_nulls(field, len(rows)))
        else:
            arrays.append(_TAKE.call([column, pa.array(rows)], _UNCHECKED))
    return _put_back(arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays), gathered.order)


def _joined_moments(gathered: GatheredRows) -> Int64s:
    by_place = np.empty(len(gathered), dtype=np.int64)
    for stored, begin, rows in gathered.pieces():
        piece = by_place[begin : begin + len(rows)]
        stored.created_us().take(rows, out=piece, mode="clip")
    return gathered.put_back(by_place)


def _joined_by_views(field: pa.Field, gathered: GatheredRows) -> pa.Array | None:
    """The same for bytes and text. None if they have more bytes than an array may have."""
    values = [stored.values(field.name) for stored in gathered.stored]
    widths = np.fromiter((each.width for each in values), np.int64, len(values))
    alike = widths.all()
    views = _views_of_width(gathered, values, widths) if alike else _views_of_any(gathered, values)
    missing = None if alike else views["length"] < 0
    if missing is not None and missing.any():
        views["length"][missing] = 0
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    else:
        valid = None
    if int(views["length"].sum(dtype=np.int64)) >= 1 << 31:
        return None
    buffers = [valid, pa.py_buffer(views), *(each.data for each in values)]
    return pa.Array.from_buffers(_VIEWS[field.type], len(views), buffers).cast(field.type)


def _views_of_width(
    gathered: GatheredRows, values: list[AnyValues], widths: Int64s
) -> NDArray[np.void]:
    """Where all values of a place have one length, which is usual, where they lie is arithmetic."""
    assert gathered.of is not None
    firsts = np.fromiter((each.first for each in values), np.int64, len(values))
    lengths = widths.take(gathered.of)
    views = np.zeros(len(gathered), dtype=VIEW)
    views["length"], views["buffer"] = lengths, gathered.of
    views["offset"] = firsts.take(gathered.of) + gathered.rows * lengths
    return views


def _views_of_any(gathered: GatheredRows, values: list[AnyValues]) -> NDArray[np.void]:
    """Short ones, those of different lengths, nulls."""
    assert gathered.of is not None
    by_place = np.empty(len(gathered), dtype=VIEW)
    for (_, begin, rows), each in zip(gathered.pieces(), values, strict=True):
        each.views.take(rows, out=by_place[begin : begin + len(rows)], mode="clip")
    views = gathered.put_back(by_place)
    long = np.flatnonzero(views["length"] > INLINE_BYTES)
    views["buffer"][long] = gathered.of[long]
    return views


def _put_back(column: pa.Array, order: Places | None) -> pa.Array:
    """The same for what numpy doesn't know."""
    if order is None:
        return column
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return _TAKE.call([column, pa.array(back)], _UNCHECKED)
