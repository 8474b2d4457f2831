"""Reading a snapshot from end to end, in the reader's own thread.

The sequencer has no part in it: pages of a partition are copied, some columns of them, a bounded
number at a time. What a reader leaves out is never touched, so a scan for ids and due times costs
a fraction of one for everything.

A range of sequences can be weighed before it is read: how many rows each page has, so that several
readers get about as much each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fasti.core.rows.arena import FRAME_BITS, FRAME_ROWS, PACKED_ID, STATE_MASK
from fasti.core.rows.snapshot import Columns, Snapshot
from fasti.model import State

Int64s = NDArray[np.int64]

# Pages that are copied at once, at most: about 65,000 rows.
_PAGES = 16
_WEIGHED_PAGES = 256
_FLAGS = "flags"


class Scan:
    """The rows of one partition with sequences in [first, until), by some of their columns.

    `sequence` and `flags` come always. Any thread; raises `gone` when the snapshot was let go.
    """

    def __init__(
        self, snapshot: Snapshot, topic: int, partition: int, first: int, until: int | None
    ) -> None:
        self._snapshot = snapshot
        self._view = view = snapshot.view(topic, partition)
        self._first = max(0, first)
        self._until = view.next_sequence if until is None else min(until, view.next_sequence)

    def parts(self, names: Sequence[str]) -> Iterator[Columns]:
        """All rows that are there, in order, some ten thousand at a time."""
        if self._first >= self._until:
            return
        names = [_FLAGS, *(name for name in names if name != _FLAGS)]
        packed = self._packed(names)
        begin = self._first
        for pages in self._page_groups():
            end = min(self._until, (pages[-1] + 1) << FRAME_BITS)
            yield _merged(self._own(pages, names), _between(packed, begin, end))
            begin = end
        rest = _between(packed, begin, self._until)
        if rest is not None:
            yield rest

    def weights(self) -> Iterator[tuple[int, int]]:
        """The first sequence of each page that has rows, and how many they are."""
        found: dict[int, int] = {}
        pages = self._pages()
        for begin in range(0, len(pages), _WEIGHED_PAGES):
            some = pages[begin : begin + _WEIGHED_PAGES]
            flags = self._snapshot.copy(self._frames(some), [_FLAGS])[_FLAGS]
            counts = (flags & STATE_MASK != State.NONE).reshape(-1, FRAME_ROWS).sum(axis=1)
            found |= zip(some, counts.tolist(), strict=True)
        packed = self._packed([_FLAGS])
        if packed is not None:
            pages_of, counts = np.unique(packed["sequence"] >> FRAME_BITS, return_counts=True)
            for page, count in zip(pages_of.tolist(), counts.tolist(), strict=True):
                found[page] = found.get(page, 0) + count
        for page in sorted(found):
            if found[page]:
                yield max(self._first, page << FRAME_BITS), found[page]

    def _pages(self) -> list[int]:
        """Those that have a frame of their own, as far as they are wanted."""
        view = self._view
        low = max(self._first >> FRAME_BITS, view.base_page)
        high = min((self._until - 1) >> FRAME_BITS, view.base_page + len(view.frames) - 1)
        if high < low:
            return []
        own = view.frames[low - view.base_page : high + 1 - view.base_page] > 0
        found: list[int] = (low + np.flatnonzero(own)).tolist()
        return found

    def _page_groups(self) -> Iterator[list[int]]:
        """One page at first, which is enough for many a reader, then twice as many each time."""
        pages = self._pages()
        begin, count = 0, 1
        while begin < len(pages):
            yield pages[begin : begin + count]
            begin, count = begin + count, min(2 * count, _PAGES)

    def _frames(self, pages: list[int]) -> list[int]:
        found: list[int] = self._view.frames[np.array(pages) - self._view.base_page].tolist()
        return found

    def _own(self, pages: list[int], names: Sequence[str]) -> Columns:
        columns = self._snapshot.copy(self._frames(pages), names)
        firsts = np.array(pages, dtype=np.int64) << FRAME_BITS
        columns["sequence"] = (firsts[:, None] + np.arange(FRAME_ROWS)).ravel()
        return self._kept(columns)

    def _packed(self, names: Sequence[str]) -> Columns | None:
        """The rows of the range that lie in frames of leftovers, by sequence."""
        parts: list[Columns] = []
        frames = self._view.packed_frames
        for begin in range(0, len(frames), _PAGES):
            columns = self._snapshot.copy(frames[begin : begin + _PAGES], [*names, PACKED_ID])
            columns["sequence"] = columns.pop(PACKED_ID)
            parts.append(self._kept(columns))
        if not parts:
            return None
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.argsort(whole["sequence"], kind="stable")
        return {name: values[order] for name, values in whole.items()}

    def _kept(self, columns: Columns) -> Columns:
        """Rows that are there and in the range."""
        sequences = columns["sequence"]
        keep = columns[_FLAGS] & STATE_MASK != State.NONE
        keep &= (sequences >= self._first) & (sequences < self._until)
        if keep.all():
            return columns
        return {name: values[keep] for name, values in columns.items()}


def _between(packed: Columns | None, begin: int, end: int) -> Columns | None:
    if packed is None:
        return None
    low, high = np.searchsorted(packed["sequence"], [begin, end])
    if low == high:
        return None
    return {name: values[low:high] for name, values in packed.items()}


def _merged(own: Columns, packed: Columns | None) -> Columns:
    if packed is None:
        return own
    order = np.argsort(np.concatenate([own["sequence"], packed["sequence"]]), kind="stable")
    return {name: np.concatenate([own[name], packed[name]])[order] for name in own}
