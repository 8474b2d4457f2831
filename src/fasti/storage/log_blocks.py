"""Log blocks: where a checkpoint puts the rows of logs that lie in the journal only.

A log block holds rows of one partition that follow one another, of at most 65,536 rows and about
4 MiB. It is one object, a payloads object like those of runs, and each of its rows says when it was
appended. The manifest names the blocks with their offsets, so there is nothing to read at a start:
blocks of a partition follow one another from its earliest row to the checkpoint's last, and the
journal goes on from there.

A block is never changed. The last one of a partition is written again, with what came since, while
it is small, so that many checkpoints of a slow log don't leave as many crumbs. Blocks of which
retention has dropped every row are not named any more by the next manifest, and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core.capsule import Capsule
from fasti.core.engine import Engine
from fasti.core.log.body import log_of
from fasti.core.log.commands import LogPiece, LogsInstalled
from fasti.core.log.partition import LogTail
from fasti.core.rows.location import in_block
from fasti.errors import Corruption
from fasti.storage.log_rows import locations, read_piece
from fasti.storage.payloads import Payloads
from fasti.storage.runs import BLOCK_BYTES_MAX, BLOCK_ROWS_MAX, object_name, used_columns
from fasti.storage.seals import seal

Int64s = NDArray[np.int64]
Place = tuple[int, int]
Tails = dict[Place, LogTail]

_SMALL_ROWS = 16_384
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogBlock:
    """A log block as the manifest lists it."""

    number: int
    # Of the opening of the journal that wrote it.
    epoch: int
    topic: int
    partition: int
    first_offset: int
    rows: int
    size_bytes: int
    first_us: int
    last_us: int

    @property
    def name(self) -> str:
        return object_name(self.epoch, self.number, "payloads")

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def end(self) -> int:
        """The offset behind its last row."""
        return self.first_offset + self.rows

    @property
    def is_small(self) -> bool:
        """Whether it is worth writing again with what came since."""
        return self.rows < _SMALL_ROWS and self.size_bytes < _SMALL_BYTES

    def to_list(self) -> list[int]:
        """As plain values, for the manifest, which may have many."""
        return [
            *(self.number, self.epoch, self.topic, self.partition, self.first_offset),
            *(self.rows, self.size_bytes, self.first_us, self.last_us),
        ]

    @classmethod
    def from_list(cls, values: list[int]) -> LogBlock:
        return cls(*values)


@dataclass(slots=True)
class LogsWritten:
    """The blocks of the next manifest, and what the engine is to learn of the new ones."""

    blocks: list[LogBlock]
    installs: list[LogsInstalled]


class LogWriter:
    """Writes the rows of logs, for one checkpoint. `store` gives an object's size."""

    def __init__(
        self,
        payloads: Payloads,
        epoch: int,
        take_number: Callable[[], int],
        store: Callable[[str, list[Any]], int],
    ) -> None:
        self._payloads, self._epoch = payloads, epoch
        self._take_number, self._store = take_number, store

    def write(self, old: list[LogBlock], capsule: Capsule, tails: Tails) -> LogsWritten:
        """What stays of the old blocks, and new ones for what lies in the journal."""
        earliest = earliest_offsets(capsule)
        retained = [block for block in old if block.end > earliest.get(block.place, block.end)]
        last = {block.place: block for block in sorted(retained, key=lambda block: block.end)}
        written = LogsWritten([], [])
        again: set[int] = set()
        for place, tail in sorted(tails.items()):
            pieces: list[Iterable[LogPiece]] = [tail.pieces()]
            before = last.get(place)
            if before is not None and before.is_small and not self._is_damaged(before):
                pieces.insert(0, [_whole(before, tail.earliest)])
                again.add(before.number)
            blocks = list(self._write_blocks(place, pieces))
            assert blocks[-1].end == tail.next_offset, "every row is written"
            written.blocks += blocks
            written.installs.append(_install(place, blocks))
        written.blocks += [block for block in retained if block.number not in again]
        written.blocks.sort(key=lambda block: (block.place, block.first_offset))
        return written

    def _is_damaged(self, block: LogBlock) -> bool:
        """Whether a block is better left as it is."""
        return self._payloads.is_damaged(block.number)

    def _write_blocks(self, place: Place, pieces: list[Iterable[LogPiece]]) -> Iterator[LogBlock]:
        """Blocks of rows that follow one another."""
        gathered: list[pa.RecordBatch] = []
        rows = size_bytes = first = 0
        for piece, batch in self._batches(pieces):
            full = rows + batch.num_rows > BLOCK_ROWS_MAX
            if gathered and (full or size_bytes + batch.nbytes > BLOCK_BYTES_MAX):
                yield self._write_block(place, first, gathered)
                gathered, rows, size_bytes = [], 0, 0
            if not gathered:
                first = piece.first_offset
            gathered.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
        yield self._write_block(place, first, gathered)

    def _batches(
        self, pieces: list[Iterable[LogPiece]]
    ) -> Iterator[tuple[LogPiece, pa.RecordBatch]]:
        for group in pieces:
            for piece in group:
                batch = read_piece(self._payloads, piece)
                if batch.nbytes <= BLOCK_BYTES_MAX:
                    yield piece, batch
                    continue
                for begin, end in self._cuts(piece):
                    part = LogPiece(piece.first_offset + begin, end - begin, 0, 0)
                    yield part, batch.slice(begin, end - begin)

    def _cuts(self, piece: LogPiece) -> Iterator[tuple[int, int]]:
        """Of a piece that is too large for a block, rows that are not; one at least."""
        ends = np.cumsum(self._payloads.sizes(locations(piece)))
        cuts = [0]
        while cuts[-1] < piece.count:
            limit = BLOCK_BYTES_MAX + (int(ends[cuts[-1] - 1]) if cuts[-1] else 0)
            cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, limit, side="right"))))
        return pairwise(cuts)

    def _write_block(self, place: Place, first: int, gathered: list[pa.RecordBatch]) -> LogBlock:
        table = pa.Table.from_batches(gathered).combine_chunks()
        (batch,) = table.to_batches()
        times = batch.column("created_us")
        times_us = times[0].as_py(), times[len(batch) - 1].as_py()
        block = LogBlock(self._take_number(), self._epoch, *place, first, len(batch), 0, *times_us)
        return replace(block, size_bytes=self._store(block.name, seal(used_columns(batch))))


def earliest_offsets(capsule: Capsule) -> dict[Place, int]:
    """The first row of each partition of each log, when a checkpoint began."""
    return {
        (topic["number"], number): partition["earliest"]
        for topic in capsule.head["topics"]
        if topic["settings"]["kind"] == "log"
        for number, partition in enumerate(topic["kind"]["partitions"])
    }


def restore(engine: Engine, blocks: list[LogBlock]) -> None:
    """After the state block: where the rows of logs lie. Raises `Corruption` if some don't."""
    by_place: dict[Place, list[LogBlock]] = {}
    for block in sorted(blocks, key=lambda block: block.first_offset):
        by_place.setdefault(block.place, []).append(block)
    for topic in engine.state.topics.values():
        if topic.settings.kind != "log":
            continue
        partitions = log_of(topic).partitions
        numbers = {number for its, number in by_place if its == topic.number}
        for number in sorted(numbers.union(partitions.numbers())):
            partition, mine = partitions[number], by_place.get((topic.number, number), [])
            try:
                partition.restore_blocks([_described(block) for block in mine])
            except AssertionError as error:
                raise Corruption(
                    f"log {topic.name!r}, partition {partition.number}: {error}",
                    file="blocks/MANIFEST",
                    offset=0,
                ) from error


def installs_of(old: list[LogBlock], new: list[LogBlock]) -> list[LogsInstalled]:
    """What an engine that knows the old blocks is to learn of the new ones, which follow one another."""
    known = {block.number for block in old}
    by_place: dict[Place, list[LogBlock]] = {}
    for block in sorted(new, key=lambda block: block.first_offset):
        if block.number not in known:
            by_place.setdefault(block.place, []).append(block)
    return [_install(place, blocks) for place, blocks in sorted(by_place.items())]


def _whole(block: LogBlock, earliest: int) -> LogPiece:
    """What is left of a block, as a piece."""
    first = max(block.first_offset, earliest)
    row = np.int64(first - block.first_offset)
    location = int(in_block(block.number, np.asarray(row)))
    return LogPiece(first, block.end - first, location, block.first_us)


def _install(place: Place, blocks: list[LogBlock]) -> LogsInstalled:
    described = [_described(block) for block in blocks]
    return LogsInstalled(*place, blocks[0].first_offset, blocks[-1].end, described)


def _described(block: LogBlock) -> tuple[int, int, int, int, int]:
    return block.first_offset, block.rows, block.number, block.first_us, block.last_us
