"""Payloads by location: from frames still in memory, from the journal, or from run blocks.

Threads: `gather` from any thread, also while the committer appends and a checkpoint installs.
`keep` is the sequencer's. What was decoded lately is cached, a bounded number of batches.

A block or frame is checked against its checksum when it is first read: no payload that the disk
has changed is ever handed out, nor copied into a new block under a fresh checksum. Of what is damaged
the rows that are not can be read (damaged_rows.py); asking for another one raises `Corruption`, unless
the caller says `lost=True`: then it has nulls there, and `damaged` tells which rows they are.

A location is good for as long as its message is there, unless a checkpoint moves it: then `Gone`
or `NotFound` tells whoever held on to it without a snapshot, and the message has a newer one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.core.keys import Rows
from fasti.core.rows.location import ROW_BITS, is_in_run, number_of, row_of
from fasti.errors import Corruption, NotFound, StorageFailed
from fasti.storage.blocks import BlockStore
from fasti.storage.damaged_rows import Salvaged, nothing_left, salvage
from fasti.storage.damages import DamagedFile, Damages
from fasti.storage.event_codec import decode_rows
from fasti.storage.journal import JournalReader
from fasti.storage.runs import PAYLOAD_SCHEMA, number_in
from fasti.storage.seals import unseal

Int64s = NDArray[np.int64]

# A batch of one row holds on to kilobytes, whatever it says of its bytes: its objects, and the piece
# of the network's buffer that it came in. So batches are counted too, and small ones are kept as the
# few bytes that the journal has of them.
_BATCHES_MAX = 4096
_SMALL_BYTES = 4096
# The function behind `Array.take`, without the look-ups and checks around it: many small calls.
_TAKE = pc.get_function("array_take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)
_FEW = 256
# From how many places on values are gathered by views.
_MANY = 8
# What Arrow calls a view of a value, but for short ones, which stand in it themselves. Its second field
# has the first four bytes, for comparisons; nothing compares these.
_VIEW = np.dtype([("length", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])
_INLINE_BYTES = 12
_NO_BYTES = pa.py_buffer(b"")
_VIEWS = {pa.binary(): pa.binary_view(), pa.string(): pa.string_view()}


class _Values:
    """The values of a column of bytes or text, of which none is null."""

    __slots__ = ("bytes", "data", "ends", "shortest", "width")

    def __init__(self, data: pa.Buffer, ends: NDArray[np.int32]) -> None:
        self.data, self.ends = data, ends
        self.bytes = np.frombuffer(data, dtype=np.uint8)
        lengths = np.diff(ends)
        self.shortest = int(lengths.min()) if len(lengths) else 0
        # Of all; 0 if they differ.
        self.width = self.shortest if self.shortest * len(lengths) == ends[-1] - ends[0] else 0


class _Stored:
    """A frame's or block's rows as they were written. Never changed."""

    __slots__ = ("_values", "_widest", "at_us", "batch", "columns", "damaged", "found", "names")

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
        self.columns: dict[str, pa.Array] = dict(
            zip(batch.schema.names, batch.columns, strict=True)
        )
        # Most frames have the same: what they have together is found by few comparisons.
        self.names = tuple(self.columns)
        self._widest = 0
        self._values: dict[str, _Values | None] = {}

    @property
    def size_bytes(self) -> int:
        """What is counted of it."""
        return int(self.batch.nbytes)

    def stored(self) -> _Stored:
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

    def values(self, name: str) -> _Values | None:
        """Where a column's values lie, unless some are null or it has another type than bytes or text."""
        if name not in self._values:
            column = self.columns.get(name)
            self._values[name] = None if column is None else _values_of(column)
        return self._values[name]

    @property
    def widest(self) -> int:
        """No row has more bytes than this, about."""
        if not self._widest:
            sizes = _row_bytes(self.columns, np.arange(self.batch.num_rows))
            self._widest = int(sizes.max(initial=1))
        return self._widest


class _Small:
    """A frame of few bytes, as the journal has it, to be decoded by who asks for it."""

    __slots__ = ("_at_us", "_encoded", "_schema")

    def __init__(self, rows: Rows, at_us: int) -> None:
        self._encoded, self._at_us = rows.encoded, at_us
        self._schema = _schema_of(tuple(rows.batch.schema.names))

    @property
    def size_bytes(self) -> int:
        return int(self._encoded.size)

    def stored(self) -> _Stored:
        return _Stored(pa.ipc.read_record_batch(self._encoded, self._schema), self._at_us)


class _Place:
    """Rows that are wanted of one frame or block, and where they stand among all."""

    __slots__ = ("begin", "count", "stored")

    def __init__(self, stored: _Stored, begin: int, count: int) -> None:
        self.stored, self.begin, self.count = stored, begin, count


# The order in which rows were sorted by their place (None: as given), their rows, and the places.
_Found = tuple[NDArray[np.intp] | None, Int64s, list[_Place]]


class Payloads:
    """Reads payload rows."""

    def __init__(
        self,
        journal: JournalReader,
        blocks: BlockStore,
        names: dict[int, str] | None = None,
        kept_bytes: int = 32 << 20,
    ) -> None:
        self._journal, self._blocks = journal, blocks
        # What the payloads of each block are called. Never changed: replaced as a whole.
        self.names = names or {}
        self._kept: OrderedDict[int, _Stored | _Small] = OrderedDict()
        self._kept_bytes, self._kept_bytes_max = 0, kept_bytes
        self._cache: OrderedDict[tuple[bool, int], _Stored] = OrderedDict()
        self._lock = threading.Lock()
        self.damages = Damages()
        # Whether the manifest names a block: one that isn't there has not moved then, it is lost.
        self.is_named: Callable[[str], bool] = lambda name: False

    def keep(self, frame: int, rows: Rows, at_us: int) -> None:
        """A frame that is on its way to the journal, and may be asked for before it is there."""
        small = rows.batch.nbytes <= _SMALL_BYTES
        kept = _Small(rows, at_us) if small else _Stored(rows.batch, at_us)
        with self._lock:
            self._kept[frame] = kept
            self._kept_bytes += kept.size_bytes
            written = self._journal.last_sequence
            while self._kept_bytes > self._kept_bytes_max or len(self._kept) > _BATCHES_MAX:
                oldest = next(iter(self._kept))
                if oldest > written:
                    return
                self._kept_bytes -= self._kept.pop(oldest).size_bytes

    def gather(
        self,
        locations: Int64s,
        bytes_max: int | None = None,
        names: tuple[str, ...] | None = None,
        lost: bool = False,
    ) -> pa.RecordBatch:
        """The payload rows at these places, in this order, with every column of the schema.

        With `bytes_max`, from the first on only as many as have about so many bytes; at least one.
        With `names`, these columns alone. With `lost`, values that can't be read are null; without,
        they raise `Corruption`.
        """
        found = self._find(locations)
        if bytes_max is not None:
            count = self._fitting(locations, found, bytes_max)
            if count < len(locations):
                found = self._find(locations[:count])
        order, rows, places = found
        schema = PAYLOAD_SCHEMA if names is None else _schema_of(names)
        if not lost:
            _refuse_damaged(places, rows, schema.names)
        if len(places) == 1 and _consecutive(rows):
            columns = _sliced(places[0], int(rows[0]), schema)
        else:
            present = {name for names in {place.stored.names for place in places} for name in names}
            columns = [
                _joined(field, places, rows, order)
                if field.name in present
                else _left_out(field, places, order)
                for field in schema
            ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def damaged(self, locations: Int64s) -> NDArray[np.bool_]:
        """Which of these rows have lost something."""
        order, rows, places = self._find(locations)
        lost = np.zeros(len(locations), dtype=np.bool_)
        for place in places:
            if place.stored.damaged is not None:
                end = place.begin + place.count
                lost[place.begin : end] = place.stored.damaged["payload"][rows[place.begin : end]]
        if order is not None:
            lost[order] = lost.copy()
        return lost

    def is_damaged(self, block: int) -> bool:
        """Whether a block has lost something. Reads it, unless that was done lately."""
        return self._stored(True, block).damaged is not None

    def lost_at(self, location: int) -> NDArray[np.bool_] | None:
        """Which rows of the frame or block that a location lies in have lost something."""
        place = np.array([location], dtype=np.int64)
        stored = self._stored(bool(is_in_run(place)[0]), int(number_of(place)[0]))
        return None if stored.damaged is None else stored.damaged["payload"]

    def look_again(self) -> None:
        """Forgets what was found damaged: its file may have been restored."""
        with self._lock:
            for key in [k for k, stored in self._cache.items() if stored.damaged is not None]:
                del self._cache[key]
                if key[0] and key[1] in self.names:
                    self._blocks.let_go(self.names[key[1]])
        self.damages.forget(lambda file: file.endswith(".payloads"))

    def forget_block(self, name: str) -> None:
        """The next read of this object finds what is on the disk then."""
        with self._lock:
            self._cache.pop((True, number_in(name)), None)
        self._blocks.let_go(name)

    def batch_at(self, location: int) -> tuple[pa.RecordBatch, int]:
        """The whole frame or block that a location lies in, with the columns that it has, and when
        it was written (0 for a block, whose rows say it themselves).
        """
        place = np.array([location], dtype=np.int64)
        stored = self._stored(bool(is_in_run(place)[0]), int(number_of(place)[0]))
        return stored.batch, stored.at_us

    def fitting(self, locations: Int64s, bytes_max: int) -> int:
        """How many of these rows, from the first on, have about so many bytes; at least one."""
        return self._fitting(locations, self._find(locations), bytes_max)

    def _fitting(self, locations: Int64s, found: _Found, bytes_max: int) -> int:
        _, rows, places = found
        if len(places) == 1 and places[0].stored.batch.nbytes <= bytes_max and _consecutive(rows):
            # Each row once: a row that is named often may have more bytes than all of its frame.
            return len(locations)
        if sum(place.count * place.stored.widest for place in places) <= bytes_max:
            return len(locations)
        ends = np.cumsum(self.sizes(locations))
        return max(1, int(np.searchsorted(ends, bytes_max, side="right")))

    def sizes(self, locations: Int64s) -> Int64s:
        """About how many bytes each of these rows has, so that nobody gathers too many."""
        order, rows, places = self._find(locations)
        sizes = np.zeros(len(locations), dtype=np.int64)
        for place in places:
            end = place.begin + place.count
            sizes[place.begin : end] = _row_bytes(place.stored.columns, rows[place.begin : end])
        if order is not None:
            sizes[order] = sizes.copy()
        return sizes

    def _find(self, locations: Int64s) -> _Found:
        """Rows by their place: the order in which they were sorted (None: as given), and where."""
        if not len(locations):
            return None, locations, []
        sources = locations >> ROW_BITS
        order = None
        if (sources[1:] < sources[:-1]).any():
            order = _sorting(sources)
            sources, locations = sources[order], locations[order]
        starts = np.flatnonzero(np.concatenate([[True], sources[1:] != sources[:-1]]))
        firsts = locations[starts]
        keys = list(zip(is_in_run(firsts).tolist(), number_of(firsts).tolist(), strict=True))
        begins = starts.tolist()
        ends = [*begins[1:], len(locations)]
        places = [
            _Place(stored or self._stored(*key), begin, end - begin)
            for key, stored, begin, end in zip(keys, self._known(keys), begins, ends, strict=True)
        ]
        return order, row_of(locations), places

    def _known(self, keys: list[tuple[bool, int]]) -> list[_Stored | None]:
        """What of these is in memory, by one look: a delivery may have a hundred places."""
        cache, kept = self._cache, self._kept
        with self._lock:
            for key in keys:
                if key in cache:
                    cache.move_to_end(key)
            known = [cache.get(key) or (None if key[0] else kept.get(key[1])) for key in keys]
        return [None if each is None else each.stored() for each in known]

    def forget(self, in_run: bool, wanted: Callable[[int], bool]) -> None:
        """Drops cached batches whose frame or block is not wanted any more."""
        with self._lock:
            for key in [k for k in self._cache if k[0] == in_run and not wanted(k[1])]:
                stored = self._cache.pop(key)
                if stored.found is not None:
                    self.damages.forget(stored.found.file.__eq__)
            if not in_run:
                for frame in [f for f in self._kept if not wanted(f)]:
                    self._kept_bytes -= self._kept.pop(frame).size_bytes

    def _stored(self, in_run: bool, number: int) -> _Stored:
        """A frame or block, from memory if it was asked for lately."""
        with self._lock:
            found = self._cache.get((in_run, number))
            if found is not None:
                self._cache.move_to_end((in_run, number))
                return found
            kept = None if in_run else self._kept.get(number)
        if kept is not None:
            return kept.stored()
        found = self._read_block(number) if in_run else self._read_frame(number)
        if found.found is not None:
            self.damages.note(found.found)
        with self._lock:
            self._cache[in_run, number] = found
            while len(self._cache) > _BATCHES_MAX:
                self._cache.popitem(last=False)
        return found

    def _read_block(self, number: int) -> _Stored:
        name = self.names.get(number)
        if name is None:
            raise NotFound(f"block {number} is not there any more")
        try:
            data = self._blocks.get(name)
        except NotFound as error:
            if not self.is_named(name):
                raise
            return _salvaged(nothing_left(), f"blocks/{name}", 0, error.message)
        except StorageFailed:
            # A bad sector costs what lies in it. A disk that gives nothing may come back: that raises.
            data = self._blocks.readable(name)
        try:
            batch = unseal(data, name)
        except Corruption as error:
            left = salvage(data)
            # Not a view of the file, and the file may be replaced by a good one.
            self._blocks.let_go(name)
            return _salvaged(left, f"blocks/{name}", left.offset, error.message)
        payloads = batch.column("payload")
        if not payloads.null_count:  # Known from the head: nothing is counted.
            return _Stored(batch, 0)
        lost = payloads.is_null().to_numpy(zero_copy_only=False)
        return _Stored(batch, 0, {"payload": lost})

    def _read_frame(self, number: int) -> _Stored:
        try:
            rows, at_us = decode_rows(self._journal.body(number))
        except Corruption as error:
            file, offset = str(error.details["file"]), int(error.details["offset"])
            return _salvaged(nothing_left(), file, offset, error.message)
        assert rows is not None, "a location names a frame with payloads"
        return _Stored(rows.batch, at_us)


def _salvaged(left: Salvaged, file: str, offset: int, message: str) -> _Stored:
    rows = None if left is nothing_left() else left.rows
    return _Stored(left.batch, 0, left.damaged, DamagedFile(file, offset, message, rows))


def _refuse_damaged(places: list[_Place], rows: Int64s, names: list[str]) -> None:
    for place in places:
        if place.stored.damaged is None:
            continue
        lost = place.stored.lost(names)[rows[place.begin : place.begin + place.count]]
        if lost.any():
            found = place.stored.found
            where = "a block" if found is None else found.file
            raise Corruption(
                f"{where}: {int(lost.sum())} of {place.count} rows that were asked for can't be read",
                file=where,
                offset=0 if found is None else found.offset,
            )


@lru_cache(maxsize=64)
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([PAYLOAD_SCHEMA.field(name) for name in names])


def _sorting(sources: Int64s) -> NDArray[np.intp]:
    """The order that sorts them, and keeps those that are equal as they stand."""
    low = int(sources.min())
    if int(sources.max()) - low < 1 << 16:
        # Frames that were written one after another: numpy sorts small numbers without comparing.
        return np.argsort((sources - low).astype(np.uint16), kind="stable")
    return np.argsort(sources, kind="stable")


def _consecutive(rows: Int64s) -> bool:
    return len(rows) == 1 or (
        int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] > rows[:-1]).all())
    )


def _sliced(place: _Place, begin: int, schema: pa.Schema) -> list[pa.Array]:
    """Rows that lie behind each other, as most deliveries': nothing is copied."""
    found = []
    for field in schema:
        column = place.stored.columns.get(field.name)
        if column is not None:
            column = column.slice(begin, place.count)
        if field.name == "created_us" and (column is None or column.null_count):
            written = pa.array(_written_us([place]))
            column = written if column is None else pc.coalesce(column, written)
        found.append(_nulls(field, place.count) if column is None else column)
    return found


def _nulls(field: pa.Field, count: int) -> pa.Array:
    """A column that most messages leave out."""
    return _few_nulls(field.type, count) if count <= _FEW else pa.nulls(count, field.type)


# A small delivery costs mostly such calls. Not slices of a longer one: its null maps would travel
# whole.
_few_nulls = lru_cache(maxsize=256)(lambda kind, count: pa.nulls(count, kind))


def _row_bytes(columns: dict[str, pa.Array], rows: Int64s) -> Int64s:
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


def _left_out(field: pa.Field, places: list[_Place], order: NDArray[np.intp] | None) -> pa.Array:
    """A column that no place has."""
    if field.name == "created_us":
        return _put_back(pa.array(_written_us(places)), order)
    return _nulls(field, places[-1].begin + places[-1].count if places else 0)


def _joined(
    field: pa.Field, places: list[_Place], rows: Int64s, order: NDArray[np.intp] | None
) -> pa.Array:
    """One column of all places, some of which may have left it out, in the order asked for."""
    name = field.name
    if len(places) > _MANY and field.type in _VIEWS:
        joined = _joined_by_views(field, places, rows, order)
        if joined is not None:
            return joined
    wanted = pa.array(rows)
    arrays = []
    for place in places:
        column = place.stored.columns.get(name)
        if column is None:
            arrays.append(_nulls(field, place.count))
        else:
            arrays.append(_TAKE.call([column, wanted.slice(place.begin, place.count)], _UNCHECKED))
    joined = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
    if name == "created_us" and joined.null_count:
        joined = pc.coalesce(joined, pa.array(_written_us(places)))
    return _put_back(joined, order)


def _joined_by_views(
    field: pa.Field, places: list[_Place], rows: Int64s, order: NDArray[np.intp] | None
) -> pa.Array | None:
    """The same for bytes and text: numpy says where each value lies, and Arrow copies them at once.

    None where one is null.
    """
    found = [place.stored.values(field.name) for place in places]
    values = [each for each in found if each is not None]
    if len(values) < len(places):
        return None
    counts = [place.count for place in places]
    views = np.zeros(len(rows), dtype=_VIEW)
    views["buffer"] = np.repeat(np.arange(len(places), dtype=np.int32), counts)
    if all(each.width for each in values):
        widths = np.repeat(np.array([each.width for each in values], dtype=np.int64), counts)
        firsts = np.repeat(np.array([each.ends[0] for each in values], dtype=np.int64), counts)
        views["offset"], views["length"] = firsts + rows * widths, widths
    else:
        begins, ends = np.empty((2, len(rows)), dtype=np.int32)
        behind = rows + 1
        for place, each in zip(places, values, strict=True):
            piece = slice(place.begin, place.begin + place.count)
            each.ends.take(rows[piece], out=begins[piece], mode="clip")
            each.ends.take(behind[piece], out=ends[piece], mode="clip")
        views["offset"], views["length"] = begins, ends - begins
    if int(views["length"].sum(dtype=np.int64)) >= 1 << 31:
        return None
    if any(each.shortest <= _INLINE_BYTES for each in values):
        _put_short_ones(views, places, values)
    if order is not None:
        sorted_, views = views, np.empty_like(views)
        views[order] = sorted_
    buffers = [None, pa.py_buffer(views), *(each.data for each in values)]
    return pa.Array.from_buffers(_VIEWS[field.type], len(rows), buffers).cast(field.type)


def _put_short_ones(views: NDArray[np.void], places: list[_Place], values: list[_Values]) -> None:
    """Into the views themselves, in the place of where they lie."""
    windows = views["offset"][:, None] + np.arange(_INLINE_BYTES)
    contents = np.empty(windows.shape, dtype=np.uint8)
    for place, each in zip(places, values, strict=True):
        piece = slice(place.begin, place.begin + place.count)
        if each.data.size:
            each.bytes.take(windows[piece], out=contents[piece], mode="clip")
    short = views["length"] <= _INLINE_BYTES
    views.view(np.uint8).reshape(len(views), -1)[short, 4:] = contents[short]


def _values_of(column: pa.Array) -> _Values | None:
    if column.null_count or column.type not in _VIEWS:
        return None
    return _Values(column.buffers()[2] or _NO_BYTES, _offsets(column))


def _written_us(places: list[_Place]) -> Int64s:
    moments = np.array([place.stored.at_us for place in places], dtype=np.int64)
    return np.repeat(moments, [place.count for place in places])


def _put_back(column: pa.Array, order: NDArray[np.intp] | None) -> pa.Array:
    """From the order of places to the order asked for."""
    if order is None:
        return column
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return _TAKE.call([column, pa.array(back)], _UNCHECKED)
