"""One segment file of the journal: its header, its frames, and how they are found again.

A segment is a preallocated file named for its first sequence.  It opens with 64 bytes::

    offset  size  field
         0     8  magic            "FASTISEG"
         8     4  format version   1
        12     4  epoch            that of all its frames
        16     8  incarnation      that of all its frames
        24     8  first sequence
        32     8  durable through  the last sequence that was durable when the file got its name:
                                   the one before the first, or the last that was copied here
        40     4  nonce            that of all its frames, drawn at random when it is born
        44     8  size             of the file, which never changes; 0 if it was not written down
        52     4  zeros            for later formats
        56     8  checksum         XXH3-64 of the 56 bytes before it

The header is durable before the file gets its name, and a segment gets its name only when every
frame before its first one is durable.  So a named segment with a bad header is corruption, and
its mere existence is evidence that everything before it was accepted.  A file that is shorter than
its header says was cut, whatever was in the part that is gone.

Frames follow without gaps.  A recycled file still holds old frames behind the new ones; they are
told apart by the nonce, and by the exact sequence that is expected next.  `walk` reads frames until
the first thing that isn't the frame expected; what that means is decided by `evidence_after`, which
searches what lies behind it for a frame that knew better.

A `Segment` belongs to its journal, which guards it; `walk` and the search are pure functions
over a view and may run anywhere.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh3_64_intdigest

from fasti.errors import Corruption
from fasti.storage.files import File, Files, folder_of, read_whole
from fasti.storage.formats import check_format
from fasti.storage.frames import (
    ALIGNMENT,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    MARK,
    Header,
    decode_header,
    frame_bytes,
    stored_body,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Grows with everything that older versions would misread, wherever in the directory it lies: each
# opening begins a segment, so that they refuse the directory as a whole.
SEGMENT_FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = 64
SEGMENT_MAGIC = b"FASTISEG"
SEGMENT_SUFFIX = ".segment"
# What to do about something that is gone.
REMEDY = (
    "`fasti storage verify` tells more, `fasti storage repair` goes on without it, "
    "`fasti restore` from a backup"
)

_FIELDS = struct.Struct("<8sIIQQQIQ4x")
_CHECKSUM = struct.Struct("<Q")
assert _FIELDS.size + _CHECKSUM.size == SEGMENT_HEADER_BYTES

# Places of frames are kept as multiples of their alignment, so that 32 bits reach 256 GiB.
_READ_BYTES = 1 << 20
_NONCE_OFFSET = 56
_MAGIC_WORD = int.from_bytes(MAGIC, "little")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What all frames of a segment have in common."""

    epoch: int
    incarnation: int
    first_sequence: int
    durable_through: int
    nonce: int
    # 0 where it is not known, as in backups.
    size_bytes: int = 0


def segment_name(directory: str, first_sequence: int) -> str:
    """The file name of the segment that begins with this sequence."""
    return f"{directory}/{first_sequence:020d}{SEGMENT_SUFFIX}"


def read_segment_header(files: Files, name: str) -> SegmentHeader:
    """The header of a segment file; raises `Corruption`, `NewerFormat` or what the disk raises."""
    return decode_segment_header(read_whole(files, name, SEGMENT_HEADER_BYTES), name)


def first_sequence_in(name: str) -> int:
    """The sequence with which a segment begins, by its file name."""
    return int(name.rpartition("/")[2].removesuffix(SEGMENT_SUFFIX))


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first 64 bytes of a segment file."""
    fields = _FIELDS.pack(
        SEGMENT_MAGIC,
        SEGMENT_FORMAT_VERSION,
        header.epoch,
        header.incarnation,
        header.first_sequence,
        header.durable_through,
        header.nonce,
        header.size_bytes,
    )
    return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))


def decode_segment_header(data: bytes, name: str) -> SegmentHeader:
    """The header of the segment file ``name``; raises `Corruption` or `NewerFormat`."""
    if len(data) < SEGMENT_HEADER_BYTES or not data.startswith(SEGMENT_MAGIC):
        raise Corruption(f"{name} does not begin with a segment header", file=name, offset=0)
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if xxh3_64_intdigest(data[: _FIELDS.size]) != checksum:
        raise Corruption(
            f"{name}: the checksum of the segment header is wrong", file=name, offset=0
        )
    _, version, *fields = _FIELDS.unpack_from(data)
    check_format(name, version, SEGMENT_FORMAT_VERSION, file=name, offset=0)
    header = SegmentHeader(*fields)
    if not name.endswith(f"{header.first_sequence:020d}{SEGMENT_SUFFIX}"):
        message = f"{name} holds the segment of frame {header.first_sequence}"
        raise Corruption(message, file=name, offset=0)
    return header


@dataclass(slots=True)
class Walk:
    """What `walk` found: the frames in order, and where and why it stopped.

    ``problem`` is None when it stopped because it had all that it was asked for, or because
    nothing more fits; it says what was wrong with the place at ``end`` otherwise (which may
    simply be the unused rest).  ``stepped_over`` are damaged marks, which cost nothing.
    """

    places: array[int] = field(default_factory=lambda: array("I"))
    flags: bytearray = field(default_factory=bytearray)
    end: int = SEGMENT_HEADER_BYTES
    synced_through: int = 0
    problem: str | None = None
    stepped_over: list[int] = field(default_factory=list)

    def offset(self, index: int) -> int:
        """Where in the file the frame with this index begins."""
        return self.places[index] * ALIGNMENT


def walk(
    view: memoryview,
    segment: SegmentHeader,
    name: str,
    *,
    start: tuple[int, int] | None = None,
    stop_before: int | None = None,
    bodies: bool = True,
) -> Walk:
    """Read frames until the sequence ``stop_before`` or the first that isn't as expected.

    ``start`` is an offset and the sequence expected there, by default the segment's first.
    With ``bodies`` every body is checked against its checksum, which reads the whole file.
    Raises `NewerFormat` for a frame of this segment that a newer version wrote.
    """
    offset, first = start or (SEGMENT_HEADER_BYTES, segment.first_sequence)
    scan = Walk(synced_through=segment.durable_through, end=offset)
    while True:
        expected = first + len(scan.places)
        if stop_before is not None and expected >= stop_before:
            return scan
        if scan.end + HEADER_BYTES > len(view):
            return scan
        header = decode_header(view, scan.end)
        scan.problem = _problem(view, scan.end, header, segment, expected, bodies)
        if scan.problem == _NEWER and header is not None:
            place = {"file": name, "offset": scan.end}
            check_format(f"{name} at {scan.end}", header.version, FORMAT_VERSION, **place)
        if scan.problem is not None or header is None:
            resumed = _place_of(view, scan.end + ALIGNMENT, segment, expected)
            if resumed is None:
                return scan
            # What was damaged can't be the frame expected, for that one comes later: it was
            # a mark, and nothing is lost with it.
            scan.stepped_over.append(scan.end)
            scan.end = resumed
            continue
        if not header.flags & MARK:
            scan.places.append(scan.end // ALIGNMENT)
            scan.flags.append(header.flags)
        scan.synced_through = max(scan.synced_through, header.synced_through)
        scan.end += frame_bytes(header.body_length)


_NEWER = "of a newer format"


def _problem(
    view: memoryview,
    offset: int,
    header: Header | None,
    segment: SegmentHeader,
    expected: int,
    bodies: bool,
) -> str | None:
    """Why this isn't the frame ``expected``, nor a mark behind the one before it."""
    if header is None:
        return "no valid frame header"
    if not _belongs(header, segment):
        return "a frame of another segment"
    if header.sequence != (expected - 1 if header.flags & MARK else expected):
        return f"frame {header.sequence} where {expected} was expected"
    if header.version > FORMAT_VERSION:
        return _NEWER
    if offset + frame_bytes(header.body_length) > len(view):
        return "the frame is longer than the file"
    if bodies and stored_body(view, offset, header) is None:
        return "the checksum of its body is wrong"
    return None


def _belongs(header: Header, segment: SegmentHeader) -> bool:
    return (
        header.nonce == segment.nonce
        and header.epoch == segment.epoch
        and header.incarnation == segment.incarnation
    )


def later_headers(
    view: memoryview, start: int, segment: SegmentHeader, at_least: int
) -> Iterator[tuple[int, Header]]:
    """Valid headers of this segment's frames from ``start`` on, by searching for the magic.

    Only those with a sequence of ``at_least``.  Stale frames of a recycled file are skipped by
    whole columns, since there may be hundreds of thousands of them.
    """
    start += -start % ALIGNMENT
    usable = (len(view) - start) // ALIGNMENT * ALIGNMENT
    if usable < HEADER_BYTES:
        return
    # One row per place where a frame could begin; the columns are the header's fields.
    halves = np.frombuffer(view[start : start + usable], dtype="<u4").reshape(-1, 16)
    words = np.frombuffer(view[start : start + usable], dtype="<u8").reshape(-1, 8)
    ours = (halves[:, 0] == _MAGIC_WORD) & (halves[:, 14] == segment.nonce)
    for hit in np.flatnonzero(ours & (words[:, 3] >= at_least)).tolist():
        offset = start + hit * ALIGNMENT
        header = decode_header(view, offset)
        if header is not None and _belongs(header, segment):
            yield offset, header


def _place_of(view: memoryview, start: int, segment: SegmentHeader, sequence: int) -> int | None:
    for offset, header in later_headers(view, start, segment, sequence):
        if header.sequence == sequence and not header.flags & MARK:
            return offset
    return None


def evidence_after(
    view: memoryview, start: int, segment: SegmentHeader, sequence: int
) -> int | None:
    """The offset of a frame that knew ``sequence`` to be durable, if there is one behind.

    It may lie where no frame is written: bytes before it were cut out, or came in.
    """
    for offset, header in later_headers(view, start, segment, sequence):
        if header.synced_through >= sequence:
            return offset
    for match in _header_pattern(segment.nonce).finditer(view, start):
        shifted = decode_header(view, match.start())
        if shifted is not None and _belongs(shifted, segment):
            if min(shifted.sequence, shifted.synced_through) >= sequence:
                return match.start()
    return None


def _header_pattern(nonce: int) -> re.Pattern[bytes]:
    """Headers of a segment's frames at any offset."""
    between = b".{%d}" % (_NONCE_OFFSET - len(MAGIC))
    return re.compile(re.escape(MAGIC) + between + re.escape(struct.pack("<I", nonce)), re.DOTALL)


# A mark on a frame's place in its segment, which is counted in steps of its alignment.
CHECKED = 1 << 31


def offset_of(place: int) -> int:
    """Where in the file a frame begins."""
    return (place & (CHECKED - 1)) * ALIGNMENT


class Segment:
    """An open segment file: its map, the places of its frames, and where the next one goes.

    ``places`` is None until a frame of a sealed segment is read, and again when younger segments have
    come: one list that is only ever replaced as a whole, so a reader takes it and needs no lock.  The
    places of frames whose body this process has checked are marked with ``CHECKED``.
    """

    __slots__ = ("end", "file", "header", "name", "places", "view")

    def __init__(self, file: File, name: str, header: SegmentHeader) -> None:
        self.file = file
        self.name = name
        self.header = header
        self.view = file.map()
        self.places: array[int] | None = None
        self.end = SEGMENT_HEADER_BYTES

    def adopt(self, places: array[int], verified: bool) -> None:
        """Take over the places of frames that `walk` found."""
        self.places = array("I", [place | CHECKED for place in places]) if verified else places

    def note(self, offsets: Sequence[int]) -> None:
        """Frames were written at these offsets."""
        if self.places is None:
            self.places = array("I")
        # What was written is read from the disk again, some day: it is checked then.
        for offset in offsets:
            self.places.append(offset // ALIGNMENT)

    def frames_from(self, sequence: int) -> list[tuple[Header, list[memoryview]]]:
        """Headers and bodies of the frames known, which must have been checked."""
        frames = []
        for place in (self.places or ())[sequence - self.header.first_sequence :]:
            offset = offset_of(place)
            header = decode_header(self.view, offset)
            assert header is not None
            start = offset + HEADER_BYTES
            frames.append((header, [self.view[start : start + header.body_length]]))
        return frames

    def let_go(self) -> bool:
        """Drop the map; True when no reader holds a view of it."""
        self.view.release()
        return not self.file.busy()


def open_segment(files: Files, name: str) -> Segment:
    """Open an existing segment for reading; raises `Corruption` or `NewerFormat`."""
    file = files.open(name, writable=False)
    try:
        header = decode_segment_header(file.read_at(0, 64), name)
        if file.size < header.size_bytes:
            raise too_short(name, file.size, header.size_bytes)
        return Segment(file, name, header)
    finally:
        file.close()  # Its map is enough, and thousands of descriptors would be too many.


def too_short(name: str, size: int, expected: int) -> Corruption:
    """The error for a file that was cut."""
    return Corruption(
        f"{name}: the file was cut: it has {size} of {expected} bytes; {REMEDY}",
        file=name,
        offset=size,
        details={"missing_bytes": expected - size},
    )


def read_through(files: Files, name: str) -> None:
    """Read a whole file once and drop it; raises `StorageFailed` if some of it can't be read.

    Done before a segment is first walked through its map, because a bad sector under a map
    doesn't raise but kills the process, again at every start.  It also fetches the pages in
    the order in which the disk likes to give them.
    """
    file = files.open(name, writable=False)
    try:
        for offset in range(0, file.size, _READ_BYTES):
            file.read_at(offset, _READ_BYTES)
    finally:
        file.close()


def give_birth(
    files: Files, spare: str, name: str, header: SegmentHeader, content: Sequence[Buffer]
) -> Segment:
    """Turn a spare file into the segment ``name``, with these frames already in it.

    Durable when it returns: header and frames first, then the name.  What had the name before
    is replaced in the same instant.  The caller must have synced everything before it.
    """
    file = files.open(spare, writable=True)
    try:
        header = replace(header, size_bytes=file.size)
        file.write_at(0, [encode_segment_header(header), *content])
        file.sync()
    finally:
        file.close()
    files.rename(spare, name)
    files.sync_directory(folder_of(name))
    return Segment(files.open(name, writable=True), name, header)
