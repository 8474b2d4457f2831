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

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core.keys import Rows
from fasti.core.rows.location import ROW_BITS, is_in_run, number_of
from fasti.errors import Corruption, NotFound, StorageFailed
from fasti.storage.blocks import BlockStore
from fasti.storage.damaged_rows import Salvaged, nothing_left, salvage
from fasti.storage.damages import DamagedFile, Damages
from fasti.storage.event_codec import decode_rows
from fasti.storage.gathering import MANY, GatheredRows, Sources, split_places
from fasti.storage.journal import JournalReader
from fasti.storage.runs import PAYLOAD_SCHEMA, number_in
from fasti.storage.seals import unseal
from fasti.storage.stored_rows import SmallFrame, StoredRows, row_bytes, schema_of

Int64s = NDArray[np.int64]

# A batch of one row holds on to kilobytes, whatever it says of its bytes: its objects, and the piece
# of the network's buffer that it came in. So batches are counted too, and small ones are kept as the
# few bytes that the journal has of them.
_BATCHES_MAX = 4096
_SMALL_BYTES = 4096


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
        self._kept: OrderedDict[int, StoredRows | SmallFrame] = OrderedDict()
        self._kept_bytes, self._kept_bytes_max = 0, kept_bytes
        self._cache: OrderedDict[tuple[bool, int], StoredRows] = OrderedDict()
        # What the last large gathering lay in: mostly the next one does, too.
        self._lately: Sources | None = None
        self._lock = threading.Lock()
        self.damages = Damages()
        # Whether the manifest names a block: one that isn't there has not moved then, it is lost.
        self.is_named: Callable[[str], bool] = lambda name: False

    def keep(self, frame: int, rows: Rows, at_us: int) -> None:
        """A frame that is on its way to the journal, and may be asked for before it is there."""
        small = rows.size_bytes <= _SMALL_BYTES
        kept = SmallFrame(rows, at_us) if small else StoredRows(rows.batch, at_us)
        with self._lock:
            self._kept[frame] = kept
            self._kept_bytes += kept.size_bytes
            written = self._journal.last_sequence
            while self._kept_bytes > self._kept_bytes_max or len(self._kept) > _BATCHES_MAX:
                oldest = next(iter(self._kept))
                if oldest > written:
                    return
                self._kept_bytes -= self._kept.pop(oldest).size_bytes

    def alone(self, location: int) -> SmallFrame | None:
        """The frame at a location if it is a message's that came alone, a short while ago."""
        with self._lock:
            # Blocks have numbers beyond those of frames.
            kept = self._kept.get(location >> ROW_BITS)
        return kept if isinstance(kept, SmallFrame) and kept.values is not None else None

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
        gathered = self._find(locations)
        if bytes_max is not None:
            count = self._fitting(gathered, bytes_max)
            if count < len(locations):
                gathered = self._find(locations[:count])
        schema = PAYLOAD_SCHEMA if names is None else schema_of(names)
        if not lost:
            _refuse_damaged(gathered, schema.names)
        return pa.RecordBatch.from_arrays(gathered.columns(schema), schema=schema)

    def damaged(self, locations: Int64s) -> NDArray[np.bool_]:
        """Which of these rows have lost something."""
        gathered = self._find(locations)
        lost = np.zeros(len(locations), dtype=np.bool_)
        for stored, begin, rows in gathered.pieces():
            if stored.damaged is not None:
                lost[begin : begin + len(rows)] = stored.damaged["payload"][rows]
        return gathered.put_back(lost)

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
            self._lately = None
            for key in [k for k, stored in self._cache.items() if stored.damaged is not None]:
                del self._cache[key]
                if key[0] and key[1] in self.names:
                    self._blocks.let_go(self.names[key[1]])
        self.damages.forget(lambda file: file.endswith(".payloads"))

    def forget_block(self, name: str) -> None:
        """The next read of this object finds what is on the disk then."""
        with self._lock:
            self._lately = None
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
        return self._fitting(self._find(locations), bytes_max)

    def _fitting(self, gathered: GatheredRows, bytes_max: int) -> int:
        if gathered.is_one_range() and gathered.stored[0].batch.nbytes <= bytes_max:
            # Each row once: a row that is named often may have more bytes than all of its frame.
            return len(gathered)
        if int(gathered.counts @ gathered.sources.widest) <= bytes_max:
            return len(gathered)
        ends = np.cumsum(_sizes(gathered))
        return max(1, int(np.searchsorted(ends, bytes_max, side="right")))

    def sizes(self, locations: Int64s) -> Int64s:
        """About how many bytes each of these rows has, so that nobody gathers too many."""
        return _sizes(self._find(locations))

    def _find(self, locations: Int64s) -> GatheredRows:
        """Rows, and the frames and blocks that they lie in."""
        lately = self._lately
        known_of = None if lately is None else lately.places_of(locations)
        if lately is not None and known_of is not None:
            return GatheredRows(locations, lately, known_of)
        firsts, of = split_places(locations)
        keys = list(zip(is_in_run(firsts).tolist(), number_of(firsts).tolist(), strict=True))
        stored = [
            known or self._stored(*key) for key, known in zip(keys, self._known(keys), strict=True)
        ]
        sources = Sources(stored)
        if len(stored) > MANY and not sources.damaged and sources.number(firsts):
            self._lately = sources
        return GatheredRows(locations, sources, of)

    def _known(self, keys: list[tuple[bool, int]]) -> list[StoredRows | None]:
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
            self._lately = None
            for key in [k for k in self._cache if k[0] == in_run and not wanted(k[1])]:
                stored = self._cache.pop(key)
                if stored.found is not None:
                    self.damages.forget(stored.found.file.__eq__)
            if not in_run:
                for frame in [f for f in self._kept if not wanted(f)]:
                    self._kept_bytes -= self._kept.pop(frame).size_bytes

    def _stored(self, in_run: bool, number: int) -> StoredRows:
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

    def _read_block(self, number: int) -> StoredRows:
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
            return StoredRows(batch, 0)
        lost = payloads.is_null().to_numpy(zero_copy_only=False)
        return StoredRows(batch, 0, {"payload": lost})

    def _read_frame(self, number: int) -> StoredRows:
        try:
            rows, at_us = decode_rows(self._journal.body(number))
        except Corruption as error:
            file, offset = str(error.details["file"]), int(error.details["offset"])
            return _salvaged(nothing_left(), file, offset, error.message)
        assert rows is not None, "a location names a frame with payloads"
        return StoredRows(rows.batch, at_us)


def _salvaged(left: Salvaged, file: str, offset: int, message: str) -> StoredRows:
    rows = None if left is nothing_left() else left.rows
    return StoredRows(left.batch, 0, left.damaged, DamagedFile(file, offset, message, rows))


def _refuse_damaged(gathered: GatheredRows, names: list[str]) -> None:
    if not gathered.sources.damaged:
        return
    for stored, _, rows in gathered.pieces():
        if stored.damaged is None:
            continue
        lost = stored.lost(names)[rows]
        if lost.any():
            found = stored.found
            where = "a block" if found is None else found.file
            raise Corruption(
                f"{where}: {int(lost.sum())} of {len(rows)} rows that were asked for can't be read",
                file=where,
                offset=0 if found is None else found.offset,
            )


def _sizes(gathered: GatheredRows) -> Int64s:
    sizes = np.zeros(len(gathered), dtype=np.int64)
    for stored, begin, rows in gathered.pieces():
        sizes[begin : begin + len(rows)] = row_bytes(stored.columns, rows)
    return gathered.put_back(sizes)
