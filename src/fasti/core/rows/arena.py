"""Memory for the columns of live messages: frames of 4,096 rows that never move.

Each column is one anonymous private mapping, as large as the memory budget allows and committed
by the kernel page by page as rows are first written, so nothing is ever reallocated or copied to
grow, and a whole batch of rows on any frames is read or written by one numpy call. 4,096 rows of
the narrowest column (one byte) are exactly one page of memory, so a frame that is given back
returns to the operating system entirely.

Frame 0 is never handed out and never written: it is what an id without a row points to, so that
looking up a stranger yields state NONE instead of needing a special case.

Snapshots share frames with the living. Before rows are written, `before_write` gives each
snapshot that still shares such a frame a private copy of it; a reader of a snapshot in another
thread reads the living frame and then looks whether a copy appeared meanwhile (see snapshot.py).

Rows are read by `take(slots, mode="clip")`: slots come from the ledger and are in range, and numpy
then leaves out a check of its own that is a third of the cost.

Only the sequencer's thread writes. 32 bytes a row:
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fasti.errors import Overloaded

FRAME_BITS = 12
FRAME_ROWS = 1 << FRAME_BITS
ROW_MASK = FRAME_ROWS - 1

COLUMNS: dict[str, DTypeLike] = {
    "due": np.int64,  # microseconds
    "location": np.int64,  # where the payload lies, see location.py
    "version": np.uint32,
    "owner": np.uint32,  # number of the interned name, 0: nobody
    # While leased the slot in the lease table, which has the last reason then; else the number of
    # the last reason: why it is dead, or why it last came back. 0: none.
    "lease": np.uint32,
    "attempts": np.uint16,
    "flags": np.uint8,  # the state in the low three bits, and the bits below
    "epoch": np.uint8,  # the checkpoint epoch of the last change, modulo 256
}
STATE_MASK = np.uint8(0x07)
# The row that a run holds for this message is out of date: a delta block must carry the change.
CHANGED = np.uint8(0x80)
# The row stands in the ready line.
NEAR = np.uint8(0x40)
# The row's message expires, at its `moment`.
EXPIRES = np.uint8(0x20)
# The rest of the frame's rows are packed ones, of any id: this column says which. It costs
# memory only in such frames, because nobody touches it elsewhere.
PACKED_ID = "packed_id"
# The same holds for priorities: only priority topics write and read them, so that elsewhere the
# column is whatever was there before.
PRIORITY = "priority"
# And for when a message expires (a row with the EXPIRES bit), or died (one that is dead).
MOMENT = "moment"
_RARE: dict[str, DTypeLike] = {PACKED_ID: np.int64, PRIORITY: np.uint16, MOMENT: np.int64}
BYTES_PER_ROW = sum(np.dtype(kind).itemsize for kind in COLUMNS.values())
FRAME_BYTES = BYTES_PER_ROW * FRAME_ROWS

# Linux; the mmap module names it from Python 3.13 on. Without it a large budget on a machine with
# strict accounting would be refused although only touched pages are ever used.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
# Frames kept warm for the next page instead of going back to the operating system at once.
_WARM_FRAMES = 64
# Never filled by new messages: packing the leftovers of old pages needs a frame or two.
FRAMES_SPARE = 4


class SharesFrames(Protocol):
    """A snapshot, as the arena sees it."""

    def shares(self, frame: int) -> bool: ...
    def adopt(self, frame: int, columns: dict[str, NDArray[Any]]) -> None: ...


class Arena:
    """Columns in frames. Row `r` of frame `f` is slot `f * 4096 + r` in every column."""

    due: NDArray[np.int64]
    location: NDArray[np.int64]
    version: NDArray[np.uint32]
    owner: NDArray[np.uint32]
    lease: NDArray[np.uint32]
    attempts: NDArray[np.uint16]
    flags: NDArray[np.uint8]
    epoch: NDArray[np.uint8]
    packed_id: NDArray[np.int64]
    priority: NDArray[np.uint16]
    moment: NDArray[np.int64]

    def __init__(self, budget_bytes: int) -> None:
        self.frames_max = max(16, budget_bytes // FRAME_BYTES)
        self._maps: dict[str, mmap.mmap] = {}
        for name, kind in {**COLUMNS, **_RARE}.items():
            size = self.frames_max * FRAME_ROWS * np.dtype(kind).itemsize
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            self._maps[name] = mmap.mmap(-1, size, flags=flags)
            setattr(self, name, np.frombuffer(self._maps[name], dtype=kind))
        self._free: list[int] = []
        self._fresh = 1
        self._pinned = np.zeros(self.frames_max, dtype=np.bool_)
        self._pinned_frames = 0
        self._snapshots: list[SharesFrames] = []

    @property
    def frames_used(self) -> int:
        """Frames handed out and not given back."""
        return self._fresh - 1 - len(self._free)

    @property
    def frames_left(self) -> int:
        """Frames that can still be handed out within the budget."""
        return self.frames_max - 1 - self.frames_used

    def take_frame(self) -> int:
        """A frame of zeros. Raises `Overloaded` when the budget is spent."""
        if self._free:
            return self._free.pop()
        if self._fresh >= self.frames_max:
            raise Overloaded("the memory budget for pending messages is spent")
        frame = self._fresh
        self._fresh += 1
        return frame

    def give_back(self, frame: int) -> None:
        """Takes a frame that nobody looks at any more; its memory goes back, zeroed."""
        self.before_write_frames(np.array([frame]))
        first = frame << FRAME_BITS
        if len(self._free) < _WARM_FRAMES or not hasattr(mmap, "MADV_DONTNEED"):
            for name in self._maps:
                if name not in _RARE:
                    getattr(self, name)[first : first + FRAME_ROWS] = 0
        else:
            for name, mapping in self._maps.items():
                size = getattr(self, name).itemsize * FRAME_ROWS
                mapping.madvise(mmap.MADV_DONTNEED, frame * size, size)
        self._free.append(frame)

    def before_write(self, slots: NDArray[np.int64]) -> None:
        """Call before any row is changed: snapshots keep what they saw."""
        if self._pinned_frames:
            self.before_write_frames(np.unique(slots >> FRAME_BITS))

    def before_write_frames(self, frames: NDArray[np.int64]) -> None:
        """The same, for whole frames (each named once)."""
        if not self._pinned_frames:
            return
        for frame in frames[self._pinned[frames]].tolist():
            sharing = [snapshot for snapshot in self._snapshots if snapshot.shares(frame)]
            if sharing:
                copy = self.copy_frame(frame)
                for snapshot in sharing:
                    snapshot.adopt(frame, copy)
            self._unpin(frame)

    def copy_frame(self, frame: int) -> dict[str, NDArray[Any]]:
        """A private copy of all columns of a frame."""
        rows = slice(frame << FRAME_BITS, (frame + 1) << FRAME_BITS)
        return {name: getattr(self, name)[rows].copy() for name in self._maps}

    def copy_frames(self, frames: Sequence[int], name: str) -> NDArray[Any]:
        """A private copy of one column of some frames, one behind the other."""
        column = getattr(self, name)
        if frames and frames[-1] - frames[0] == len(frames) - 1 and _ascend(frames):
            return column[frames[0] << FRAME_BITS : (frames[-1] + 1) << FRAME_BITS].copy()
        found = np.empty(len(frames) << FRAME_BITS, dtype=column.dtype)
        for place, frame in enumerate(frames):
            begin, source = place << FRAME_BITS, frame << FRAME_BITS
            found[begin : begin + FRAME_ROWS] = column[source : source + FRAME_ROWS]
        return found

    def pin(self, snapshot: SharesFrames, frames: NDArray[np.int64]) -> None:
        """A new snapshot shares these frames from now on."""
        self._snapshots.append(snapshot)
        self._pinned[frames] = True
        self._pinned_frames = int(self._pinned.sum())

    def unpin(self, snapshot: SharesFrames, frames: NDArray[np.int64]) -> None:
        """The snapshot is done: frames that no other one shares are free to write."""
        self._snapshots.remove(snapshot)
        for frame in frames[self._pinned[frames]].tolist():
            if not any(other.shares(frame) for other in self._snapshots):
                self._unpin(frame)

    def _unpin(self, frame: int) -> None:
        self._pinned[frame] = False
        self._pinned_frames -= 1


def _ascend(frames: Sequence[int]) -> bool:
    return all(first < second for first, second in pairwise(frames))
