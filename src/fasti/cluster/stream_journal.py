"""A `Journal` on a JetStream stream: a sequence of packs, appended by whoever leads the shard.

To make one is to take over: the stream is read to its end, `LeaderStarted` is appended, the pointer
claimed. From then on an older leader is fenced, and so is this one when another does the same.

- `append` only encodes frames; `sync` publishes them, one pack in flight, and returns when the stream
  has them. What a stream has counts: there is nothing to cut after a crash but an unfinished group.
- `NoQuorum` from `sync` leaves the frames to be resolved: another `sync` goes on with the same pack.
  After `Fenced` nothing works any more, and what was not synced did not happen.
- `StorageFull` comes from `append`, by what the stream may take and has taken. If the server knows better and
  refuses a pack for want of room, that is a `NoQuorum` that says so: the pack stays to be resolved.
- `trim` takes away only what the pointer's manifest makes unnecessary, when that has been in force for a
  while (`pointer.floor`).
- What is older than the pointer's manifest is looked at only when asked for: a change feed's reader may
  need it, an opening does not.

Threads: as `Journal` says.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fasti.cluster.leadership import Draft, Leadership
from fasti.cluster.pack import (
    PACK_HEADER_BYTES_MAX,
    Pack,
    groups_of,
    split_frame,
)
from fasti.cluster.pack_stream import PackStream
from fasti.cluster.patience import DEFAULT_TIMEOUTS, FULL, Timeouts, insist
from fasti.cluster.piece_reader import PieceReader
from fasti.cluster.pointer import Place, Pointer
from fasti.errors import (
    Closed,
    Corruption,
    Fenced,
    Gone,
    InvalidArgument,
    NoQuorum,
    NotFound,
    StorageFailed,
    StorageFull,
    TimedOut,
    Unavailable,
)
from fasti.storage.frames import (
    BEGIN,
    BODY_BYTES_MAX,
    END,
    FORMAT_VERSION,
    HEADER_BYTES,
    Frame,
    Header,
    Sealed,
    StoredFrame,
    body_bytes,
    body_checksum,
    check_order,
    encode_header,
    flattened,
    padding,
)

DEFAULT_PACK_BYTES = 1 << 20
PACK_BYTES_MAX = 4 << 20
# Headers of NATS, beside those of a pack.
_MARGIN_BYTES = PACK_HEADER_BYTES_MAX + 512
# Pieces are handed out for trimming in steps of about so much.
_SEALED_BYTES = 1 << 20


class JournalLimits(NamedTuple):
    """``bytes_max`` is the stream's; of it ``reserve_bytes`` are for what frees space."""

    bytes_max: int
    reserve_bytes: int
    pack_bytes: int = DEFAULT_PACK_BYTES


class _Waiting(NamedTuple):
    """A frame that was appended and is not durable yet, as it is stored."""

    frame: StoredFrame
    encoded: bytes


class StreamJournal:
    """A `Journal` that leads one shard. Raises what taking over raises."""

    is_replicated = True
    end_problem: str | None = None

    def __init__(
        self,
        stream: PackStream,
        pointer: Pointer,
        broker: str,
        limits: JournalLimits,
        *,
        address: str = "",
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        leadership: Leadership | None = None,
    ) -> None:
        """``leadership`` is that of a standby, which has read most of the stream already."""
        self._stream, self._pointer, self._limits = stream, pointer, limits
        payload = min(stream.max_payload, PACK_BYTES_MAX) - _MARGIN_BYTES
        self._pack_bytes = min(limits.pack_bytes, payload)
        self._part_bytes = payload
        self._lock = threading.RLock()
        self._older_lock = threading.Lock()
        self._reads = PieceReader(stream, timeouts.call_s)
        self._closed = False
        self._failure: StorageFailed | Fenced | Corruption | None = None
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        # Of the frames that wait: the next packs, and what of them is already in the stream.
        self._drafts: deque[Draft] = deque()
        self._done: list[Pack] = []
        self._leadership = leadership or Leadership(stream, pointer, broker, address, timeouts)
        self._leadership.take_over()
        self._pieces = self._leadership.pieces
        self._last = self._pieces.last
        self._in_group = False
        state = insist(stream.name, timeouts.call_s, stream.state)
        self._used_bytes = state.size_bytes
        # The places before the manifest's, unless they were looked at.
        self._older = range(state.first_sequence, self._pieces.base.sequence + 1)
        if self._older:
            self._first = self._reads.pack(self._older[0]).header.first_frame
        else:
            self._first = self._pieces.items[0].first

    # Properties

    @property
    def incarnation(self) -> int:
        return self._leadership.incarnation

    @property
    def epoch(self) -> int:
        return self._leadership.epoch

    @property
    def stream_sequence(self) -> int:
        """The place of the last pack."""
        return self._leadership.sequence

    @property
    def first_sequence(self) -> int:
        return self._first

    @property
    def last_sequence(self) -> int:
        return self._last

    @property
    def synced_sequence(self) -> int:
        with self._lock:
            return self._pieces.last

    @property
    def finished_sequence(self) -> int:
        with self._lock:
            return self._pieces.finished

    @property
    def fenced(self) -> Fenced | None:
        """Set once another broker has the shard."""
        return self._failure if isinstance(self._failure, Fenced) else None

    def room_bytes(self) -> int:
        """What ordinary appends can still take."""
        return max(0, self._rest() - self._limits.reserve_bytes)

    def _rest(self) -> int:
        return self._limits.bytes_max - self._used_bytes - self._waiting_bytes

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed("the journal is closed")
        if self._failure is not None:
            raise self._failure

    # Appending

    def append(self, frames: Sequence[Frame], *, use_reserve: bool = False) -> None:
        self._check_usable()
        in_group = check_order(frames, self._last, self._in_group)
        if max((body_bytes(frame.body) for frame in frames), default=0) > BODY_BYTES_MAX:
            raise InvalidArgument("frame body is too long", field="body", limit=BODY_BYTES_MAX)
        encoded = [self._encode(frame) for frame in frames]
        size = sum(self._stream.stored_bytes(len(one.encoded)) for one in encoded)
        rest = self._rest() - (0 if use_reserve else self._limits.reserve_bytes)
        if size > rest:
            raise StorageFull(
                f"the stream {self._stream.name} takes {rest} bytes more, not {size}",
                details={"stream": self._stream.name},
            )
        with self._lock:
            self._waiting.extend(encoded)
            self._waiting_bytes += size
            self._last += len(encoded)
        self._in_group = in_group

    def _encode(self, frame: Frame) -> _Waiting:
        length = body_bytes(frame.body)
        flags = BEGIN * frame.begins_group | END * frame.ends_group
        checksum = body_checksum(frame.body) if frame.checksum is None else frame.checksum
        synced = self.synced_sequence
        header = Header(
            FORMAT_VERSION, flags, length, self.epoch, self.incarnation, frame.sequence, synced,
            frame.at_us, checksum, 0,
        )  # fmt: skip
        encoded = b"".join((encode_header(header), *flattened(frame.body), padding(length)))
        body = memoryview(encoded)[HEADER_BYTES : HEADER_BYTES + length]
        group = frame.begins_group, frame.ends_group
        return _Waiting(StoredFrame(frame.sequence, frame.at_us, self.epoch, *group, body), encoded)

    def sync(self) -> int:
        self._check_usable()
        while self._waiting:
            if not self._drafts:
                self._drafts.extend(self._draft())
            self._publish_or_fail()
        return self.synced_sequence

    def prove(self) -> int:
        """By a pack without frames, unless there are some to sync. One that is on its way is gone on with."""
        self._check_usable()
        used_bytes = self._used_bytes
        if self._waiting:
            self.sync()
            return 0
        if not self._drafts:
            with self._lock:
                at_us = self._pieces.items[-1].at_us if self._pieces.items else 0
            self._drafts.append(Draft(self._last + 1, self._last, at_us))
        self._publish_or_fail()
        return self._used_bytes - used_bytes

    def _publish_or_fail(self) -> None:
        try:
            self._publish()
        except NoQuorum as error:
            if FULL in error.details:
                self._used_bytes = self._stream.size_bytes(self._used_bytes)
            raise
        except (StorageFailed, Fenced, Corruption) as error:
            self._failure = error
            raise

    def _draft(self) -> list[Draft]:
        """The packs of the next frames: one with several frames, or the parts of one."""
        count = groups_of([len(one.encoded) for one in self._waiting], self._pack_bytes)[0]
        frames = [self._waiting[number] for number in range(count)]
        first, last = frames[0].frame, frames[-1].frame
        body = frames[0].encoded if count == 1 else b"".join(one.encoded for one in frames)
        parts = split_frame(body, self._part_bytes)
        return [
            Draft(first.sequence, last.sequence, last.at_us, part, number, len(parts))
            for number, part in enumerate(parts)
        ]

    def _publish(self) -> None:
        """The packs of `_drafts`, one after another; then their frames are durable."""
        while self._drafts:
            pack = self._leadership.append(self._drafts[0])
            self._drafts.popleft()
            self._done.append(pack)
            self._used_bytes += self._stream.stored_bytes(self._leadership.sent_bytes)
        packs, self._done = self._done, []
        header = packs[-1].header
        with self._lock:
            count = header.last_frame - header.first_frame + 1
            taken = [self._waiting.popleft() for _ in range(count)]
            self._waiting_bytes -= sum(self._stream.stored_bytes(len(one.encoded)) for one in taken)
            self._pieces.add(packs, [one.frame for one in taken], self._leadership.reader)

    def mark(self) -> bool:
        self._check_usable()
        return False

    sync_end = mark

    # Reading

    def replay(self, after: int) -> Iterator[StoredFrame]:
        if self._closed:
            raise Closed("the journal is closed")
        if after < self._first - 1:
            raise Gone(f"frames after {after}: the journal begins with {self._first}")
        if after > self._last:
            raise NotFound(f"frames after {after}: it ends with {self._last}")
        self._look_back(after + 1)
        with self._lock:
            finished = self._pieces.finished
            pieces = self._pieces.items[self._pieces.find(after + 1) :]
        return self._reads.replay(pieces, after, finished)

    def body(self, sequence: int) -> memoryview:
        return self._frame(sequence).body

    def at_us(self, sequence: int) -> int:
        return self._frame(sequence).at_us

    def _frame(self, sequence: int) -> StoredFrame:
        if self._closed:
            raise Closed("the journal is closed")
        if sequence < self._first:
            raise Gone(f"frame {sequence}: the journal begins with {self._first}")
        with self._lock:
            if sequence > self._last:
                raise NotFound(f"frame {sequence}: it ends with {self._last}")
            if self._waiting and sequence >= self._waiting[0].frame.sequence:
                return self._waiting[sequence - self._waiting[0].frame.sequence].frame
        self._look_back(sequence)
        with self._lock:
            piece = self._pieces.items[self._pieces.find(sequence)]
        return self._reads.frame(piece, sequence)

    def _look_back(self, sequence: int) -> None:
        """Reads what is older than the manifest's place, once, if this frame may be there."""
        if sequence > self._pieces.base.reader.last_frame:
            return
        with self._older_lock:
            if not self._older:
                return
            older = self._reads.older(self._older, self._pieces.base.reader)
            with self._lock:
                self._pieces.items[:0] = older.items
                self._pieces.base = older.base
                self._older = range(0)

    def place_of(self, position: int) -> Place:
        """Where a reader begins that knows all up to this frame; for the pointer of a checkpoint."""
        with self._lock:
            return self._pieces.place_of(position)

    # Housekeeping

    def trim(self, through: int) -> None:
        if self._closed or self._failure is not None:
            return
        floor = self._pointer.floor
        self._look_back(self._first)
        with self._lock:
            items = self._pieces.items
            count = 0
            while count < len(items) and items[count].last <= through and items[count].end <= floor:
                count += 1
        if not count:
            return
        try:
            self._stream.trim(items[count - 1].end)
        except (TimedOut, Unavailable):
            # Whether it happened or not, the next trim takes these as well.
            return
        with self._lock:
            self._pieces.base = items[count - 1].place
            del items[:count]
            self._first = items[0].first if items else self._pieces.last + 1
        self._used_bytes = self._stream.size_bytes(self._used_bytes)

    def sealed(self) -> list[Sealed]:
        self._look_back(self._first)
        sealed: list[Sealed] = []
        size = 0
        with self._lock:
            for piece in self._pieces.items:
                size += piece.size_bytes
                if size >= _SEALED_BYTES or piece is self._pieces.items[-1]:
                    sealed.append(Sealed(piece.last, size, piece.at_us))
                    size = 0
        return sealed

    def give_up(self, to: str) -> None:
        """Everything is synced: says in the stream who shall lead next. Raises what `sync` raises."""
        self._check_usable()
        if not self._waiting:
            self._leadership.give_up(to)

    def close(self) -> None:
        self._closed = True
        self._stream.close()


if TYPE_CHECKING:
    from fasti.storage.journal import Journal

    _conforms: type[Journal] = StreamJournal
