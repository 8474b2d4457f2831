"""Which row of the arena belongs to which sequence number of a partition.

Sequences are given out one after another, so a page of 4,096 of them owns one frame of the arena
and finding a row is arithmetic. When seven eighths of a page are finished its last rows are
packed: copied into frames shared by such leftovers and found through a hash index, and the
page's own frame goes back. Memory so follows the messages that live, not the ids ever given.

Rows are freed in two moves: `finish` counts them off, `tidy` (at the end of a step, a few pages a
call) gives frames back and packs. In between nothing moves, so a transaction that turns out to be
void can still be undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fasti.core.columns.index import HashIndex, UInt64s, mix
from fasti.core.columns.reductions import highest, lowest
from fasti.core.rows.arena import COLUMNS, FRAME_BITS, FRAME_ROWS, ROW_MASK, Arena

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

    def slots(self, sequences: Int64s) -> Int64s:
        """The slot of each sequence; 0 where none was ever given or its page is gone."""
        if len(sequences) < 2:
            found = [self.slot(int(sequence)) for sequence in sequences]
            return np.array(found, dtype=np.int64)
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
