"""Segments of a log's partition: ranges of offsets that retention drops as a whole.

The last segment takes what is appended until it is large or old enough. When it is rolled is worked
out from the event's own time and the topic's settings, so a replay rolls alike. Nothing here reads
a clock. The sequencer's thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fasti.model import SECOND_US, TopicSettings

# A segment is at most so large a part of what is to be kept, by age or by bytes.
_PER_RETENTION = 8

Mark = tuple[int, int, "Segment | None"]


@dataclass(slots=True)
class Segment:
    """Rows from `base` to the next segment's, and when the first and the last of them came."""

    base: int
    size_bytes: int
    from_us: int
    to_us: int


class Segments:
    """Those of one partition, the oldest first. `end` is always the partition's next offset."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._kept: deque[Segment] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._kept)

    def __getitem__(self, place: int) -> Segment:
        return self._kept[place]

    # Appending

    def grow(self, end: int, at_us: int, size_bytes: int, settings: TopicSettings) -> None:
        """Rows are appended from `end` on."""
        if not self._kept or _is_full(self._kept[-1], at_us, settings):
            self._kept.append(Segment(end, 0, at_us, at_us))
        last = self._kept[-1]
        last.size_bytes += size_bytes
        last.to_us = at_us
        self.size_bytes += size_bytes

    def mark(self) -> Mark:
        """What `restore_mark` needs to take the next `grow` back."""
        last = replace(self._kept[-1]) if self._kept else None
        return self.size_bytes, len(self._kept), last

    def restore_mark(self, mark: Mark) -> None:
        """The `grow` after `mark` never was."""
        self.size_bytes, count, last = mark
        while len(self._kept) > count:
            self._kept.pop()
        if last is not None:
            self._kept[-1] = last

    # Trimming

    def trim(self, first_offset: int, end: int) -> int:
        """The partition begins here now. Returns about how many bytes went."""
        before = self.size_bytes
        while self._kept and self._end_of(0, end) <= first_offset:
            self.size_bytes -= self._kept.popleft().size_bytes
        if self._kept and self._kept[0].base < first_offset:
            self._cut(self._kept[0], first_offset, self._end_of(0, end))
        return before - self.size_bytes

    def _cut(self, segment: Segment, first_offset: int, end: int) -> None:
        """Of a segment that begins earlier its share goes."""
        gone = first_offset - segment.base
        share = segment.size_bytes * gone // (end - segment.base)
        segment.base = first_offset
        segment.size_bytes -= share
        self.size_bytes -= share

    def _end_of(self, place: int, end: int) -> int:
        following = place + 1
        return self._kept[following].base if following < len(self._kept) else end

    def too_old(self, earliest: int, end: int, now_us: int, settings: TopicSettings) -> int:
        """The offset that the partition is to begin with, by age: also the last one may go."""
        first = earliest
        for place, segment in enumerate(self._kept):
            if segment.to_us + settings.segment_age_us > now_us:
                break
            first = self._end_of(place, end)
        return first

    def too_large(self, earliest: int, settings: TopicSettings) -> int:
        """The offset that the partition is to begin with, by bytes: the last one always stays."""
        left, first = self.size_bytes, earliest
        for place in range(len(self._kept) - 1):
            if left <= settings.retained_bytes:
                break
            left -= self._kept[place].size_bytes
            first = self._kept[place + 1].base
        return first

    def next_age_us(self, settings: TopicSettings) -> int | None:
        """When the oldest segment is too old, as far as can be told now."""
        if not self._kept or not settings.segment_age_us:
            return None
        return self._kept[0].to_us + settings.segment_age_us

    # Checkpoints

    def capture(self) -> list[list[int]]:
        """As plain values."""
        return [[each.base, each.size_bytes, each.from_us, each.to_us] for each in self._kept]

    def restore(self, described: list[list[int]]) -> None:
        """Back from `capture`."""
        self._kept = deque(Segment(*values) for values in described)
        self.size_bytes = sum(segment.size_bytes for segment in self._kept)


def _is_full(segment: Segment, at_us: int, settings: TopicSettings) -> bool:
    limit = settings.segment_bytes
    if settings.retained_bytes:
        limit = min(limit, max(1, settings.retained_bytes // _PER_RETENTION))
    if segment.size_bytes >= limit:
        return True
    if not settings.segment_age_us:
        return False
    return at_us - segment.from_us >= max(settings.segment_age_us // _PER_RETENTION, SECOND_US)
