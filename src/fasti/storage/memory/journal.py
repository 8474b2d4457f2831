"""A `Journal` in memory.

It obeys the same rules as the one on files, and the same conformance suite runs on it, but nothing
outlives the object.  `reopened` gives a new one with what a crash would leave: what was synced.

Thread-safety: all methods, from any thread, under one lock.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fasti.errors import (
    Closed,
    Gone,
    NotFound,
    StorageFull,
)
from fasti.storage.frames import Frame, Sealed, StoredFrame, check_order, flattened, frame_bytes
from fasti.storage.journal import prove_nothing

if TYPE_CHECKING:
    from typing_extensions import Buffer

_UNLIMITED = 1 << 62


def joined(buffers: Sequence[Buffer]) -> memoryview:
    """A copy of the buffers, one after another."""
    return memoryview(b"".join(flattened(buffers)))


class MemoryJournal:
    """A `Journal` that is a list.

    ``limit_bytes`` bounds what it holds, of which ``reserve_bytes`` only ``use_reserve`` gets.
    """

    is_replicated = False
    prove = staticmethod(prove_nothing)

    def __init__(
        self,
        *,
        incarnation: int | None = None,
        epoch: int = 1,
        limit_bytes: int = _UNLIMITED,
        reserve_bytes: int = 0,
    ) -> None:
        self._lock = threading.Lock()
        self._frames: list[StoredFrame] = []
        self._first = 1
        self._synced = 0
        self._used = 0
        self._limit = limit_bytes
        self._reserve = reserve_bytes
        self._closed = False
        self._incarnation = secrets.randbits(63) if incarnation is None else incarnation
        self._epoch = epoch

    def reopened(self) -> MemoryJournal:
        """A new journal as a crash would have left it: only finished groups that were synced."""
        again = MemoryJournal(
            incarnation=self._incarnation,
            epoch=self._epoch + 1,
            limit_bytes=self._limit,
            reserve_bytes=self._reserve,
        )
        with self._lock:
            frames = self._frames[: self._synced - self._first + 1]
            while frames and not frames[-1].ends_group:
                frames.pop()
            again._first = self._first
            again._frames = frames
            again._synced = self._first + len(frames) - 1
            again._used = sum(frame_bytes(len(frame.body)) for frame in frames)
        return again

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def first_sequence(self) -> int:
        return self._first

    @property
    def last_sequence(self) -> int:
        return self._first + len(self._frames) - 1

    @property
    def synced_sequence(self) -> int:
        return self._synced

    def append(self, frames: Sequence[Frame], *, use_reserve: bool = False) -> None:
        bodies = [joined(frame.body) for frame in frames]
        size = sum(frame_bytes(len(body)) for body in bodies)
        with self._lock:
            self._check_open()
            in_group = bool(self._frames) and not self._frames[-1].ends_group
            check_order(frames, self.last_sequence, in_group)
            if size > self._limit - self._used - (0 if use_reserve else self._reserve):
                raise StorageFull("the memory journal is full")
            for frame, body in zip(frames, bodies, strict=True):
                group = (frame.begins_group, frame.ends_group)
                stored = StoredFrame(frame.sequence, frame.at_us, self._epoch, *group, body)
                self._frames.append(stored)
            self._used += size

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the journal is closed")

    def sync(self) -> int:
        with self._lock:
            self._check_open()
            self._synced = self.last_sequence
            return self._synced

    def mark(self) -> bool:
        with self._lock:
            self._check_open()
        return False

    def sync_end(self) -> bool:
        return self.mark()

    @property
    def end_problem(self) -> str | None:
        return None

    def replay(self, after: int) -> Iterator[StoredFrame]:
        with self._lock:
            self._check_open()
            if after < self._first - 1:
                raise Gone(f"frames after {after}: the journal begins with {self._first}")
            if after > self.last_sequence:
                raise NotFound(f"frames after {after}: it ends with {self.last_sequence}")
            end = max(0, self._synced - self._first + 1)
            frames = self._frames[after + 1 - self._first : end]
        while frames and not frames[-1].ends_group:
            frames.pop()
        return iter(frames)

    def body(self, sequence: int) -> memoryview:
        with self._lock:
            return self._frame(sequence).body

    def _frame(self, sequence: int) -> StoredFrame:
        self._check_open()
        if sequence < self._first:
            raise Gone(f"frame {sequence}: the journal begins with {self._first}")
        if sequence > self.last_sequence:
            raise NotFound(f"frame {sequence}: it ends with {self.last_sequence}")
        return self._frames[sequence - self._first]

    def trim(self, through: int) -> None:
        with self._lock:
            count = max(0, min(through, self._synced) - self._first + 1)
            gone, self._frames = self._frames[:count], self._frames[count:]
            self._first += len(gone)
            self._used -= sum(frame_bytes(len(frame.body)) for frame in gone)

    def sealed(self) -> list[Sealed]:
        with self._lock:
            return [
                Sealed(frame.sequence, frame_bytes(len(frame.body)), frame.at_us)
                for frame in self._frames
                if frame.sequence <= self._synced
            ]

    @property
    def finished_sequence(self) -> int:
        with self._lock:
            sequence = self._synced
            while sequence >= self._first and not self._frame(sequence).ends_group:
                sequence -= 1
            return sequence

    def at_us(self, sequence: int) -> int:
        with self._lock:
            return self._frame(sequence).at_us

    def room_bytes(self) -> int:
        with self._lock:
            return max(0, self._limit - self._used - self._reserve)

    def close(self) -> None:
        with self._lock:
            self._closed = True


if TYPE_CHECKING:
    from fasti.storage.journal import Journal

    _conforms: type[Journal] = MemoryJournal
