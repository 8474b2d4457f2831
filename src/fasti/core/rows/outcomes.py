"""What became of messages that are finished, for those who ask later.

Remembered by age and count, as the topic's settings say; what is older is forgotten and answers
`gone`. Finishing is the hot path and asking is rare, so rows are only appended, in chunks of
65,536, and a chunk is sorted the first time that somebody looks something up in it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

_CHUNK_ROWS = 65_536
_CHUNK_ROWS_MIN = 64
# What is remembered of a message.
_ROW_BYTES = 17


class _Chunk:
    """Up to 65,536 finished messages in the order in which they finished."""

    def __init__(self, rows: int = _CHUNK_ROWS) -> None:
        self.sequence = np.empty(rows, dtype=np.int64)
        self.at_us = np.empty(rows, dtype=np.int64)
        self.state = np.empty(rows, dtype=np.uint8)
        self.filled = 0
        self._order: NDArray[np.intp] | None = None
        self._sorted: Int64s | None = None

    def append(self, sequences: Int64s, state: int, at_us: int) -> None:
        rows = slice(self.filled, self.filled + len(sequences))
        self.sequence[rows] = sequences
        self.at_us[rows] = at_us
        self.state[rows] = state
        self.filled += len(sequences)
        self._sorted = None

    def find(self, sequences: Int64s) -> NDArray[np.intp]:
        """The row of each sequence, or -1."""
        if self._sorted is None:
            self._order = np.argsort(self.sequence[: self.filled], kind="stable")
            self._sorted = self.sequence[self._order]
        assert self._order is not None
        if not self.filled:
            return np.full(len(sequences), -1, dtype=np.intp)
        place = np.searchsorted(self._sorted, sequences, side="right") - 1
        known = (place >= 0) & (self._sorted[place] == sequences)
        return np.where(known, self._order[place], -1)


class Outcomes:
    """The finished messages of one partition that are still remembered."""

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self.remembered = 0

    def remember(self, sequences: Int64s, state: int, at_us: int) -> None:
        """These finished at this moment."""
        self.remembered += len(sequences)
        while len(sequences):
            if not self._chunks or self._chunks[-1].filled == _CHUNK_ROWS:
                self._chunks.append(_Chunk(min(_CHUNK_ROWS, max(_CHUNK_ROWS_MIN, self.remembered))))
            chunk = self._chunks[-1]
            room = len(chunk.sequence) - chunk.filled
            if not room:
                self._chunks[-1] = self._enlarged(chunk)
                continue
            chunk.append(sequences[:room], state, at_us)
            sequences = sequences[room:]

    def take_back(self, count: int) -> None:
        """The last `count` did not finish after all: their transaction was void."""
        self.remembered -= count
        while count:
            chunk = self._chunks[-1]
            removed = min(count, chunk.filled)
            chunk.filled -= removed
            chunk._sorted = None
            count -= removed
            if not chunk.filled:
                self._chunks.pop()

    @property
    def size_bytes(self) -> int:
        """What it takes: full chunks, and the last one, which grows."""
        if not self._chunks:
            return 0
        room = len(self._chunks[-1].sequence) - self._chunks[-1].filled
        return (self.remembered + room) * _ROW_BYTES

    def find(self, sequences: Int64s, since_us: int) -> tuple[NDArray[np.uint8], Int64s]:
        """State and time of each (0 where forgotten), counting only what finished since then."""
        states = np.zeros(len(sequences), dtype=np.uint8)
        times = np.zeros(len(sequences), dtype=np.int64)
        for chunk in self._chunks:
            rows = chunk.find(sequences)
            found = np.flatnonzero(rows >= 0)
            found = found[chunk.at_us[rows[found]] >= since_us]
            states[found] = chunk.state[rows[found]]
            times[found] = chunk.at_us[rows[found]]
        return states, times

    def forget(self, before_us: int, count_max: int) -> None:
        """Drops whole chunks that are too old, or more than the setting allows."""
        while len(self._chunks) > 1:
            first = self._chunks[0]
            if first.at_us[first.filled - 1] >= before_us and (
                self.remembered - first.filled < count_max
            ):
                return
            self._chunks.popleft()
            self.remembered -= first.filled

    def columns(self) -> dict[str, NDArray[Any]]:
        """Everything remembered, in order, for a checkpoint."""
        names = ("sequence", "at_us", "state")
        return {
            name: np.concatenate([getattr(c, name)[: c.filled] for c in self._chunks])
            if self._chunks
            else np.zeros(0, dtype=np.int64)
            for name in names
        }

    def restore(self, columns: dict[str, NDArray[Any]]) -> None:
        """Back from `columns`."""
        sequence, at_us, state = columns["sequence"], columns["at_us"], columns["state"]
        self._chunks.clear()
        for begin in range(0, len(sequence), _CHUNK_ROWS):
            part = slice(begin, begin + _CHUNK_ROWS)
            chunk = _Chunk(len(sequence[part]))
            chunk.sequence[:], chunk.at_us[:] = sequence[part], at_us[part]
            chunk.state[:] = state[part]
            chunk.filled = len(chunk.sequence)
            self._chunks.append(chunk)
        self.remembered = len(sequence)

    def _enlarged(self, chunk: _Chunk) -> _Chunk:
        larger = _Chunk(min(_CHUNK_ROWS, len(chunk.sequence) * 2))
        for name in ("sequence", "at_us", "state"):
            getattr(larger, name)[: chunk.filled] = getattr(chunk, name)[: chunk.filled]
        larger.filled = chunk.filled
        return larger
