"""A survey of a journal: every segment and frame is read, and everything odd is written down.

Opening a journal stops at the first damage; a survey goes on behind it, to tell how far it
reaches and what is left.  It reads through `File.read_at`, not through maps, because a bad
sector under a map kills the process.  It changes nothing and needs no lock; beside a running
broker its last segment is a moving target, and only damage before that means anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from fasti.errors import Corruption, NewerFormat, StorageError
from fasti.storage.files import Files, read_whole
from fasti.storage.files.journal_end import SyncedEnd, read_end
from fasti.storage.files.journal_recovery import segment_names
from fasti.storage.files.journal_segment import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    SegmentHeader,
    Walk,
    decode_segment_header,
    evidence_after,
    later_headers,
    read_segment_header,
    segment_name,
    walk,
)
from fasti.storage.frames import ALIGNMENT, MARK, VOID, decode_header, stored_body

REPAIR = "repair cuts the journal here, or with --allow-gap gives up these frames alone"
_FOREIGN = "find out where it came from"


@dataclass(frozen=True, slots=True)
class Finding:
    """One odd thing. A ``harmless`` one is reported, but nothing need be done about it."""

    file: str
    offset: int
    kind: str
    message: str
    remedy: str
    sequence: int | None = None
    harmless: bool = False


@dataclass(frozen=True, slots=True)
class DamagedFrames:
    """Acknowledged frames that can't be read: ``first`` to ``last``, at ``start`` to ``end``.

    ``resumes`` tells that the next frame lies at ``end`` in the same segment.  ``last`` is None
    when it is not known how many there were.
    """

    start: int
    end: int
    first: int
    last: int | None
    resumes: bool
    problem: str


@dataclass(slots=True)
class SurveyedSegment:
    """One segment file.  ``bound`` is the first sequence of the next one, None for the last."""

    name: str
    first: int
    bound: int | None
    size: int = 0
    view: memoryview = field(default_factory=lambda: memoryview(b""))
    header: SegmentHeader | None = None
    rebuilt: bool = False
    # The file is shorter than its header said, which says now what it is.
    resized: bool = False
    is_missing: bool = False
    readable: bool = True
    frames: int = 0
    # Up to which frame, and offset, its end is known to have been synced.
    promised: int = 0
    promised_offset: int = 0
    damages: list[DamagedFrames] = field(default_factory=list)


@dataclass(slots=True)
class Survey:
    """All segments in order, and what was found in them."""

    segments: list[SurveyedSegment] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    # What the file END says, whether it still matters or not.
    end: SyncedEnd | None = None


def survey(files: Files, directory: str) -> Survey:
    """Read a whole journal.  Raises only what listing the folder raises."""
    # Before the segments, so that beside a running broker it says too little and not too much.
    result = Survey(end=read_end(files, directory))
    names = segment_names(files, directory)
    numbers = [name.rpartition("/")[2].removesuffix(SEGMENT_SUFFIX) for name in names]
    known = [(name, int(text)) for name, text in zip(names, numbers, strict=True) if text.isdigit()]
    missing = _missing_newest(files, directory, known, result.end)
    known += missing
    for position, (name, first) in enumerate(known):
        bound = known[position + 1][1] if position + 1 < len(known) else None
        segment = SurveyedSegment(name, first, bound, is_missing=(name, first) in missing)
        result.segments.append(segment)
        result.findings += _read(files, segment, result.end)
        if segment.header is not None:
            result.findings += _frames(segment, segment.header)
        segment.view = memoryview(b"")  # One segment in memory at a time.
    result.findings += _order(result.segments)
    return result


def _missing_newest(
    files: Files, directory: str, known: list[tuple[str, int]], end: SyncedEnd | None
) -> list[tuple[str, int]]:
    """The segment of which the end speaks, if it is not there and none is newer."""
    if end is None or (known and known[-1][1] >= end.first_sequence):
        return []
    if known:
        try:
            newest = read_segment_header(files, known[-1][0])
        except StorageError:
            pass
        else:
            if newest.incarnation != end.incarnation or newest.epoch > end.epoch:
                return []
    return [(segment_name(directory, end.first_sequence), end.first_sequence)]


def _promise(segment: SurveyedSegment, end: SyncedEnd | None) -> bool:
    """Note what the end says of this segment, if it is the one; False if it means another file."""
    if end is None or segment.bound is not None or segment.first != end.first_sequence:
        return True
    header = segment.header
    if header is not None:
        if header.incarnation != end.incarnation or header.epoch > end.epoch:
            return True
        if header.nonce != end.nonce:
            return False
    segment.promised, segment.promised_offset = end.last_sequence, end.offset
    return True


def _read(files: Files, segment: SurveyedSegment, end: SyncedEnd | None) -> Iterator[Finding]:
    """Load a segment and its header, which may be rebuilt from the first frame."""
    name = segment.name
    if segment.is_missing:
        assert end is not None
        damage = DamagedFrames(0, 0, segment.first, end.last_sequence, False, "the file is missing")
        segment.damages.append(damage)
        frames = end.last_sequence - segment.first + 1
        message = f"missing, with {frames} frames up to {end.last_sequence}, {end.offset} bytes"
        yield Finding(name, 0, "missing_segment", message, REPAIR, segment.first)
        return
    try:
        segment.view = memoryview(read_whole(files, name))
        segment.size = len(segment.view)
        segment.header = decode_segment_header(bytes(segment.view[:64]), name)
        if not _promise(segment, end):
            message = "not the file that was synced under this name"
            yield Finding(name, 0, "foreign_segment", message, _FOREIGN, segment.first)
        yield from _check_size(segment, segment.header)
    except NewerFormat as error:
        segment.readable = False
        yield Finding(name, 0, error.code, error.message, "use the version that wrote it")
    except Corruption as error:
        yield from _rebuild(segment, error, end)
    except StorageError as error:
        segment.readable = False
        yield Finding(
            name,
            0,
            "unreadable",
            error.message,
            "check the disk, then restore the directory from a backup",
        )


def _check_size(segment: SurveyedSegment, header: SegmentHeader) -> Iterator[Finding]:
    if segment.size >= header.size_bytes:
        return
    segment.resized = True
    segment.header = replace(header, size_bytes=segment.size)
    message = f"the file was cut: it has {segment.size} of {header.size_bytes} bytes"
    remedy = "repair goes on with what is left; findings behind this one tell which frames are lost"
    yield Finding(segment.name, segment.size, "short_file", message, remedy, segment.first)


def _rebuild(
    segment: SurveyedSegment, error: Corruption, end: SyncedEnd | None
) -> Iterator[Finding]:
    first = decode_header(segment.view, SEGMENT_HEADER_BYTES)
    if first is not None and first.sequence == segment.first:
        who = (first.epoch, first.incarnation)
        segment.header = SegmentHeader(*who, segment.first, segment.first - 1, first.nonce)
        segment.rebuilt = True
        _promise(segment, end)
        remedy = "repair rebuilds it from the first frame; nothing is lost"
    else:
        _promise(segment, end)
        last = segment.promised or None if segment.bound is None else segment.bound - 1
        damage = DamagedFrames(0, segment.size, segment.first, last, False, error.message)
        segment.damages.append(damage)
        remedy = REPAIR
    yield Finding(segment.name, 0, "bad_segment_header", error.message, remedy, segment.first)


def _frames(segment: SurveyedSegment, header: SegmentHeader) -> Iterator[Finding]:
    """Walk from damage to damage."""
    start: tuple[int, int] | None = (SEGMENT_HEADER_BYTES, segment.first)
    while start is not None:
        try:
            scan = walk(segment.view, header, segment.name, start=start, stop_before=segment.bound)
        except NewerFormat as error:
            segment.readable = False
            offset = int(error.details["offset"])
            remedy = "use the version that wrote it"
            yield Finding(segment.name, offset, error.code, error.message, remedy)
            return
        segment.frames += len(scan.places)
        yield from _notes(segment, scan, start[1])
        missing = start[1] + len(scan.places)
        start = None
        if _is_damage(segment, header, scan, missing):
            damage = _damage(segment, header, scan, missing)
            segment.damages.append(damage)
            yield _lost_frames(segment, damage)
            if damage.resumes and damage.last is not None:
                start = (damage.end, damage.last + 1)
        elif segment.bound is None and _is_torn(segment, header, scan, missing):
            yield _torn(segment, scan, missing)


def _is_damage(segment: SurveyedSegment, header: SegmentHeader, scan: Walk, missing: int) -> bool:
    if segment.bound is not None:
        return missing < segment.bound
    if missing <= max(header.durable_through, segment.promised):
        return True
    if segment.resized and not segment.promised:
        # Nothing tells whether there were frames in the part that is gone.
        return True
    proof = evidence_after(segment.view, scan.end + ALIGNMENT, header, missing)
    return scan.problem is not None and proof is not None


def _damage(
    segment: SurveyedSegment, header: SegmentHeader, scan: Walk, missing: int
) -> DamagedFrames:
    problem = scan.problem or "the file ends"
    for offset, later in later_headers(segment.view, scan.end + ALIGNMENT, header, missing + 1):
        if segment.bound is not None and later.sequence >= segment.bound:
            break
        if not later.flags & MARK and stored_body(segment.view, offset, later) is not None:
            return DamagedFrames(scan.end, offset, missing, later.sequence - 1, True, problem)
    last = None if segment.bound is None else segment.bound - 1
    if segment.promised >= missing:
        last = segment.promised
        size = max(0, segment.promised_offset - scan.end)
        problem = f"the end is missing, {size} bytes that were synced"
    return DamagedFrames(scan.end, segment.size, missing, last, False, problem)


def _lost_frames(segment: SurveyedSegment, damage: DamagedFrames) -> Finding:
    upto = f" to {damage.last}" if damage.last not in (None, damage.first) else ""
    message = f"frame {damage.first}{upto}, which was acknowledged, is lost: {damage.problem}"
    kind = "damaged_frame"
    return Finding(segment.name, damage.start, kind, message, REPAIR, damage.first)


def _is_torn(segment: SurveyedSegment, header: SegmentHeader, scan: Walk, missing: int) -> bool:
    return any(True for _ in later_headers(segment.view, scan.end, header, missing))


def _torn(segment: SurveyedSegment, scan: Walk, missing: int) -> Finding:
    message = f"frame {missing} was being written when the process ended"
    remedy = "nothing: it was never acknowledged, and is cut at the next opening"
    return Finding(segment.name, scan.end, "torn_tail", message, remedy, missing, harmless=True)


def _notes(segment: SurveyedSegment, scan: Walk, first: int) -> Iterator[Finding]:
    for offset in scan.stepped_over:
        message = "a damaged sync mark"
        yield Finding(segment.name, offset, "damaged_mark", message, "nothing", harmless=True)
    for index, flags in enumerate(scan.flags):
        if flags & VOID:
            message = f"frame {first + index} was given up by a repair"
            place = scan.offset(index)
            yield Finding(
                segment.name, place, "void_frame", message, "nothing", first + index, harmless=True
            )


def _order(segments: list[SurveyedSegment]) -> Iterator[Finding]:
    for before, segment in pairwise(segments):
        if before.header is None or segment.header is None:
            continue
        same = before.header.incarnation == segment.header.incarnation
        if not same or before.header.epoch > segment.header.epoch:
            message = "incarnation or epoch doesn't follow the segment before it"
            yield Finding(segment.name, 0, "foreign_segment", message, _FOREIGN, segment.first)


def cut_header(header: SegmentHeader, before: int) -> SegmentHeader:
    """The header of a segment that was cut before a sequence."""
    return replace(header, durable_through=min(header.durable_through, before - 1))
