"""Verifying what is stored, and repairing a journal that can't be opened.

`verify` reads everything and changes nothing.  `repair` is for the moment when acknowledged
frames are lost and a human has decided to go on without them; it never runs by itself, and does
nothing but tell its plan unless it is told ``dry_run=False``.  It

* rebuilds a segment header from its first frame, which loses nothing, and lets the header of a file
  that was cut say how long it is now;
* then *cuts* the journal before the first damaged frame: everything behind it, good or bad, is
  out of the journal;
* or, with ``allow_gap``, gives up only the damaged frames: they become VOID frames that keep
  their sequences, and groups that they belonged to are void as a whole.  What later frames say
  about messages in the gap is mended by `repair_directory` (repair.py), which calls this.

Every byte that leaves the journal is first copied, durably, below ``lost+found/``.  A repair
that is interrupted can be run again.  It takes the directory's lock, so no broker runs beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fasti.errors import Corruption, FastiError
from fasti.storage.blocks import MANIFEST_NAME, TEMPORARY
from fasti.storage.files import Files, folder_of
from fasti.storage.files.blocks import decode_manifest
from fasti.storage.files.journal_end import end_name
from fasti.storage.files.journal_segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_segment_header,
    give_birth,
    segment_name,
)
from fasti.storage.files.journal_survey import (
    Damage,
    Finding,
    Survey,
    SurveyedSegment,
    cut_header,
    survey,
)
from fasti.storage.frames import (
    END,
    FORMAT_VERSION,
    HEADER_BYTES,
    VOID,
    Header,
    body_checksum,
    encode_header,
)

__all__ = ["Action", "Finding", "Report", "Step", "carry_out", "plan", "repair", "verify"]

LOST_AND_FOUND = "lost+found"
_GAP_FRAMES_MAX = 1_000_000


@dataclass(slots=True)
class Report:
    """What `verify` saw.  ``ok`` when nothing that was acknowledged is lost."""

    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    frames: int = 0
    journal_bytes: int = 0
    blocks: int = 0
    block_bytes: int = 0
    manifest_version: int | None = None

    @property
    def ok(self) -> bool:
        """Whether every finding is harmless."""
        return all(finding.harmless for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a repair: what is done to which file, and which sequences it costs."""

    kind: str
    file: str
    offset: int
    message: str
    first_lost: int | None = None
    last_lost: int | None = None


def verify(files: Files, *, journal: str = "journal", blocks: str = "blocks") -> Report:
    """Read the whole journal, the manifest and the sizes of all blocks; changes nothing."""
    found = survey(files, journal)
    report = Report(findings=list(found.findings), segments=len(found.segments))
    report.frames = sum(segment.frames for segment in found.segments)
    report.journal_bytes = sum(segment.size for segment in found.segments)
    for name in files.list(f"{blocks}/"):
        report.findings += _check_block(files, name, f"{blocks}/{MANIFEST_NAME}", report)
    return report


def _check_block(files: Files, name: str, manifest: str, report: Report) -> Iterator[Finding]:
    if name.endswith(TEMPORARY):
        message = "left by a write that was never finished"
        remedy = "nothing: it is removed at the next opening"
        yield Finding(name, 0, "leftover", message, remedy, harmless=True)
        return
    try:
        file = files.open(name, writable=False)
        try:
            size = file.size
            content = file.read_at(0, size) if name == manifest else b""
        finally:
            file.close()
        if name == manifest:
            report.manifest_version = decode_manifest(content, name)[0]
            return
    except FastiError as error:
        remedy = "restore it, or rebuild from the journal if that reaches back to its beginning"
        yield Finding(name, 0, error.code, error.message, remedy)
        return
    report.blocks += 1
    report.block_bytes += size


def repair(
    files: Files, *, journal: str = "journal", allow_gap: bool = False, dry_run: bool = True
) -> list[Action]:
    """Make a damaged journal one that can be read, and return what was done (or would be).

    An empty list means that there is nothing to repair.  Raises `Corruption` when this can't
    help, `DataDirLocked` when a broker runs; in a dry run nothing is changed or locked.
    """
    if dry_run:
        return [action for action, _ in plan(files, journal, allow_gap)]
    lock = files.lock()
    try:
        return carry_out(plan(files, journal, allow_gap))
    finally:
        lock.release()


def plan(
    files: Files, journal: str = "journal", allow_gap: bool = False, needed_after: int = 0
) -> list[tuple[Action, Step]]:
    """What a repair would do, in order.  Frames up to ``needed_after`` are only history."""
    return list(_plan(files, journal, survey(files, journal), allow_gap, needed_after))


def carry_out(steps: list[tuple[Action, Step]]) -> list[Action]:
    """Do what was planned.  The caller has the directory's lock."""
    for _, step in steps:
        step()
    return [action for action, _ in steps]


class Step:
    """Something to do later, with its arguments; a call does it."""

    def __init__(self, files: Files, directory: str, segment: SurveyedSegment) -> None:
        self.files = files
        self.directory = directory
        self.segment = segment

    def __call__(self) -> None:
        raise NotImplementedError

    def keep(self, segment: SurveyedSegment, start: int, end: int) -> None:
        """Copy bytes that are about to go to a file of their own below lost+found."""
        if segment.is_missing:
            return
        stem = segment.name.rpartition("/")[2]
        number = 0
        while self.files.exists(f"{LOST_AND_FOUND}/{stem}-{start}.{number}"):
            number += 1
        name = f"{LOST_AND_FOUND}/{stem}-{start}.{number}"
        file = self.files.open(segment.name, writable=False)
        try:
            self.files.replace(name, file.read_at(start, end - start))
        finally:
            file.close()

    def remove(self, segment: SurveyedSegment) -> None:
        """Take a whole file out, durably."""
        if segment.is_missing:
            return
        self.keep(segment, 0, segment.size)
        self.files.delete(segment.name)
        self.files.sync_directory(folder_of(segment.name))

    def forget_end(self) -> None:
        """The journal ends elsewhere from now on.  Done last: until then it tells what is missing."""
        if self.files.exists(end_name(self.directory)):
            self.files.delete(end_name(self.directory))
            self.files.sync_directory(self.directory)

    def overwrite(self, offset: int, data: bytes) -> None:
        file = self.files.open(self.segment.name, writable=True)
        try:
            file.write_at(offset, [data])
            file.sync()
        finally:
            file.close()


class _RebuildHeader(Step):
    def __call__(self) -> None:
        assert self.segment.header is not None
        self.keep(self.segment, 0, SEGMENT_HEADER_BYTES)
        self.overwrite(0, encode_segment_header(self.segment.header))


class _Cut(Step):
    """End the journal before ``damage``; ``later`` are the segments behind, the last one first."""

    def __init__(
        self,
        files: Files,
        directory: str,
        segment: SurveyedSegment,
        damage: Damage,
        later: list[SurveyedSegment],
    ) -> None:
        super().__init__(files, directory, segment)
        self.damage = damage
        self.later = later

    def __call__(self) -> None:
        for segment in self.later:
            self.remove(segment)
        if self.segment.header is None:
            self.remove(self.segment)
        else:
            self.keep(self.segment, self.damage.start, self.segment.size)
            header = cut_header(self.segment.header, self.damage.first)
            self.overwrite(self.damage.start, bytes(self.segment.size - self.damage.start))
            self.overwrite(0, encode_segment_header(header))
        self.forget_end()


class _Drop(Step):
    """Take a whole segment out, of which nothing can be told; the journal begins behind it."""

    def __call__(self) -> None:
        self.remove(self.segment)
        self.forget_end()


class _Void(Step):
    """Replace damaged frames by VOID ones, in place if a good frame follows in the segment."""

    def __init__(
        self,
        files: Files,
        directory: str,
        segment: SurveyedSegment,
        damage: Damage,
        header: SegmentHeader,
    ) -> None:
        super().__init__(files, directory, segment)
        self.damage = damage
        self.header = header

    def __call__(self) -> None:
        damage = self.damage
        assert damage.last is not None
        self.keep(self.segment, damage.start, damage.end)
        if not damage.resumes:
            self._fill(damage.first, damage.last)
            return
        empty = b"".join(self._frame(n, b"") for n in range(damage.first, damage.last))
        rest = bytes(damage.end - damage.start - len(empty) - HEADER_BYTES)
        self.overwrite(damage.start, empty + self._frame(damage.last, rest))

    def _frame(self, sequence: int, body: bytes) -> bytes:
        header = Header(
            version=FORMAT_VERSION,
            flags=VOID | END,
            body_length=len(body),
            epoch=self.header.epoch,
            incarnation=self.header.incarnation,
            sequence=sequence,
            synced_through=self.damage.first - 1,
            at_us=0,
            nonce=self.header.nonce,
            body_checksum=body_checksum([body]),
        )
        return encode_header(header) + body

    def _fill(self, first: int, last: int) -> None:
        """A segment of VOID frames behind the damaged one, which from then on ends before it."""
        content = [self._frame(sequence, b"") for sequence in range(first, last + 1)]
        header = replace(self.header, first_sequence=first, durable_through=last)
        spare = f"{self.directory}/spare-00000000.preparing"
        if self.files.exists(spare):
            self.files.delete(spare)
        size = SEGMENT_HEADER_BYTES + HEADER_BYTES * (len(content) + 1)
        self.files.create(spare, size).close()
        name = segment_name(self.directory, first)
        filler = give_birth(self.files, spare, name, header, content)
        filler.let_go()
        filler.file.close()
        self.forget_end()


def _plan(
    files: Files, directory: str, found: Survey, allow_gap: bool, needed_after: int
) -> Iterator[tuple[Action, Step]]:
    """What to do, in order; nothing is changed by looking at it."""
    _refuse_hopeless(found)
    for segment in found.segments:
        if segment.rebuilt:
            message = "rebuild the segment header from the first frame"
            action = Action("rebuild_header", segment.name, 0, message)
            yield action, _RebuildHeader(files, directory, segment)
        elif segment.resized:
            message = f"write down that the file has {segment.size} bytes now"
            action = Action("rebuild_header", segment.name, 0, message)
            yield action, _RebuildHeader(files, directory, segment)
    for position, segment in enumerate(found.segments):
        for damage in segment.damages:
            history = damage.last is not None and damage.last <= needed_after
            if damage.last is None or not (allow_gap or history):
                later = found.segments[position + 1 :]
                yield _cut_step(files, directory, segment, damage, later)
                return
            if any(other.header is not None for other in found.segments[: position + 1]):
                yield _void_step(files, directory, found, position, damage)
            else:
                message = f"take the segment out, with frames {damage.first} to {damage.last}"
                where = (segment.name, 0, message, damage.first, damage.last)
                yield Action("drop", *where), _Drop(files, directory, segment)


def _refuse_hopeless(found: Survey) -> None:
    for finding in found.findings:
        if finding.kind in ("newer_format", "unreadable", "foreign_segment"):
            raise Corruption(
                f"{finding.file}: {finding.message}; {finding.remedy}",
                file=finding.file,
                offset=finding.offset,
            )


def _cut_step(
    files: Files,
    directory: str,
    segment: SurveyedSegment,
    damage: Damage,
    later: list[SurveyedSegment],
) -> tuple[Action, Step]:
    message = f"cut the journal before frame {damage.first}, with all that follows"
    last = None if damage.resumes or later else damage.last
    action = Action("cut", segment.name, damage.start, message, damage.first, last)
    return action, _Cut(files, directory, segment, damage, later[::-1])


def _void_step(
    files: Files, directory: str, found: Survey, position: int, damage: Damage
) -> tuple[Action, Step]:
    segment = found.segments[position]
    assert damage.last is not None
    if damage.last - damage.first >= _GAP_FRAMES_MAX:
        raise Corruption(
            f"{segment.name}: a gap of {damage.last - damage.first + 1} frames is not a gap",
            file=segment.name,
            offset=damage.start,
        )
    headers = [other.header for other in found.segments[: position + 1]]
    header = next(header for header in reversed(headers) if header is not None)
    message = f"give up frames {damage.first} to {damage.last}, and the groups they belong to"
    action = Action("void", segment.name, damage.start, message, damage.first, damage.last)
    return action, _Void(files, directory, segment, damage, header)
