"""Repairing a journal that can't be read.

This is for the moment when acknowledged frames are lost and the operator has decided to go on without
them; it never runs by itself. A repair

* rebuilds a segment header from its first frame, which loses nothing, and lets the header of a file
  that was cut say how long it is now;
* then *cuts* the journal before the first damaged frame: everything behind it, good or bad, is
  out of the journal;
* or, with ``allow_gap``, gives up only the damaged frames: they become VOID frames that keep
  their sequences, and groups that they belonged to are void as a whole. What later frames say
  about messages in the gap is mended afterwards (repair.py).

Every byte that leaves the journal is first copied, durably, below ``lost+found/``. A repair
that is interrupted can be run again. The caller has the directory's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from fasti.errors import Corruption
from fasti.storage.files import Files
from fasti.storage.files.journal_end import end_name
from fasti.storage.files.journal_segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_segment_header,
    give_birth,
    segment_name,
)
from fasti.storage.files.journal_survey import (
    DamagedFrames,
    Survey,
    SurveyedSegment,
    cut_header,
    survey,
)
from fasti.storage.files.rebase import LOST_AND_FOUND
from fasti.storage.frames import (
    END,
    FORMAT_VERSION,
    HEADER_BYTES,
    VOID,
    Header,
    body_checksum,
    encode_header,
)

_GAP_FRAMES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a repair: what is done to which file, and which sequences it costs."""

    kind: str
    file: str
    offset: int
    message: str
    first_lost: int | None = None
    last_lost: int | None = None


# An action, and what carries it out.
Step = tuple[Action, Callable[[], None]]


def plan_repair(files: Files, allow_gap: bool = False, needed_after: int = 0) -> list[Step]:
    """What a repair would do, in order; nothing is changed by looking at it.

    Frames up to ``needed_after`` are only history. Raises `Corruption` when a repair can't help.
    """
    journal = survey(files, "journal")
    _refuse_hopeless(journal)
    return list(_Surgery(files, journal).plan(allow_gap, needed_after))


def carry_out(steps: list[Step]) -> list[Action]:
    """Does what was planned."""
    for _, act in steps:
        act()
    return [action for action, _ in steps]


def _refuse_hopeless(journal: Survey) -> None:
    for finding in journal.findings:
        if finding.kind in ("newer_format", "unreadable", "foreign_segment"):
            raise Corruption(
                f"{finding.file}: {finding.message}; {finding.remedy}",
                file=finding.file,
                offset=finding.offset,
            )


class _Surgery:
    """Plans the steps of a repair, and has what they do."""

    def __init__(self, files: Files, journal: Survey) -> None:
        self._files, self._segments = files, journal.segments

    def plan(self, allow_gap: bool, needed_after: int) -> Iterator[Step]:
        for segment in self._segments:
            if segment.rebuilt or segment.resized:
                message = "rebuild the segment header from the first frame"
                if segment.resized:
                    message = f"write down that the file has {segment.size} bytes now"
                action = Action("rebuild_header", segment.name, 0, message)
                yield action, partial(self._rebuild_header, segment)
        for position, segment in enumerate(self._segments):
            for damage in segment.damages:
                is_history = damage.last is not None and damage.last <= needed_after
                if damage.last is None or not (allow_gap or is_history):
                    yield self._plan_cut(position, damage)
                    return
                yield self._plan_gap(position, damage, damage.last)

    def _plan_cut(self, position: int, damage: DamagedFrames) -> Step:
        segment, later = self._segments[position], self._segments[position + 1 :]
        message = f"cut the journal before frame {damage.first}, with all that follows"
        last = None if damage.resumes or later else damage.last
        action = Action("cut", segment.name, damage.start, message, damage.first, last)
        return action, partial(self._cut, segment, damage, later)

    def _plan_gap(self, position: int, damage: DamagedFrames, last: int) -> Step:
        segment = self._segments[position]
        headers = [other.header for other in self._segments[: position + 1]]
        header = next((header for header in reversed(headers) if header is not None), None)
        if header is None:
            message = f"take the segment out, with frames {damage.first} to {last}"
            action = Action("drop", segment.name, 0, message, damage.first, last)
            return action, partial(self._drop, segment)
        if last - damage.first >= _GAP_FRAMES_MAX:
            raise Corruption(
                f"{segment.name}: {last - damage.first + 1} frames are missing, too many for a gap",
                file=segment.name,
                offset=damage.start,
            )
        message = f"give up frames {damage.first} to {last}, and the groups they belong to"
        action = Action("void", segment.name, damage.start, message, damage.first, last)
        return action, partial(self._void, segment, damage, last, header)

    # Steps

    def _rebuild_header(self, segment: SurveyedSegment) -> None:
        assert segment.header is not None
        self._save(segment, 0, SEGMENT_HEADER_BYTES)
        self._overwrite(segment, 0, encode_segment_header(segment.header))

    def _cut(
        self, segment: SurveyedSegment, damage: DamagedFrames, later: list[SurveyedSegment]
    ) -> None:
        """Ends the journal before the damage; the last of the later segments goes first."""
        for other in reversed(later):
            self._remove(other)
        if segment.header is None:
            self._remove(segment)
        else:
            self._save(segment, damage.start, segment.size)
            header = cut_header(segment.header, damage.first)
            self._overwrite(segment, damage.start, bytes(segment.size - damage.start))
            self._overwrite(segment, 0, encode_segment_header(header))
        self._forget_end()

    def _drop(self, segment: SurveyedSegment) -> None:
        """Takes a whole segment out, of which nothing can be told; the journal begins behind it."""
        self._remove(segment)
        self._forget_end()

    def _void(
        self, segment: SurveyedSegment, damage: DamagedFrames, last: int, header: SegmentHeader
    ) -> None:
        """Replaces damaged frames by VOID ones, in place if a good frame follows in the segment."""
        self._save(segment, damage.start, damage.end)
        void = partial(_void_frame, header, damage.first - 1)
        if damage.resumes:
            empty = b"".join(void(sequence) for sequence in range(damage.first, last))
            rest = bytes(damage.end - damage.start - len(empty) - HEADER_BYTES)
            self._overwrite(segment, damage.start, empty + void(last, rest))
            return
        # A segment of VOID frames behind the damaged one, which from then on ends before it.
        content = [void(sequence) for sequence in range(damage.first, last + 1)]
        header = replace(header, first_sequence=damage.first, durable_through=last)
        spare = "journal/spare-00000000.preparing"
        if self._files.exists(spare):
            self._files.delete(spare)
        size = SEGMENT_HEADER_BYTES + HEADER_BYTES * (len(content) + 1)
        self._files.create(spare, size).close()
        name = segment_name("journal", damage.first)
        filler = give_birth(self._files, spare, name, header, content)
        filler.let_go()
        filler.file.close()
        self._forget_end()

    def _save(self, segment: SurveyedSegment, start: int, end: int) -> None:
        """Copies bytes that are about to go to a file of their own below lost+found."""
        if segment.is_missing:
            return
        stem = f"{LOST_AND_FOUND}/{segment.name.rpartition('/')[2]}-{start}"
        number = 0
        while self._files.exists(f"{stem}.{number}"):
            number += 1
        file = self._files.open(segment.name, writable=False)
        try:
            self._files.replace(f"{stem}.{number}", file.read_at(start, end - start))
        finally:
            file.close()

    def _remove(self, segment: SurveyedSegment) -> None:
        """Takes a whole file out, durably."""
        if not segment.is_missing:
            self._save(segment, 0, segment.size)
            self._files.delete(segment.name)
            self._files.sync_directory("journal")

    def _forget_end(self) -> None:
        """The journal ends elsewhere from now on. Done last: until then it tells what is missing."""
        if self._files.exists(end_name("journal")):
            self._files.delete(end_name("journal"))
            self._files.sync_directory("journal")

    def _overwrite(self, segment: SurveyedSegment, offset: int, data: bytes) -> None:
        file = self._files.open(segment.name, writable=True)
        try:
            file.write_at(offset, [data])
            file.sync()
        finally:
            file.close()


def _void_frame(
    segment: SegmentHeader, synced_through: int, sequence: int, body: bytes = b""
) -> bytes:
    header = Header(
        version=FORMAT_VERSION,
        flags=VOID | END,
        body_length=len(body),
        epoch=segment.epoch,
        incarnation=segment.incarnation,
        sequence=sequence,
        synced_through=synced_through,
        at_us=0,
        nonce=segment.nonce,
        body_checksum=body_checksum([body]),
    )
    return encode_header(header) + body
