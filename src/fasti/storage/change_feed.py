"""The change feed: every transition of every message, read from the journal, in order, again and again.

A position is a frame's sequence together with the journal's incarnation; a reader goes on *after*
one. Only what is durable is shown, and groups of frames whole, so that what was read once never
changes and never goes away but at the old end: `gone` says where the feed begins by then.

Any thread may read; each page is read and translated in the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from fasti.errors import Gone, NotFound
from fasti.storage.frames import StoredFrame
from fasti.storage.journal import Journal
from fasti.storage.transitions import Names, count_rows, transitions

if TYPE_CHECKING:
    from fasti.core.directory import Directory

# A page is translated at once: about so many rows and bytes of frames.
_PAGE_ROWS, _PAGE_BYTES = 65_536, 4 << 20
# So many frames are looked at to count rows.
_LOOK_FRAMES = 50_000


class DirectoryNames:
    """Names for `transitions`, of a directory that grows meanwhile."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def topic(self, number: int) -> str:
        """Of a topic, also one that is gone."""
        return self._directory.topics.get(number, f"#{number}")

    def group(self, topic: int, number: int, frame: int) -> str:
        """Of a group as of a frame, also one that is gone."""
        return self._directory.group(topic, number, frame) or f"#{number}"


class ChangeFeed:
    """The feed of one journal."""

    def __init__(self, journal: Journal, seed: tuple[int, int], names: Names) -> None:
        self._journal, self._seed, self._names = journal, seed, names

    @property
    def incarnation(self) -> int:
        """Positions of another incarnation are gone."""
        return self._journal.incarnation

    @property
    def first(self) -> int:
        """The position after which the feed begins."""
        return self._journal.first_sequence - 1

    @property
    def last(self) -> int:
        """The position behind all that is durable."""
        return self._journal.finished_sequence

    def check(self, after: int) -> None:
        """Raises `gone` if something after the position was dropped, `not_found` if it is ahead."""
        first, last = self.first, self.last
        if after < first:
            raise Gone(
                f"the change feed begins after position {first}, not {after}: what was before is "
                "gone (feed_age, feed_size)",
                details={"first": first, "last": last},
            )
        if after > last:
            raise NotFound(
                f"the change feed ends with position {last}, before {after}",
                details={"first": first, "last": last},
            )

    def pages(
        self,
        after: int,
        through: int,
        payloads: bool = False,
        topics: frozenset[int] | None = None,
        ops: frozenset[str] | None = None,
        columns: Sequence[str] = (),
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Transitions after a position, up to another, and the position behind each page.

        Of some topics, some ops and some columns, or all.
        """
        self.check(after)

        def translated(page: list[StoredFrame]) -> pa.RecordBatch:
            return transitions(page, self._names, self._seed, payloads, topics, ops, columns)

        page: list[StoredFrame] = []
        rows = size = 0
        for frame in self._frames(after, through):
            page.append(frame)
            rows += count_rows(frame.body)
            size += len(frame.body)
            if frame.ends_group and (rows >= _PAGE_ROWS or size >= _PAGE_BYTES):
                yield frame.sequence, translated(page)
                page, rows, size = [], 0, 0
        if page:
            yield page[-1].sequence, translated(page)

    def end_after(
        self, after: int, rows_max: int, topics: frozenset[int] | None = None
    ) -> tuple[int, int]:
        """The position behind about so many transitions, and how many they are: at least one
        group, if there is one.

        With topics it counts theirs, and goes as far as these reach. It doesn't look on for ever:
        a reader that gets fewer rows than it wants asks again from there.
        """
        self.check(after)
        rows, end = 0, after
        counted = 0
        for frame in self._frames(after, min(self.last, after + _LOOK_FRAMES)):
            counted += count_rows(frame.body, topics)
            if frame.ends_group:
                if rows and counted > rows_max:
                    break
                rows, end = counted, frame.sequence
                if rows >= rows_max:
                    break
        return end, rows

    def before(self, time_us: int) -> int:
        """The position after which everything was decided at that time or later."""
        low, high = self.first, self.last
        while low < high:
            middle = (low + high + 1) // 2
            if self._journal.at_us(middle) < time_us:
                low = middle
            else:
                high = middle - 1
        return low

    def _frames(self, after: int, through: int) -> Iterator[StoredFrame]:
        try:
            for frame in self._journal.replay(after):
                if frame.sequence > through:
                    return
                yield frame
        except Gone:
            # Trimmed under our hands.
            self.check(after)
            raise
