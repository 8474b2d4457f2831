"""Occurrences on their way: pieces of several chunks that travel as one command.

Thousands of schedules with as many timings would be thousands of commands; those that go to the same
topic share one. One thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker.cron.emission import CHUNK_ROWS, Chunk
from fasti.broker.cron.groups import Due, Group
from fasti.core.cron.commands import Fire
from fasti.core.keys import Rows

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class Piece:
    """An occurrence of schedules of a chunk, and how to take back what was assumed of it.

    `numbers` are the chunk's: as long as the chunk has them it was not built anew.
    """

    group: Group
    chunk: Chunk
    numbers: Int64s
    versions: Int64s
    places: NDArray[np.intp] | slice
    before_us: Int64s
    due: Due
    due_us: Int64s
    batch: pa.RecordBatch


class Parcel:
    """Pieces for one topic, at most 5,000 rows unless it is one piece."""

    def __init__(self, topic: str, target: str) -> None:
        self.topic, self.target = topic, target
        self.pieces: list[Piece] = []
        self._chunks: set[int] = set()
        self._rows = 0

    def takes(self, piece: Piece) -> bool:
        """Whether there is room, and none of its schedules stands here already."""
        room = self._rows + len(piece.due_us) <= CHUNK_ROWS
        return room and id(piece.chunk) not in self._chunks

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self._chunks.add(id(piece.chunk))
        self._rows += len(piece.due_us)

    def command(self) -> Fire:
        pieces = self.pieces
        batches = [piece.batch for piece in pieces]
        sizes = [len(piece.due_us) for piece in pieces]
        return Fire(
            self.topic,
            self.target,
            np.concatenate([piece.numbers[piece.places] for piece in pieces]),
            np.concatenate([piece.versions for piece in pieces]),
            np.repeat(np.array([piece.due.at_us for piece in pieces], dtype=np.int64), sizes),
            np.concatenate([piece.due_us for piece in pieces]),
            Rows(batches[0] if len(batches) == 1 else pa.concat_batches(batches)),
        )
