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

A ledger says which row belongs to which sequence number of a partition. Sequences are given out one
after another, so a page of 4,096 of them owns one frame of the arena and finding a row is arithmetic.
When seven eighths of a page are finished its last rows are packed: copied into frames shared by such
leftovers and found through a hash index, and the page's own frame goes back. Memory so follows the
messages that live, not the ids ever given. Rows are freed in two moves: `finish` counts them off,
`tidy` (at the end of a step, a few pages a call) gives frames back and packs. In between nothing moves,
so a transaction that turns out to be void can still be undone.

Only the sequencer's thread writes. 32 bytes a row:
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fasti.core.columns.index import HashIndex, UInt64s, mix
from fasti.core.columns.reductions import highest, lowest
from fasti.errors import Overloaded

FRAME_BITS = 12
FRAME_ROWS = 1 << FRAME_BITS
ROW_MASK = FRAME_ROWS - 1

COLUMNS: dict[str, DTypeLike] = {
    "due": np.int64,  # microseconds
    "location": np.int64,  # where the payload lies, see location.py
    "version": np.uint32,
    "owner": np.uint32,  # number of the interned name, 0: none
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
# memory only in such frames, because nothing touches it elsewhere.
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
        """Takes a frame that is not looked at any more; its memory goes back, zeroed."""
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
        copies = np.empty(len(frames) << FRAME_BITS, dtype=column.dtype)
        for place, frame in enumerate(frames):
            begin, source = place << FRAME_BITS, frame << FRAME_BITS
            copies[begin : begin + FRAME_ROWS] = column[source : source + FRAME_ROWS]
        return copies

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


Int64s = NDArray[np.int64]

_PACKED = -1
_PACK_AT = FRAME_ROWS // 8
_PAGES_PER_TIDY = 8
# Mostly finished pages are left alone while they are among the newest, so many at most: in busy traffic
# their last rows will finish too, and moving them would be work for nothing. It may cost 33 MB.
_THIN_PAGES_KEPT = 256


@dataclass(frozen=True, slots=True)
class LedgerView:
    """Where the rows of a partition stood at one moment: enough to read them all."""

    base_page: int
    frames: NDArray[np.int32]
    packed_frames: tuple[int, ...]
    next_sequence: int


# Of a partition that never had any.
NO_ROWS = LedgerView(0, np.zeros(1, dtype=np.int32), (), 1)


class Ledger:
    """Sequences to slots. Slot 0 (of the null frame) stands for "no such row"."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        # Those that move with a row; a partition that writes further ones names them too.
        self.columns = tuple(COLUMNS)
        self.next_sequence = 1
        self._base = 0
        self._frames = np.zeros(16, dtype=np.int32)
        self._live = np.zeros(16, dtype=np.int32)
        # Pages with few rows left, the oldest first, and pages with none.
        self._thin: dict[int, None] = {}
        self._empty: set[int] = set()
        self._packed = HashIndex(self._keeps)
        self._packed_frames: list[int] = []
        self._packed_live: dict[int, int] = {}
        self._packed_free: list[Int64s] = []
        self._packed_finished: list[Int64s] = []

    def keep(self, column: str) -> None:
        """From now on rows have this further column, which moves with them."""
        if column not in self.columns:
            self.columns = (*self.columns, column)

    def slots(self, sequences: Int64s) -> Int64s:
        """The slot of each sequence; 0 where none was ever given or its page is gone."""
        if len(sequences) < 2:
            few = [self.slot(int(sequence)) for sequence in sequences]
            return np.array(few, dtype=np.int64)
        pages = (sequences >> FRAME_BITS) - self._base
        frames = self._frames.take(pages, mode="clip")
        if lowest(pages) < 0 or highest(pages) >= len(self._frames):
            frames[pages < 0] = _PACKED
            frames[pages >= len(self._frames)] = 0
        slots = (frames.astype(np.int64) << FRAME_BITS) | (sequences & ROW_MASK)
        if lowest(frames) <= 0:
            slots[frames == 0] = 0
            packed = np.flatnonzero(frames == _PACKED)
            if len(packed):
                slots[packed] = self._packed_slots(sequences[packed])
        return slots

    def slot(self, sequence: int) -> int:
        """The slot of one sequence."""
        page = (sequence >> FRAME_BITS) - self._base
        frame = _PACKED
        if page >= 0:
            frame = int(self._frames[page]) if page < len(self._frames) else 0
        if frame == _PACKED:
            return int(self._packed_slots(np.array([sequence], dtype=np.int64))[0])
        return (frame << FRAME_BITS) | (sequence & ROW_MASK) if frame else 0

    def _packed_slots(self, sequences: Int64s) -> Int64s:
        slots = self._packed.find(mix(sequences))
        # An entry may be left over from a finished row whose slot serves another by now.
        slots[self._arena.packed_id[slots] != sequences] = 0
        return slots

    def _keeps(self, keys: UInt64s, slots: Int64s) -> NDArray[np.bool_]:
        return mix(self._arena.packed_id[slots]) == keys

    def append(self, count: int) -> Int64s:
        """Rows for the next `count` sequences, in order. Raises `Overloaded`, changing nothing."""
        first = self.next_sequence
        last = first + count - 1
        self._reserve(first, last)
        self.next_sequence = first + count
        if first >> FRAME_BITS == last >> FRAME_BITS:
            page = (first >> FRAME_BITS) - self._base
            self._count_page(page, count)
            slot = (int(self._frames[page]) << FRAME_BITS) | (first & ROW_MASK)
            return np.arange(slot, slot + count, dtype=np.int64)
        sequences = np.arange(first, first + count, dtype=np.int64)
        pages = (sequences >> FRAME_BITS) - self._base
        self._count(pages, 1)
        return (self._frames.take(pages).astype(np.int64) << FRAME_BITS) | (sequences & ROW_MASK)

    def place(self, sequences: Int64s) -> Int64s:
        """Rows for sequences read back from storage, in any order. Each counts once."""
        slots = self.slots(sequences)
        missing = np.unique(sequences[slots == 0] >> FRAME_BITS)
        for page in missing.tolist():
            self._reserve(page << FRAME_BITS, page << FRAME_BITS)
        if len(missing):
            slots = self.slots(sequences)
        self._count((sequences >> FRAME_BITS) - self._base, 1)
        return slots

    def unappend(self, first: int, slots: Int64s) -> None:
        """Takes the last `append` back; the rows' flags are the caller's to clear."""
        pages = (np.arange(first, first + len(slots)) >> FRAME_BITS) - self._base
        self._count(pages, -1)
        self.next_sequence = first

    def finish(self, sequences: Int64s, slots: Int64s, sign: int = -1) -> None:
        """Counts rows off whose state just became NONE. `sign=1` takes that back."""
        pages = (sequences >> FRAME_BITS) - self._base
        if self._packed_frames or (len(pages) and lowest(pages) < 0):
            packed = (pages < 0) | (self._frames.take(pages, mode="clip") == _PACKED)
            if packed.any():
                if sign < 0:
                    self._packed_finished.append(slots[packed])
                else:
                    self._packed_finished.pop()
                pages = pages[~packed]
        self._count(pages, sign)

    def tidy(self) -> bool:
        """Gives back what is no longer needed: a few pages a call. True if there is more."""
        self._free_packed()
        done = [page for page in islice(self._empty, _PAGES_PER_TIDY) if not self._is_filling(page)]
        self._empty.difference_update(done)
        thin = self._thin_to_pack()
        for page in thin:
            del self._thin[page]
        for page in [*done, *thin]:
            self._drop(page)
        if done or thin:
            self._advance_base()
        return len(self._empty) > 1 or len(thin) == _PAGES_PER_TIDY

    def _thin_to_pack(self) -> list[int]:
        """Mostly finished pages that are too many or too old."""
        surplus = len(self._thin) - _THIN_PAGES_KEPT
        old = (self.next_sequence >> FRAME_BITS) - _THIN_PAGES_KEPT
        first = enumerate(islice(self._thin, _PAGES_PER_TIDY))
        wanted = [page for number, page in first if number < surplus or page < old]
        return [page for page in wanted if not self._is_filling(page)]

    def _is_filling(self, page: int) -> bool:
        """Whether the next sequences still go to this page."""
        return (page + 1) << FRAME_BITS > self.next_sequence

    def _drop(self, page: int) -> None:
        """The page's frame goes back; rows that it still has are packed."""
        at = page - self._base
        if at < 0 or self._frames[at] <= 0 or self._live[at] > _PACK_AT:
            return
        self._thin.pop(page, None)
        frame = int(self._frames[at])
        self._frames[at] = self._pack(page, frame) if self._live[at] else 0
        self._arena.give_back(frame)

    def view(self) -> LedgerView:
        """The present places of all rows, for a snapshot."""
        self._free_packed()
        used = (self.next_sequence >> FRAME_BITS) - self._base + 1
        frames = self._frames[:used].copy()
        return LedgerView(self._base, frames, tuple(self._packed_frames), self.next_sequence)

    def frames(self) -> Int64s:
        """All frames that hold rows of this partition."""
        own = self._frames[self._frames > 0].astype(np.int64)
        return np.concatenate([own, np.array(self._packed_frames, dtype=np.int64)])

    def release(self) -> None:
        """Gives every frame back: the topic is gone."""
        for frame in self.frames().tolist():
            self._arena.give_back(frame)
        self.__init__(self._arena)  # type: ignore[misc]

    @property
    def size_bytes(self) -> int:
        """Memory beside the arena's frames."""
        return self._frames.nbytes * 2 + self._packed.size_bytes

    def _reserve(self, first: int, last: int) -> None:
        """Frames for the pages of these sequences; all or none."""
        begin, end = (first >> FRAME_BITS) - self._base, (last >> FRAME_BITS) - self._base + 1
        if begin < 0:
            self._rebase(first >> FRAME_BITS)
            begin, end = 0, end - begin
        if end > len(self._frames):
            more = max(end - len(self._frames), len(self._frames))
            self._frames = np.concatenate([self._frames, np.zeros(more, dtype=np.int32)])
            self._live = np.concatenate([self._live, np.zeros(more, dtype=np.int32)])
        if end - begin == 1 and self._frames[begin]:
            return
        missing = begin + np.flatnonzero(self._frames[begin:end] == 0)
        if len(missing) > self._arena.frames_left:
            self._arena_is_full()
        for at in missing.tolist():
            self._frames[at] = self._arena.take_frame()

    def _arena_is_full(self) -> None:
        while self._arena.frames_left:
            self._arena.take_frame()
        self._arena.take_frame()

    def _count(self, pages: Int64s, sign: int) -> None:
        if not len(pages):
            return
        low, high = lowest(pages), highest(pages) + 1
        if high - low == 1:
            self._count_page(low, len(pages) * sign)
            return
        change = np.bincount(pages - low, minlength=high - low)
        live = self._live[low:high]
        live += (change * sign).astype(np.int32)
        if sign < 0:
            thin = np.flatnonzero((live <= _PACK_AT) & (change > 0))
            if len(thin):
                named = (thin + low + self._base).tolist()
                self._thin.update(dict.fromkeys(named))
                self._empty.update(p for p, left in zip(named, live[thin], strict=True) if not left)

    def _count_page(self, at: int, change: int) -> None:
        left = int(self._live[at]) + change
        self._live[at] = left
        if change < 0 and left <= _PACK_AT:
            self._thin[at + self._base] = None
            if not left:
                self._empty.add(at + self._base)

    def _pack(self, page: int, frame: int) -> int:
        first = frame << FRAME_BITS
        old = first + np.flatnonzero(self._arena.flags[first : first + FRAME_ROWS] != 0)
        sequences = (page << FRAME_BITS) + (old - first)
        new = self._take_packed(len(old))
        self._arena.before_write(new)
        for name in self.columns:
            column = getattr(self._arena, name)
            column[new] = column[old]
        self._arena.packed_id[new] = sequences
        self._packed.put(mix(sequences), new)
        self._live[page - self._base] = 0
        return _PACKED

    def _take_packed(self, count: int) -> Int64s:
        taken: list[Int64s] = []
        while count:
            if not self._packed_free:
                frame = self._arena.take_frame()
                self._packed_frames.append(frame)
                self._packed_live[frame] = 0
                first = frame << FRAME_BITS
                self._packed_free.append(np.arange(first, first + FRAME_ROWS, dtype=np.int64))
            free = self._packed_free.pop()
            taken.append(free[:count])
            count -= len(taken[-1])
            if len(taken[-1]) < len(free):
                self._packed_free.append(free[len(taken[-1]) :])
        slots = np.concatenate(taken)
        self._count_packed(slots, 1)
        return slots

    def _count_packed(self, slots: Int64s, sign: int) -> None:
        frames, counts = np.unique(slots >> FRAME_BITS, return_counts=True)
        for frame, count in zip(frames.tolist(), counts.tolist(), strict=True):
            self._packed_live[frame] += sign * count

    def _free_packed(self) -> None:
        """Slots of finished packed rows serve again; a frame without any goes back."""
        if not self._packed_finished:
            return
        slots = np.concatenate(self._packed_finished)
        self._packed_finished.clear()
        self._arena.before_write(slots)
        self._arena.packed_id[slots] = 0
        self._packed_free.append(slots)
        self._count_packed(slots, -1)
        empty = [frame for frame, live in self._packed_live.items() if not live]
        for frame in empty:
            del self._packed_live[frame]
            self._packed_frames.remove(frame)
            self._packed_free = [f[f >> FRAME_BITS != frame] for f in self._packed_free]
            self._arena.give_back(frame)
        self._packed_free = [free for free in self._packed_free if len(free)]

    def _advance_base(self) -> None:
        """Forgets the window's finished beginning; what lies below is looked up as packed."""
        full = (self.next_sequence >> FRAME_BITS) - self._base
        alive = np.flatnonzero(self._frames[:full] > 0)
        gone = int(alive[0]) if len(alive) else full
        if gone < 1024 and gone * 2 < len(self._frames):
            return
        self._frames = np.concatenate([self._frames[gone:], np.zeros(16, dtype=np.int32)])
        self._live = np.concatenate([self._live[gone:], np.zeros(16, dtype=np.int32)])
        self._base += gone

    def _rebase(self, page: int) -> None:
        """Makes room for an older page than the window has (only while opening)."""
        more = np.zeros(self._base - page, dtype=np.int32)
        self._frames = np.concatenate([more, self._frames])
        self._live = np.concatenate([more, self._live])
        self._base = page
