"""The journal in segment files.

Theory of operation.  Frames go into the active segment, a preallocated file; one vectored write
takes a whole batch.  When a frame doesn't fit, the active segment is *sealed*: it is synced, and
only then is the next one born (see `journal_segment`), so durability has no gap.  The frames that
didn't fit are part of that birth and durable with it, so a new segment costs no sync of its own.

Every opening starts a new segment under the next epoch, as soon as there is something to write:
a file that an earlier process, or a failed sync, has touched is never appended to.  Frames at
the tail that nobody knows to be durable are copied into that new segment at once, because the
operating system may hold them as clean pages of a sync that failed before; only when the disk
is too full for that are they synced where they lie.

Failure.  `StorageFull` is raised before anything is written, and the journal stays usable.  Any
other failure of a write or sync poisons it: what is on the disk is then unknown, every later
append or sync raises `StorageFailed`, and the owner closes it and opens a new one with
``cut_after`` set to the last sequence that it knows to be durable.

The end.  After each sync the file ``END`` is told how far it reached (see `journal_end`), so that an
end which is missing later is known to have been there.

Full disk.  An ordinary append never leaves less than the reserve of spare segments: when some of
it was used, it is restored first, or the append answers `StorageFull`.

Reading.  Bodies are slices of a map of the segment: nothing is copied, and a view stays good for
as long as it is held, also when its segment is trimmed.

Threads: as `Journal` says.  The committer's calls take no lock but the table's, for an instant.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from fasti.errors import Closed, Corruption, FastiError, InvalidArgument, StorageFailed, StorageFull
from fasti.storage.files import Files
from fasti.storage.files.journal_end import EndFile, SyncedEnd
from fasti.storage.files.journal_recovery import Chain, close_chain, read_chain
from fasti.storage.files.journal_segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    give_birth,
    segment_name,
)
from fasti.storage.files.journal_table import SegmentTable, Spares
from fasti.storage.frames import (
    BEGIN,
    BODY_BYTES_MAX,
    END,
    FORMAT_VERSION,
    HEADER_BYTES,
    MARK,
    Frame,
    Header,
    Sealed,
    StoredFrame,
    body_bytes,
    body_checksum,
    check_order,
    encode_header,
    frame_bytes,
    padding,
)
from fasti.storage.journal import prove_nothing

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEFAULT_SEGMENT_BYTES = 64 << 20
SEGMENT_BYTES_MIN = 4096


# A frame that a new segment is born with.
Content = tuple[Header, "Sequence[Buffer]"]


def random_number() -> int:
    """A number that nobody has drawn before, nor will."""
    return secrets.randbits(64)


class FileJournal:
    """A `Journal` in segment files below ``directory``.

    ``incarnation`` None takes over what is stored, or draws one for a new journal; a number that
    differs from what is stored is refused as `Corruption`.  ``cut_after`` discards frames above
    it.  ``reserve_bytes`` (default: one segment) is held back for ``use_reserve``.  ``draw``
    gives 64-bit numbers that hardly ever come twice, for incarnations and nonces.

    Opening raises `Corruption`, `NewerFormat`, or what the disk raises; it changes nothing
    before the whole chain of segments has been read and found good.
    """

    is_replicated = False
    prove = staticmethod(prove_nothing)

    def __init__(
        self,
        files: Files,
        directory: str = "journal",
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        reserve_bytes: int | None = None,
        incarnation: int | None = None,
        cut_after: int | None = None,
        draw: Callable[[], int] = random_number,
    ) -> None:
        if segment_bytes < SEGMENT_BYTES_MIN:
            raise InvalidArgument(
                f"segment_bytes is {segment_bytes}, at least {SEGMENT_BYTES_MIN} is needed",
                field="segment_bytes",
                limit=SEGMENT_BYTES_MIN,
            )
        reserve = segment_bytes if reserve_bytes is None else reserve_bytes
        self._draw = draw
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._end = EndFile(files, directory)
        self._spares = Spares(files, directory, segment_bytes, -(-reserve // segment_bytes))
        self._trimming = threading.Lock()
        # A segment that was trimmed and is still on the disk; its size if it may be a spare, else 0.
        self._leaving: tuple[str, int] | None = None
        self._failure: str | None = None
        self._closed = False
        self._in_group = False
        self._active: Segment | None = None
        self._open(incarnation, cut_after)

    # ------------------------------------------------------------------ opening

    def _open(self, incarnation: int | None, cut_after: int | None) -> None:
        chain = read_chain(self._files, self._directory, cut_after)
        try:
            known = _known_incarnation(chain, incarnation)
            self._incarnation = self._draw() if known is None else known
            self._epoch = chain.epoch + 1
            self._table = SegmentTable(self._files, chain.segments, chain.last_sequence)
            self._synced = chain.last_sequence
            # How far the synced frames themselves tell of their being synced.
            self._covered = chain.synced_sequence
            if chain.segments:
                # A process that died while it named a segment may have left the name unsynced.
                self._files.sync_directory(self._directory)
            self._drop_void(chain)
            self._spares.adopt_leftovers()
            self._settle_tail(chain)
        except BaseException:
            self._end.close()
            close_chain(chain)
            raise

    def _drop_void(self, chain: Chain) -> None:
        """Remove segments without a single finished group, the last one first.

        Each is durably gone before the next goes and before a new segment is born, so that no
        crash leaves a hole, or an old segment behind a new one.
        """
        if chain.void:
            tail = chain.segments[-1]
            self._end.lower(_end_of(tail, min(chain.synced_sequence, chain.last_sequence)))
        for segment in chain.void:
            segment.let_go()
            segment.file.close()
            self._spares.discard(segment.name)
        chain.void.clear()

    def _settle_tail(self, chain: Chain) -> None:
        """See to it that what is served is durable, and that what was cut stays cut."""
        first = chain.synced_sequence + 1
        if first > chain.last_sequence and not chain.cut_valid:
            return
        tail = self._table.tail
        try:
            self._start_segment(first, tail.frames_from(first))
        except StorageFull:
            if chain.cut_valid:
                raise
            file = self._files.open(tail.name, writable=True)
            try:
                file.sync()
            finally:
                file.close()

    # ------------------------------------------------------------------ properties

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def first_sequence(self) -> int:
        return self._table.first_sequence

    @property
    def last_sequence(self) -> int:
        return self._table.last_sequence

    @property
    def synced_sequence(self) -> int:
        return self._synced

    @property
    def end_problem(self) -> str | None:
        """Why it isn't written down any more how far the journal was synced; None if it is."""
        return self._end.problem

    def room_bytes(self) -> int:
        active = self._active
        inside = 0 if active is None else _rest(active)
        return max(0, inside + (self._spares.count - self._spares.reserve) * self._segment_bytes)

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed("the journal is closed")
        if self._failure is not None:
            raise StorageFailed(f"the journal failed before: {self._failure}")

    def _fail(self, error: BaseException) -> NoReturn:
        """Remember that the disk is in an unknown state, and raise accordingly."""
        if not isinstance(error, FastiError):
            self._failure = self._failure or f"interrupted by {type(error).__name__}"
            raise error
        self._failure = self._failure or error.message
        if isinstance(error, StorageFailed):
            raise error
        raise StorageFailed(error.message, details=error.details) from error

    # ------------------------------------------------------------------ appending

    def append(self, frames: Sequence[Frame], *, use_reserve: bool = False) -> None:
        self._check_usable()
        in_group = check_order(frames, self.last_sequence, self._in_group)
        lengths = [body_bytes(frame.body) for frame in frames]
        if max(lengths, default=0) > BODY_BYTES_MAX:
            raise InvalidArgument("frame body is too long", field="body", limit=BODY_BYTES_MAX)
        rest = 0 if self._active is None else _rest(self._active)
        (done, _), *shares = _divide(lengths, rest, self._segment_bytes)
        spares = self._spares.obtain_all([_file_bytes(used) for _, used in shares], use_reserve)
        try:
            self._write(frames[:done], lengths[:done])
            for spare, (count, _) in zip(spares, shares, strict=True):
                self._roll(spare, frames[done : done + count], lengths[done : done + count])
                done += count
        except BaseException as error:
            self._fail(error)
        self._in_group = in_group

    def _write(self, frames: Sequence[Frame], lengths: Sequence[int]) -> None:
        active = self._active
        if not frames or active is None:
            return
        offsets: list[int] = []
        buffers: list[Buffer] = []
        end = active.end
        for frame, length in zip(frames, lengths, strict=True):
            offsets.append(end)
            header = self._header(active.header.nonce, frame, length)
            buffers.append(encode_header(header))
            buffers.extend(frame.body)
            buffers.append(padding(length))
            end += frame_bytes(length)
        active.file.write_at(active.end, buffers)
        self._table.grow(active, offsets, end, frames[-1].sequence)

    def _header(self, nonce: int, frame: Frame, length: int) -> Header:
        flags = BEGIN * frame.begins_group | END * frame.ends_group
        checksum = body_checksum(frame.body) if frame.checksum is None else frame.checksum
        who = (FORMAT_VERSION, flags, length, self._epoch, self._incarnation)
        return Header(*who, frame.sequence, self._synced, frame.at_us, checksum, nonce)

    def _roll(self, spare: str, frames: Sequence[Frame], lengths: Sequence[int]) -> None:
        """Seal the active segment and start the next one with these frames."""
        self.sync()
        headers = [self._header(0, *pair) for pair in zip(frames, lengths, strict=True)]
        bodies = [frame.body for frame in frames]
        self._start_segment(frames[0].sequence, list(zip(headers, bodies, strict=True)), spare)

    def _start_segment(self, first: int, content: Sequence[Content], spare: str = "") -> None:
        """Bear the segment that begins with ``first`` and make it the active one.

        ``content`` is in it when it is born, whether new or copied from the one before it.
        """
        sizes = [frame_bytes(header.body_length) for header, _ in content]
        spare = spare or self._spares.obtain(_file_bytes(sum(sizes)), use_reserve=True)
        last = first + len(sizes) - 1
        nonce = self._draw() & 0xFFFF_FFFF
        buffers: list[Buffer] = []
        for old, body in content:
            header = old._replace(epoch=self._epoch, nonce=nonce, synced_through=first - 1)
            buffers += [encode_header(header), *body, padding(header.body_length)]
        name = segment_name(self._directory, first)
        self._end.prepare()
        birth = SegmentHeader(self._epoch, self._incarnation, first, last, nonce)
        segment = give_birth(self._files, spare, name, birth, buffers)
        self._table.succeed(segment)
        for sequence, size in enumerate(sizes, first):
            self._table.grow(segment, [segment.end], segment.end + size, sequence)
        self._covered = self._synced = last
        self._active = segment
        self._end.write(_end_of(segment, last))

    # ------------------------------------------------------------------ durability

    def sync(self) -> int:
        self._check_usable()
        last = self.last_sequence
        if self._active is not None and last > self._synced:
            try:
                self._active.file.sync()
            except BaseException as error:
                self._fail(error)
            # The frames just synced tell what was known when they were written.
            self._covered, self._synced = self._synced, last
            self._end.write(_end_of(self._active, last))
        return self._synced

    def sync_end(self) -> bool:
        self._check_usable()
        return self._end.sync()

    def mark(self) -> bool:
        self._check_usable()
        active, last = self._active, self.last_sequence
        if active is None or last > self._synced:
            return False
        ended = self._end.sync()
        if self._covered >= self._synced:
            return ended
        try:
            idle = Frame(last, 0, False, False, ())
            mark = self._header(active.header.nonce, idle, 0)._replace(flags=MARK)
            active.file.write_at(active.end, [encode_header(mark)])
            active.end += HEADER_BYTES
            active.file.sync()
        except BaseException as error:
            self._fail(error)
        self._covered = self._synced
        return True

    # ------------------------------------------------------------------ reading

    def body(self, sequence: int) -> memoryview:
        return self._table.read(sequence)[1]

    def replay(self, after: int) -> Iterator[StoredFrame]:
        return self._table.replay(after, self._synced)

    # ------------------------------------------------------------------ housekeeping

    def trim(self, through: int) -> None:
        with self._trimming:
            # One that could not go is tried again before the next: no hole may come about.
            while leaving := self._leaving or self._table.detach(through):
                self._leaving = name, size = leaving
                if size:
                    self._spares.recycle(name, size)
                else:
                    self._spares.discard(name)
                self._leaving = None

    def sealed(self) -> list[Sealed]:
        return self._table.sealed()

    @property
    def finished_sequence(self) -> int:
        return self._table.finished(self._synced)

    def at_us(self, sequence: int) -> int:
        return self._table.read(sequence)[0].at_us

    def prepare_spare(self) -> bool:
        self._check_usable()
        return self._spares.prepare()

    def close(self) -> None:
        self._closed = True
        self._active = None
        self._end.close()
        self._table.close()


def _divide(lengths: Sequence[int], rest: int, segment_bytes: int) -> list[tuple[int, int]]:
    """How many frames, and bytes, go into the `rest` of the active segment and each one after it."""
    whole = sum(map(frame_bytes, lengths))
    if whole <= rest:
        return [(len(lengths), whole)]
    shares = [(0, 0)]
    for length in lengths:
        size = frame_bytes(length)
        count, used = shares[-1]
        if used + size <= rest:
            shares[-1] = (count + 1, used + size)
        else:
            shares.append((1, size))
            rest = max(segment_bytes, _file_bytes(size)) - _file_bytes(0)
    return shares


def _end_of(segment: Segment, last: int) -> SyncedEnd:
    """That a segment is synced up to this frame, which is its last."""
    header = segment.header
    return SyncedEnd(
        header.epoch, header.incarnation, header.first_sequence, last, segment.end, header.nonce
    )


def _rest(segment: Segment) -> int:
    """Bytes that are left for frames; the last few are kept for a mark."""
    return len(segment.view) - segment.end - HEADER_BYTES


def _file_bytes(frames_bytes: int) -> int:
    """The least size of a segment file for so many bytes of frames."""
    return SEGMENT_HEADER_BYTES + frames_bytes + HEADER_BYTES


def _known_incarnation(chain: Chain, incarnation: int | None) -> int | None:
    """The segments', else the one that was given. Raises `Corruption` if they contradict each other."""
    stored = chain.incarnation
    if incarnation is not None and stored is not None and incarnation != stored:
        name = chain.segments[0].name
        raise Corruption(
            f"{name} belongs to incarnation {stored}, not {incarnation}", file=name, offset=0
        )
    return incarnation if stored is None else stored
