"""Open messages: the rows of `messages` that can still change, and how a step finds those that it changes.

Files of the table hold either finished messages, which never change again, or open ones. A step knows
of most messages all that there is to know: it has their first transition. For the others it looks
into the files of open messages: `Split` writes the rows that go on to one side, and what is left of the
file anew. A file in which no row goes on stays as it is; by the bounds of ids some need not be opened,
and of the others two columns are read.

The work of a step therefore grows with what is new and with the files in which something goes on. So
files are small, and a task's rows lie in them by due time: what happens to messages mostly happens
when they are due. If something happens to a message of each file, all open messages are written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fasti.pipeline import silver
from fasti.pipeline.files import DataFile, folder_of
from fasti.pipeline.groups import Ints, Mask
from fasti.pipeline.lake import is_finished
from fasti.pipeline.shared import attempt_id

# What a task folds in memory is at most about so many rows.
FOLD_ROWS = 250_000
# A file of open messages has at most so many.
FILE_ROWS = 50_000
# Fewer open messages than this, or than a step has rows, are folded with every step.
FEW_ROWS = 200_000
# So many files with less than a quarter of a file's rows are made into large ones.
SMALL_FILES_MAX = 32
# The folder of a staging directory for rows that are not a message's whole.
PARTIAL = "partial"
OPEN_FOLDER = folder_of({"level": "1", "day": None})
SPLIT_ROW = "source int, path string, rows long"
_BATCH_ROWS = FILE_ROWS
# What tells messages apart to readers of bounds, which are known of a table's first columns alone.
_BOUNDS = ("topic_since", "id")


def is_open(file: DataFile) -> bool:
    """Whether its messages can change."""
    return not is_finished(file)


def divide(files: Sequence[DataFile], new_rows: int) -> tuple[list[DataFile], list[DataFile]]:
    """Files of open messages that are folded with a step of so many rows, and those it looks into."""
    if sum(file.rows for file in files) <= max(FEW_ROWS, new_rows):
        return list(files), []
    sides: tuple[list[DataFile], list[DataFile]] = [], []
    for file in files:
        sides[file.rows >= FILE_ROWS // 4].append(file)
    return sides if len(sides[0]) >= SMALL_FILES_MAX else ([], list(files))


class MessageNames:
    """The names of some messages, for whole columns of names to be looked up in."""

    def __init__(self, topic_no: Ints, number: Ints) -> None:
        self._topics, self._numbers = np.unique(topic_no), np.unique(number)
        self._pairs = np.unique(self._pair(topic_no, number))

    @classmethod
    def of(cls, paths: Sequence[Path]) -> MessageNames:
        """Those in these files."""
        pieces = [pq.read_table(path, columns=["topic_no", "id"]) for path in paths]
        rows = pa.concat_tables(pieces)
        return cls(rows.column("topic_no").to_numpy(), rows.column("id").to_numpy())

    def among(self, rows: pa.RecordBatch) -> Mask:
        """Which rows have one of the names."""
        topic_no, number = rows.column("topic_no").to_numpy(), rows.column("id").to_numpy()
        known = _within(self._topics, topic_no) & _within(self._numbers, number)
        known[known] = _within(self._pairs, self._pair(topic_no[known], number[known]))
        return known

    def _pair(self, topic_no: Ints, number: Ints) -> Ints:
        # Both by their rank: numbers of any size make a pair that is a number.
        ranks = np.searchsorted(self._topics, topic_no) * len(self._numbers)
        return ranks + np.searchsorted(self._numbers, number)


def _within(known: Ints, values: Ints) -> Mask:
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    mask: Mask = known[place] == values
    return mask


def may_go_on(files: Sequence[DataFile], paths: Sequence[Path]) -> list[DataFile]:
    """Those files that can have a row of a message that these paths have a part of."""
    pieces = [pq.read_table(path, columns=list(_BOUNDS)) for path in paths]
    rows = pa.concat_tables(pieces)
    columns = {name: rows.column(name).to_numpy() for name in _BOUNDS}

    def may_have(file: DataFile) -> bool:
        possible = np.ones(rows.num_rows, dtype=np.bool_)
        for name, values in columns.items():
            low, high = file.low.get(name), file.high.get(name)
            if low is not None and high is not None:
                possible &= (values >= low) & (values <= high)
        return bool(possible.any())

    return [file for file in files if may_have(file)]


@dataclass(frozen=True)
class Split:
    """What tasks do with files of open messages: rows that go on to one side, the others anew. Travels."""

    root: str
    staged: str
    # Files of the table, and those with the parts for which rows are looked up.
    sources: tuple[str, ...]
    parts: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of `mapInArrow`: rows are numbers of sources; gives `SPLIT_ROW`s of those that change."""
        for batch in batches:
            for number in batch.column("id").to_pylist():
                name = f"split-{number:05}-{attempt_id()}"
                rows = [(number, *file) for file in self._split(self.sources[number], name)]
                columns = zip(*rows, strict=True) if rows else ([], [], [])
                kinds = (pa.int32(), pa.string(), pa.int64())
                arrays = [pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, ["source", "path", "rows"])

    def _split(self, path: str, name: str) -> list[tuple[str, int]]:
        names = _names(self.staged, self.parts)
        # Batch by batch: a file can be larger than it should be.
        with pq.ParquetFile(Path(self.root) / path) as source:
            columns = ["topic_no", "id"]
            if not any(names.among(b).any() for b in source.iter_batches(columns=columns)):
                return []
            with (
                _Writer(self.staged, f"{OPEN_FOLDER}{name}") as left,
                _Writer(self.staged, f"{PARTIAL}/{name}") as aside,
            ):
                for batch in source.iter_batches(_BATCH_ROWS):
                    rows = pa.table(batch).select(silver.PARTS.names).cast(silver.PARTS)
                    going = names.among(batch)
                    left.write(rows.filter(pa.array(~going)))
                    aside.write(rows.filter(pa.array(going)))
        return [*left.written, *aside.written]


@lru_cache(maxsize=1)
def _names(staged: str, paths: tuple[str, ...]) -> MessageNames:
    """Read once by a worker, for all files that it splits in a step."""
    return MessageNames.of([Path(staged) / path for path in paths])


class _Writer:
    """Writes rows of parts into as many files as they fill; `written` has paths and rows."""

    def __init__(self, staged: str, name: str) -> None:
        self._staged, self._name = Path(staged), name
        self.written: list[tuple[str, int]] = []
        self._file: Any = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if self._file is None:
            path = f"{self._name}-{len(self.written)}.parquet"
            (self._staged / path).parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(
                self._staged / path, silver.PARTS, compression="zstd", compression_level=1
            )
            self.written.append((path, 0))
        self._file.write_table(rows)
        path, before = self.written[-1]
        self.written[-1] = path, before + rows.num_rows
        if before + rows.num_rows >= FILE_ROWS:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
