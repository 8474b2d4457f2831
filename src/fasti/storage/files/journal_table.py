"""The table of a journal's segments, and reading through it while appends go on.

A reader finds the segment of a sequence under the lock and leaves with a view of its map.  That
view is what protects it: a segment that is trimmed meanwhile leaves the table at once, but its
file is only recycled when no view of it is alive (`Segment.let_go`).

Frames are checked the first time that this process reads them: a sealed segment's headers when
it is first touched, each body when it is first asked for.

Thread-safety: all methods, from any thread; `grow` and `succeed` are the committer's.  The lock
is held for a few list operations, never during I/O or a checksum.

*Spares* are segment files that are prepared ahead, recycled, and kept in reserve.  A write into blocks
that are already on the disk syncs about twice as fast as one that makes the file system allocate, so
the journal only ever writes into files that were zero-filled before or that held an older segment:
``spare-N.ready``, and ``spare-N.preparing`` while they are being made; the latter are worthless after a
crash and are removed.  Of the spares, ``reserve`` are held back: ordinary appends never take them, so
that when the disk is full the appends that free space (acks, cancels) still find room.  Under load the
segments that a checkpoint trims are enough: up to ``kept_max`` of them are kept, so that nothing has to
be zero-filled while messages stream in.  One thread prepares at a time; one that comes meanwhile waits
for its spare instead of making another.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress

from fasti.errors import Closed, FastiError, Gone, NotFound, PermissionDenied
from fasti.storage.files import Files
from fasti.storage.files.journal_recovery import check_sealed, corrupt_frame
from fasti.storage.files.journal_segment import (
    CHECKED,
    SEGMENT_HEADER_BYTES,
    Segment,
    offset_of,
    read_through,
    walk,
)
from fasti.storage.frames import (
    BEGIN,
    END,
    HEADER_BYTES,
    VOID,
    Header,
    Sealed,
    StoredFrame,
    decode_header,
    stored_body,
)

# So many segments keep the places of their frames: those that a checkpoint has not passed yet, by far.
# What only the change feed still needs may be a thousand segments with a hundred thousand frames each.
_INDEXED = 8


class SegmentTable:
    """The segments in order, and the last sequence that was appended to them."""

    def __init__(self, files: Files, segments: list[Segment], last_sequence: int) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._segments = segments
        self._closed = False
        self.last_sequence = last_sequence

    @property
    def first_sequence(self) -> int:
        """The lowest sequence that is still there."""
        with self._lock:
            return self._first()

    def _first(self) -> int:
        if not self._segments:
            return self.last_sequence + 1
        return self._segments[0].header.first_sequence

    @property
    def tail(self) -> Segment:
        """The last segment; there must be one."""
        return self._segments[-1]

    # ------------------------------------------------------------------ changing

    def grow(self, segment: Segment, offsets: Sequence[int], end: int, last_sequence: int) -> None:
        """Frames were written at these offsets of the last segment, up to ``end``."""
        with self._lock:
            segment.note(offsets)
            segment.end = end
            self.last_sequence = last_sequence

    def succeed(self, segment: Segment) -> None:
        """Put a new segment behind the others, which from now on end before its first frame."""
        first = segment.header.first_sequence
        with self._lock:
            tail = self._segments[-1] if self._segments else None
            replaced = tail is not None and tail.header.first_sequence == first
            if replaced:
                self._segments.pop()
            elif tail is not None and tail.places is not None:
                del tail.places[first - tail.header.first_sequence :]
            self._segments.append(segment)
            # They are found again when they are read.
            for old in self._segments[:-_INDEXED]:
                old.places = None
        if tail is not None:
            if replaced:
                tail.let_go()
            tail.file.close()

    def detach(self, through: int) -> tuple[str, int] | None:
        """Take out the first segment if it holds only frames up to ``through``; never the last.

        Its name, and its size if no view of it is alive, else 0.
        """
        with self._lock:
            if len(self._segments) < 2:
                return None
            if self._segments[1].header.first_sequence - 1 > through:
                return None
            segment = self._segments.pop(0)
        size_bytes = len(segment.view)
        is_unread = segment.let_go()
        segment.file.close()
        return segment.name, size_bytes if is_unread else 0

    def sealed(self) -> list[Sealed]:
        """All segments but the last."""
        with self._lock:
            segments = list(self._segments)
            views = [segment.view[:] for segment in segments]
        pieces = []
        for place, segment in enumerate(segments[:-1]):
            after = segments[place + 1].header.first_sequence
            # A segment is born with its first frame; what lies before it was decided before.
            begun = decode_header(views[place + 1], SEGMENT_HEADER_BYTES)
            until_us = begun.at_us if begun is not None and begun.sequence == after else 0
            pieces.append(Sealed(after - 1, len(segment.view), until_us))
        return pieces

    def close(self) -> None:
        """Let go of all files; views that were given out stay good."""
        with self._lock:
            self._closed = True
            segments, self._segments = self._segments, []
        for segment in segments:
            segment.let_go()
            segment.file.close()

    # ------------------------------------------------------------------ reading

    def read(self, sequence: int) -> tuple[Header, memoryview]:
        """Header and body of one frame; raises `Gone`, `NotFound`, `Closed` or `Corruption`."""
        segment, view = self._find(sequence)
        places = segment.places
        if places is None:
            places = self._index(segment, view)
        index = sequence - segment.header.first_sequence
        place = places[index]
        offset = offset_of(place)
        header = decode_header(view, offset)
        if header is None or header.sequence != sequence:
            raise corrupt_frame(segment.name, offset, sequence, "its header", "it was there before")
        if header.flags & VOID:
            raise Gone(f"frame {sequence} was lost, and given up by a repair")
        if not place & CHECKED:
            if stored_body(view, offset, header) is None:
                reason = "its segment was sealed"
                raise corrupt_frame(
                    segment.name, offset, sequence, "the checksum of its body is wrong", reason
                )
            places[index] = place | CHECKED
        start = offset + HEADER_BYTES
        return header, view[start : start + header.body_length]

    def _find(self, sequence: int) -> tuple[Segment, memoryview]:
        """The segment of a frame, and a view that keeps it from being recycled."""
        with self._lock:
            if self._closed:
                raise Closed("the journal is closed")
            if sequence > self.last_sequence:
                raise NotFound(f"frame {sequence}: the journal ends with {self.last_sequence}")
            if sequence < self._first():
                raise Gone(f"frame {sequence}: the journal begins with {self._first()}")
            place = bisect_right(self._segments, sequence, key=_first_of)
            segment = self._segments[place - 1]
            return segment, segment.view[:]

    def _index(self, segment: Segment, view: memoryview) -> array[int]:
        """Find the frames of a sealed segment, by their headers only: their places."""
        first = segment.header.first_sequence
        with self._lock:
            place = bisect_right(self._segments, first, key=_first_of)
            after = self._segments[place : place + 1]
            bound = _first_of(after[0]) if after else self.last_sequence + 1
        with suppress(NotFound):  # Trimmed meanwhile: its map is still good.
            read_through(self._files, segment.name)
        scan = walk(view, segment.header, segment.name, stop_before=bound, bodies=False)
        check_sealed(segment.name, first, scan, bound)
        with self._lock:
            if segment.places is None:
                segment.adopt(scan.places, verified=False)
        return scan.places

    def finished(self, through: int) -> int:
        """The last frame up to there that ends a group; the one before the first if none does."""
        sequence, first = through, self.first_sequence
        while sequence >= first and not self.read(sequence)[0].flags & END:
            sequence -= 1
        return sequence

    def replay(self, after: int, through: int) -> Iterator[StoredFrame]:
        """The frames of finished groups above ``after`` and up to ``through``, in order."""
        with self._lock:
            first, last = self._first(), self.last_sequence
        if after < first - 1:
            raise Gone(f"frames after {after}: the journal begins with {first}")
        if after > last:
            raise NotFound(f"frames after {after}: the journal ends with {last}")
        return self._replayed(after, through)

    def _replayed(self, after: int, through: int) -> Iterator[StoredFrame]:
        group: list[StoredFrame] = []
        skipping = False
        for sequence in range(after + 1, through + 1):
            frame = self._frame(sequence)
            if frame is None:
                group.clear()
                skipping = True
                continue
            # A group that lost a frame is void as a whole; the next one begins afresh.
            skipping = skipping and not frame.begins_group
            if not skipping:
                group.append(frame)
            if frame.ends_group:
                yield from group
                group.clear()

    def _frame(self, sequence: int) -> StoredFrame | None:
        """A frame as replayed, None for one that a repair gave up."""
        try:
            header, body = self.read(sequence)
        except Gone:
            if sequence >= self.first_sequence:
                return None
            raise
        begins, ends = bool(header.flags & BEGIN), bool(header.flags & END)
        return StoredFrame(sequence, header.at_us, header.epoch, begins, ends, body)


def _first_of(segment: Segment) -> int:
    return segment.header.first_sequence


READY = ".ready"
PREPARING = ".preparing"


class Spares:
    """The pool of spare files of one size in one folder."""

    def __init__(self, files: Files, directory: str, size_bytes: int, reserve: int) -> None:
        self._files = files
        self._directory = directory
        self._lock = threading.Lock()
        self._one_prepares = threading.Lock()
        self._ready: list[str] = []
        self._serial = 0
        self.size_bytes = size_bytes
        self.reserve = reserve
        self.wanted = reserve + 1
        self.kept_max = reserve + 4

    @property
    def count(self) -> int:
        return len(self._ready)

    def adopt_leftovers(self) -> None:
        """Take over what an earlier process left, and remove what is of no use.

        Called once, before any other method.
        """
        for name in self._files.list(f"{self._directory}/spare-"):
            stem = name.rpartition("/")[2].partition(".")[0]
            number = stem.removeprefix("spare-")
            self._serial = max(self._serial, int(number) if number.isdigit() else 0)
            if name.endswith(READY) and self.count < self.kept_max and self._fits(name):
                self._ready.append(name)
            else:
                self._files.delete(name)

    def _fits(self, name: str) -> bool:
        """Whether it can become a segment; a file that has another name elsewhere must not."""
        try:
            file = self._files.open(name, writable=True)
        except (PermissionDenied, NotFound):
            return False
        try:
            return file.size == self.size_bytes
        finally:
            file.close()

    def take(self, use_reserve: bool) -> str | None:
        """A ready spare, or None if there is none that this caller may have."""
        with self._lock:
            if len(self._ready) > (0 if use_reserve else self.reserve):
                return self._ready.pop()
            return None

    def obtain(self, size_bytes: int, use_reserve: bool) -> str:
        """A file of at least this size: a ready one, or one that is made; or `StorageFull`."""
        if size_bytes > self.size_bytes:
            return self.make(size_bytes)
        return self.take(use_reserve) or self.make()

    def obtain_all(self, sizes: Sequence[int], use_reserve: bool) -> list[str]:
        """A file for each size, and the reserve restored; or `StorageFull`, and none is taken."""
        if not use_reserve:
            while self.count < self.reserve:
                self.prepare()
        names: list[str] = []
        try:
            for size_bytes in sizes:
                names.append(self.obtain(size_bytes, use_reserve))
        except FastiError:
            for name in names:
                self.give_back(name)
            raise
        return names

    def give_back(self, name: str) -> None:
        """Return what `take` or `make` gave and wasn't used."""
        with self._lock:
            self._ready.append(name)

    def make(self, size_bytes: int | None = None) -> str:
        """A new file, zero-filled; `StorageFull` if there is no room, and nothing is left."""
        with self._lock:
            self._serial += 1
            stem = f"{self._directory}/spare-{self._serial:08d}"
        self._files.create(stem + PREPARING, size_bytes or self.size_bytes).close()
        try:
            self._files.rename(stem + PREPARING, stem + READY)
        except BaseException:
            # It is tried again every second: what is left each time would fill the disk.
            with suppress(FastiError):
                self._files.delete(stem + PREPARING)
            raise
        return stem + READY

    def prepare(self) -> bool:
        """Make one spare if one is wanted; False when there were enough."""
        with self._one_prepares:
            if self.count >= self.wanted:
                return False
            self.give_back(self.make())
            return True

    def recycle(self, name: str, size_bytes: int) -> None:
        """Take a segment file out of service: keep it as a spare, or delete it.

        Its old name is durably gone before the file can be used again: otherwise a crash could
        bring the old name back with new content under it. When it raises it may be called again.
        """
        is_wanted = size_bytes == self.size_bytes and self.count < self.kept_max
        if not is_wanted or not self._fits(name):
            self.discard(name)
            return
        with self._lock:
            self._serial += 1
            spare = f"{self._directory}/spare-{self._serial:08d}{READY}"
        try:
            self._files.rename(name, spare)
        except NotFound:
            self._files.sync_directory(self._directory)
            return
        try:
            self._files.sync_directory(self._directory)
        except BaseException:
            with suppress(FastiError):
                self._files.delete(spare)
            raise
        self.give_back(spare)

    def discard(self, name: str) -> None:
        """Delete a file durably. When it raises it may be called again."""
        with suppress(NotFound):
            self._files.delete(name)
        self._files.sync_directory(self._directory)
