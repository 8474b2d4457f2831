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

from fasti.core.columns.reductions import highest, lowest
from fasti.core.rows.location import ROW_BITS, row_of
from fasti.storage.stored_rows import INLINE_BYTES, VIEW, StoredRows

Int64s = NDArray[np.int64]
Places = NDArray[np.intp]

# The function behind `Array.take`, without the look-ups and checks around it: many small calls.
_TAKE = pc.get_function("array_take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)
_FEW = 256
# From how many places on values are gathered by views.
MANY = 8
# Frames that were written one after another are found by their numbers, so far apart.
_SPAN = 1 << 16
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
    if span < _SPAN:
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


class ColumnOfSources:
    """Where the values of a column of bytes or text lie in many frames or blocks."""

    __slots__ = ("alike", "data", "firsts", "values", "widths")

    def __init__(self, name: str, stored: list[StoredRows]) -> None:
        self.values = [each.values(name) for each in stored]
        self.data = [each.data for each in self.values]
        self.widths = np.fromiter((each.width for each in self.values), np.int64, len(stored))
        self.firsts = np.fromiter((each.first for each in self.values), np.int64, len(stored))
        # Whether all values of a place have one length, in each of them.
        self.alike = bool(self.widths.all())


class Sources:
    """The frames and blocks that a delivery lies in, and what is known of all of them together.

    One delivery after another lies in the same hundreds, as long as messages fall due that came in the same
    minutes. So they are kept for the next (payloads.py). Never changed, but for what is worked out when it is
    first asked for, by any thread.
    """

    __slots__ = ("_columns", "_low", "_moments", "_names", "_places", "_widest", "stored")

    def __init__(self, stored: list[StoredRows]) -> None:
        self.stored = stored
        self._columns: dict[str, ColumnOfSources] = {}
        self._names: set[str] | None = None
        self._moments: Int64s | None = None
        self._widest: Int64s | None = None
        # By number, from the lowest on: its place here, or -1. Only of those that are kept.
        self._low = 0
        self._places: Places | None = None

    def number(self, firsts: Int64s) -> bool:
        """Makes them known by their numbers, from a location in each; False if they lie too far apart."""
        numbers = firsts >> ROW_BITS
        self._low = int(numbers[0])
        span = int(numbers[-1]) - self._low + 1
        if span > _SPAN:
            return False
        self._places = np.full(span, -1, dtype=np.intp)
        self._places[numbers - self._low] = np.arange(len(numbers))
        return True

    def places_of(self, locations: Int64s) -> Places | None:
        """Which of these places is each row's; None if some are elsewhere, or in a single one.

        Nor if the places are more than the rows: then only those should be looked at that are needed.
        """
        if self._places is None or len(self.stored) > len(locations):
            return None
        numbers = (locations >> ROW_BITS) - self._low
        first, last = lowest(numbers), highest(numbers)
        if first < 0 or last >= len(self._places) or first == last:
            return None
        of = self._places.take(numbers)
        return of if lowest(of) >= 0 else None

    def column(self, name: str) -> ColumnOfSources:
        """Where the values of a column lie."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = ColumnOfSources(name, self.stored)
        return column

    @property
    def damaged(self) -> bool:
        """Whether one of them has lost something. Such are never kept."""
        return self._places is None and any(each.damaged is not None for each in self.stored)

    @property
    def names(self) -> set[str]:
        """The columns that one of them has."""
        if self._names is None:
            self._names = {name for names in {each.names for each in self.stored} for name in names}
        return self._names

    @property
    def moments(self) -> Int64s:
        """When each was written."""
        if self._moments is None:
            moments = (each.at_us for each in self.stored)
            self._moments = np.fromiter(moments, np.int64, len(self.stored))
        return self._moments

    @property
    def widest(self) -> Int64s:
        """No row of a place has more bytes than this, about."""
        if self._widest is None:
            sizes = (each.widest for each in self.stored)
            self._widest = np.fromiter(sizes, np.int64, len(self.stored))
        return self._widest


class GatheredRows:
    """Rows that are wanted, and the frames or blocks that they lie in. For one thread."""

    __slots__ = ("_by_place", "_order", "_rows_by_place", "counts", "of", "rows", "sources")

    def __init__(self, locations: Int64s, sources: Sources, of: Places | None) -> None:
        self.rows = row_of(locations)
        self.sources, self.of = sources, of
        # One place, or none.
        self.counts = np.full(len(sources.stored), len(locations))
        if of is not None:
            self.counts = np.bincount(of, minlength=len(sources.stored))
        # As they are asked for, they may stand by place already.
        self._by_place = of is None or bool((of[1:] >= of[:-1]).all())
        self._order: Places | None = None
        self._rows_by_place = self.rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def stored(self) -> list[StoredRows]:
        """The frames and blocks. Where they are known from before, some may have none of the rows."""
        return self.sources.stored

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
        present = self.sources.names
        return [
            _joined(field, self) if field.name in present else _left_out(field, self)
            for field in schema
        ]

    def written_us(self) -> Int64s:
        """When the frame of each row was written."""
        moments = self.sources.moments
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
    if len(gathered.stored) > MANY and field.type in _VIEWS:
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
    column = gathered.sources.column(field.name)
    views = _views_of_width(gathered, column) if column.alike else _views_of_any(gathered, column)
    missing = None if column.alike else views["length"] < 0
    if missing is not None and missing.any():
        views["length"][missing] = 0
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    else:
        valid = None
    if int(views["length"].sum(dtype=np.int64)) >= 1 << 31:
        return None
    buffers = [valid, pa.py_buffer(views), *column.data]
    return pa.Array.from_buffers(_VIEWS[field.type], len(views), buffers).cast(field.type)


def _views_of_width(gathered: GatheredRows, column: ColumnOfSources) -> NDArray[np.void]:
    """Where all values of a place have one length, which is usual, where they lie is arithmetic."""
    assert gathered.of is not None
    lengths = column.widths.take(gathered.of)
    views = np.zeros(len(gathered), dtype=VIEW)
    views["length"], views["buffer"] = lengths, gathered.of
    views["offset"] = column.firsts.take(gathered.of) + gathered.rows * lengths
    return views


def _views_of_any(gathered: GatheredRows, column: ColumnOfSources) -> NDArray[np.void]:
    """Short ones, those of different lengths, nulls."""
    assert gathered.of is not None
    by_place = np.empty(len(gathered), dtype=VIEW)
    for (_, begin, rows), each in zip(gathered.pieces(), column.values, strict=True):
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
