"""A pinned, immutable view of a shard at one position, with a deadline.

Taking one copies references only: the tables that say which frame holds which page. Frames are
shared with the living until the sequencer is about to write one; then it gives the snapshot a
private copy first (arena.py). A reader in another thread copies the living frame and looks
afterwards whether a private copy has appeared: if so its own copy may be torn and it takes that
one instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fasti.core.delivery.leases import LeaseView
from fasti.core.rows.arena import (
    FRAME_BITS,
    FRAME_ROWS,
    NO_ROWS,
    PACKED_ID,
    STATE_MASK,
    Arena,
    LedgerView,
)
from fasti.errors import Gone
from fasti.model import State, TopicSettings

Int64s = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


class Snapshot:
    """What the shard held at `position`, the last frame that it has seen."""

    def __init__(
        self,
        number: int,
        arena: Arena,
        ledgers: dict[tuple[int, int], LedgerView],
        topics: dict[int, tuple[str, TopicSettings]],
        position: int,
        at_us: int,
        deadline_us: int,
        leases: LeaseView,
        names: dict[str, list[str]],
        topic: str = "",
    ) -> None:
        # The only topic that it has; empty: it has all.
        self.number, self.topic = number, topic
        # What the numbers in rows meant then: each lease, and everybody's name.
        self.leases, self.names = leases, names
        self.ledgers, self.topics = ledgers, topics
        self.position, self.at_us, self.deadline_us = position, at_us, deadline_us
        self.closed = False
        self._arena = arena
        self._copies: dict[int, Columns] = {}
        self._shared = np.zeros(arena.frames_max, dtype=np.bool_)
        self._frames = np.zeros(0, dtype=np.int64)
        for view in ledgers.values():
            own = view.frames[view.frames > 0].astype(np.int64)
            packed = np.array(view.packed_frames, dtype=np.int64)
            self._frames = np.concatenate([self._frames, own, packed])
        self._shared[self._frames] = True
        arena.pin(self, self._frames)

    def view(self, topic: int, partition: int) -> LedgerView:
        """Where a partition's rows stood; nowhere, if it had none yet."""
        return self.ledgers.get((topic, partition), NO_ROWS)

    def shares(self, frame: int) -> bool:
        """Whether a write to this frame would change what the snapshot shows."""
        return bool(self._shared[frame])

    def adopt(self, frame: int, columns: Columns) -> None:
        """The sequencer is about to write the frame: here is how it was."""
        self._copies[frame] = columns
        self._shared[frame] = False

    def close(self) -> None:
        """Lets the frames go. Called by the sequencer."""
        # First, so that whoever is reading a frame notices afterwards.
        self.closed = True
        self._arena.unpin(self, self._frames)
        self._copies.clear()

    def rows(self, topic: int, partition: int, last: bool = False) -> Iterator[Columns]:
        """All rows of a partition, frame by frame, with their `sequence`. From any thread.

        Raises `gone` if the snapshot was let go, as `copy` does.
        `last` promises that nobody reads them again: a frame that was read is let go at once, so
        that the sequencer needn't copy it any more.
        """
        view = self.view(topic, partition)
        for page, frame in enumerate(view.frames.tolist(), start=view.base_page):
            if frame > 0:
                first = page << FRAME_BITS
                yield self._live_rows(frame, np.arange(first, first + FRAME_ROWS, dtype=np.int64))
                if last:
                    self._let_go(frame)
        for frame in view.packed_frames:
            yield self._live_rows(frame, None)
            if last:
                self._let_go(frame)

    def _let_go(self, frame: int) -> None:
        self._shared[frame] = False
        self._copies.pop(frame, None)

    def copy(self, frames: Sequence[int], names: Sequence[str]) -> Columns:
        """Some columns of whole frames, one behind the other. From any thread.

        Raises `gone` if the snapshot was let go: then the frames may hold anything by now.
        """
        found = {name: self._arena.copy_frames(frames, name) for name in names}
        for place, frame in enumerate(frames):
            own = self._copies.get(frame)
            if own is not None:
                begin = place << FRAME_BITS
                for name, values in found.items():
                    values[begin : begin + FRAME_ROWS] = own[name]
        if self.closed:
            raise Gone(f"snapshot {self.number} is gone")
        return found

    def _live_rows(self, frame: int, sequences: Int64s | None) -> Columns:
        return _live(self._read(frame), sequences)

    def _read(self, frame: int) -> Columns:
        copy = self._copies.get(frame)
        if copy is None:
            read = self._arena.copy_frame(frame)
            copy = self._copies.get(frame, read)
        if self.closed:
            raise Gone(f"snapshot {self.number} is gone")
        return dict(copy)


def _live(columns: Columns, sequences: Int64s | None) -> Columns:
    """The rows of a frame that are there. Packed ones bring their sequences along."""
    packed = columns.pop(PACKED_ID)
    columns["sequence"] = packed if sequences is None else sequences
    live = columns["flags"] & STATE_MASK != State.NONE
    return {name: values[live] for name, values in columns.items()}


def read_range(view: LedgerView, arena: Arena, first: int, last: int) -> Columns:
    """The living rows with sequences in [first, last], in order. The sequencer's thread only."""
    parts: list[Columns] = []
    low = max(first >> FRAME_BITS, view.base_page)
    for page in range(low, min(last >> FRAME_BITS, view.base_page + len(view.frames) - 1) + 1):
        frame = int(view.frames[page - view.base_page])
        if frame > 0:
            start = page << FRAME_BITS
            sequences = np.arange(start, start + FRAME_ROWS, dtype=np.int64)
            parts.append(_live(arena.copy_frame(frame), sequences))
    parts += [_live(arena.copy_frame(frame), None) for frame in view.packed_frames]
    if not parts:
        return {}
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    inside = np.flatnonzero((columns["sequence"] >= first) & (columns["sequence"] <= last))
    inside = inside[np.argsort(columns["sequence"][inside], kind="stable")]
    return {name: values[inside] for name, values in columns.items()}
