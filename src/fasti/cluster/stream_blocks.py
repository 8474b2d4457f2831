"""A `BlockStore` on a JetStream stream: a subject per block and part, and the manifest by the pointer.

- The stream takes one message per subject and refuses a second one, so a name used twice is refused.
- A block is larger than a message: it is cut into parts. The first part is stored last, and a block is
  there when that one is; what a crash leaves of others is not listed, and swept by the next leader.
- A put that is refused or not answered is resolved by a read: the message there has this put's nonce,
  or another's.
- Every part is checked when it is read. What a replica nearby doesn't have, or has damaged, is read
  from the stream's leader, and if that has not got it either, looked for elsewhere (`rescue.py`). Parts are
  kept on the local disk (`block_cache.py`).
- The manifest is a block of a space of its own. To switch it is to store that block and change the
  pointer, which an older epoch can't do any more.
- A deleted block is gone at once for this broker, and after a grace for others: a standby may be about
  to read it. One that no manifest ever named goes at once.
- `StorageFull` comes before anything is stored, by what the stream and the servers may take and have taken; or
  from the server, if that knows better.

Threads: any; `switch_manifest` is for one at a time.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fasti.cluster.block_cache import BlockCache
from fasti.cluster.block_part import PART_HEADER_BYTES, Part, decode_part, encode_part
from fasti.cluster.names import ShardNames, from_token
from fasti.cluster.nats import NatsConnection, NoRoom, Refused
from fasti.cluster.nats_socket import StreamAppends
from fasti.cluster.patience import DEFAULT_TIMEOUTS, Patience, Timeouts, insist
from fasti.cluster.pointer import Place, Pointer, PointerRecord
from fasti.cluster.pointer_owner import GRACE_S
from fasti.cluster.rescue import Rescue
from fasti.cluster.server_room import UNBOUNDED, ServerRoom
from fasti.errors import (
    AlreadyExists,
    Corruption,
    FastiError,
    NotFound,
    StorageFull,
    TimedOut,
    Unavailable,
)
from fasti.storage.blocks import check_version, checked_block_name, checked_range
from fasti.storage.frames import flattened
from fasti.storage.runs import epoch_in

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCKS, _MANIFESTS = "block", "manifest"
_PART_BYTES_MAX = 4 << 20
_MARGIN_BYTES = PART_HEADER_BYTES + 512
# Of a bound, what messages leave to the checkpoints that make room again: they write before they delete.
_RESERVE_PART = 4


def start_of_journal(data: bytes) -> tuple[int, Place]:
    """For blocks without a journal: every manifest stands for its beginning."""
    return 0, Place()


class StreamBlocks:
    """A `BlockStore` of one shard. ``locate`` tells the position and place that a manifest stands for."""

    def __init__(
        self,
        connection: NatsConnection,
        names: ShardNames,
        pointer: Pointer,
        cache: BlockCache | None = None,
        *,
        locate: Callable[[bytes], tuple[int, Place]] = start_of_journal,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        grace_s: float = GRACE_S,
        rescue: Rescue | None = None,
        bytes_max: int = -1,
        server_room: ServerRoom | None = None,
    ) -> None:
        """``bytes_max`` is the stream's, below 0 if it has no bound."""
        self._connection, self._names, self._pointer = connection, names, pointer
        self._bytes_max, self._server_room = bytes_max, server_room
        self._used_bytes = 0
        # Names that were put since the last manifest: none names them yet.
        self._fresh: set[str] = set()
        self._rescue = rescue
        self._cache = cache
        self.locate = locate
        self._timeouts, self._grace_s = timeouts, grace_s
        self._stream = names.blocks_stream
        # Closed by whoever puts nothing any more.
        self.appends = StreamAppends(connection, self._stream)
        self._part_bytes = min(connection.max_payload, _PART_BYTES_MAX) - _MARGIN_BYTES
        self._lock = threading.Lock()
        # Names that were deleted and are still in the stream, with the moment at which they go.
        self._leaving: dict[str, float] = {}
        self._manifests: deque[tuple[float, str]] = deque()
        # What leaders below this epoch left behind goes with the next manifest; 0: nothing does.
        self.sweep_below = 0

    @staticmethod
    def stream_config(names: ShardNames, replicas: int, bytes_max: int) -> dict[str, Any]:
        """Blocks go by a purge of their subjects, and never for one another's sake."""
        return {
            "name": names.blocks_stream,
            "subjects": [names.blocks_subjects],
            "storage": "file",
            "retention": "limits",
            "discard": "new",
            "discard_new_per_subject": True,
            "max_msgs_per_subject": 1,
            "num_replicas": replicas,
            "max_bytes": bytes_max,
            "max_msgs": -1,
            "max_age": 0,
            "deny_delete": True,
            "allow_direct": True,
        }

    # Room

    def room_bytes(self) -> int:
        """What messages can still take, as blocks."""
        if self._bytes_max < 0:
            return UNBOUNDED
        return self._bytes_max - self._bytes_max // _RESERVE_PART - self._used_bytes

    def measure(self) -> None:
        """Asks how much is stored, if that matters. Where nobody answers, what is known stays."""
        if self._bytes_max < 0:
            return
        with suppress(TimedOut, Unavailable):
            state = self._connection.stream_state(self._stream, self._wait_s)
            self._used_bytes = 0 if state is None else state.size_bytes

    def _check_room(self, size_bytes: int) -> None:
        rest = self._bytes_max - self._used_bytes if self._bytes_max >= 0 else UNBOUNDED
        if self._server_room is not None:
            rest = min(rest, self._server_room.for_checkpoints(self._stream))
        if size_bytes > rest:
            raise StorageFull(
                f"the stream {self._stream} takes {max(0, rest)} bytes more, not {size_bytes}",
                details={"stream": self._stream},
            )

    # Blocks

    def put(self, name: str, buffers: Sequence[Buffer]) -> None:
        with self._lock:
            if checked_block_name(name) in self._leaving:
                raise AlreadyExists(f"block {name} already exists")
        self._put(_BLOCKS, name, b"".join(flattened(buffers)))
        with self._lock:
            self._fresh.add(name)

    def _put(self, space: str, name: str, data: bytes) -> None:
        self._check_room(len(data))
        nonce = secrets.randbits(63)
        view = memoryview(data)
        starts = range(0, len(data), self._part_bytes) or range(1)
        # The first part comes last: with it the block is there.
        for number in reversed(range(len(starts))):
            body = view[starts[number] : starts[number] + self._part_bytes]
            part = Part(number, len(starts), len(data), self._part_bytes, nonce, body)
            message = encode_part(name, part, compressed=True)
            self._store(self._names.part_subject(space, name, number), name, message, part)
            size_bytes = sum(map(len, message))
            self._used_bytes += size_bytes
            if self._server_room is not None:
                self._server_room.note_written(size_bytes)
            if self._cache is not None:
                # As it is: what is read from there is a view of the file, and takes no memory.
                self._cache.put(space, name, number, *encode_part(name, part))

    def _store(self, subject: str, name: str, message: Sequence[Buffer], part: Part) -> None:
        patience = Patience(self._stream, self._timeouts.call_s)
        while True:
            patience.check()
            full: NoRoom | None = None
            try:
                self.appends.publish(subject, message, self._wait_s, last_subject_sequence=0)
                return
            except NoRoom as refusal:
                full = refusal
            except Refused as refusal:
                patience.pause(refusal.text)
            except (TimedOut, Unavailable) as error:
                patience.pause(error.message)
            if self._is_stored(subject, name, part):
                return
            if full is not None:
                self._used_bytes = max(self._used_bytes, self._bytes_max)
                raise StorageFull(f"NATS has no room for {self._stream}: {full.text}") from full

    def _is_stored(self, subject: str, name: str, part: Part) -> bool:
        """Whether this put's own message is there; False if none is, or none can be read now."""
        try:
            found = self._connection.get(self._stream, subject=subject, timeout_s=self._wait_s)
        except (TimedOut, Unavailable):
            return False
        if found is None:
            return False
        if decode_part(name, part.number, found.data).nonce != part.nonce:
            raise AlreadyExists(f"block {name} already exists")
        return True

    @property
    def _wait_s(self) -> float:
        """A part is large, and nothing waits for it but a checkpoint."""
        return max(1.0, self._timeouts.answer_s)

    def sync(self) -> None:
        """A put is durable already. What was deleted goes from the stream when its grace is over."""
        if self._pointer.is_held():
            return
        now = time.monotonic()
        with self._lock:
            due = [name for name, moment in self._leaving.items() if moment <= now]
        for name in due:
            self._purge(_BLOCKS, name)
            with self._lock:
                self._leaving.pop(name, None)
        while self._manifests and self._manifests[0][0] <= now:
            self._purge(_MANIFESTS, self._manifests.popleft()[1])
        self.measure()

    def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        return self._range(_BLOCKS, self._check_there(name), offset, length)

    def size(self, name: str) -> int:
        return self._part(_BLOCKS, self._check_there(name), 0).size

    def read_stored(self, name: str) -> int:
        """The block's size, after all of it was read from the stream, whatever the local disk has."""
        number, parts, size = 0, 1, 0
        while number < parts:
            fetch = partial(self._fetch, _BLOCKS, self._check_there(name), number)
            part = insist(self._stream, self._timeouts.call_s, fetch)
            number, parts, size = number + 1, part.parts, part.size
        return size

    def _check_there(self, name: str) -> str:
        with self._lock:
            if checked_block_name(name) in self._leaving:
                raise NotFound(f"there is no block {name}")
        return name

    def _range(self, space: str, name: str, offset: int, length: int | None) -> memoryview:
        first = self._part(space, name, 0)
        # A stand-in of the block's size, so that ranges are judged as everywhere.
        end = first.size if length is None else offset + length
        if not 0 <= offset <= end <= first.size:
            checked_range(memoryview(bytes(first.size)), name, offset, length)
        if first.parts == 1 or end <= first.part_bytes:
            return first.body[offset:end]
        numbers = range(offset // first.part_bytes, -(-end // first.part_bytes))
        bodies = [self._part(space, name, number).body for number in numbers]
        begin = numbers.start * first.part_bytes if bodies else offset
        joined = bodies[0] if len(bodies) == 1 else memoryview(b"".join(bodies))
        return joined[offset - begin : end - begin]

    def _part(self, space: str, name: str, number: int) -> Part:
        """From the cache, a replica, or the stream's leader. `NotFound`, `Corruption`, `NoQuorum`."""
        cached = None if self._cache is None else self._cache.get(space, name, number)
        if cached is not None:
            return cached
        fetch = partial(self._fetch, space, name, number)
        return insist(self._stream, self._timeouts.call_s, fetch)

    def _fetch(self, space: str, name: str, number: int) -> Part:
        subject = self._names.part_subject(space, name, number)
        message = self._connection.get_direct(self._stream, subject, self._wait_s)
        data = b"" if message is None else message.data
        part = _decode_or_none(name, number, data)
        if part is None:
            message = self._connection.get(self._stream, subject=subject, timeout_s=self._wait_s)
            data = b"" if message is None else message.data
            part = _decode_or_none(name, number, data)
        if part is None:
            data = self._find_elsewhere(space, name, number, data)
            part = decode_part(name, number, data)
        if self._cache is not None:
            self._cache.put(space, name, number, *encode_part(name, part))
        return part

    def _find_elsewhere(self, space: str, name: str, number: int, data: bytes) -> bytes:
        """A part that the stream's leader has not, or not whole, which is `data`."""
        if self._rescue is not None:
            # A server that can't read a message may know of its subject all the same.
            pattern = self._names.part_subject(space, name, number)
            is_listed = bool(data or number or self._connection.subjects(self._stream, pattern))
            for found in self._rescue.parts(space, name, number, is_listed):
                if _decode_or_none(name, number, found.data) is not None:
                    return found.data
        if not data and not number:
            raise NotFound(f"there is no block {name}")
        if not data:
            file = f"blocks/{name}"
            raise Corruption(f"part {number} of {file} is missing", file=file, offset=0)
        return data

    def list(self, prefix: str = "") -> list[str]:
        with self._lock:
            leaving = set(self._leaving)
        names = self._names_of(_BLOCKS, "0") - leaving
        return sorted(name for name in names if name.startswith(prefix))

    def _names_of(self, space: str, part: str, name: str = "*") -> set[str]:
        pattern = self._names.part_subject(space, name, part)
        list_subjects = partial(self._connection.subjects, self._stream, pattern)
        subjects = insist(self._stream, self._timeouts.call_s, list_subjects)
        return {from_token(subject.split(".")[-2]) for subject in subjects}

    def delete(self, name: str) -> None:
        if not self._names_of(_BLOCKS, "0", self._check_there(name)):
            raise NotFound(f"there is no block {name}")
        self.let_go(name)
        with self._lock:
            grace_s = 0.0 if name in self._fresh else self._grace_s
            self._fresh.discard(name)
            self._leaving[name] = time.monotonic() + grace_s
        self.sync()

    def _purge(self, space: str, name: str) -> None:
        subject = self._names.part_subject(space, name, "*")
        purge = partial(self._connection.purge, self._stream, subject=subject)
        insist(self._stream, self._timeouts.call_s, purge)

    def sweep(self, epoch: int) -> None:
        """For a leader that has claimed the pointer: what older ones left half stored, and manifests."""
        if self._pointer.is_held():
            # A part may only seem to be missing. What is left over goes with the next leader.
            return
        record = self._pointer.record
        for name in self._names_of(_BLOCKS, "*") - self._names_of(_BLOCKS, "0"):
            if epoch_in(name) < epoch:
                self._purge(_BLOCKS, name)
        for name in self._names_of(_MANIFESTS, "*"):
            if epoch_in(name) < epoch and name != record.manifest:
                self._purge(_MANIFESTS, name)

    def readable(self, name: str) -> memoryview:
        first = self._part(_BLOCKS, self._check_there(name), 0)
        data = bytearray(first.size)
        for number in range(first.parts):
            with suppress(Corruption):
                body = self._part(_BLOCKS, name, number).body
                begin = number * first.part_bytes
                data[begin : begin + len(body)] = body
        return memoryview(data)

    def let_go(self, name: str) -> None:
        if self._cache is not None:
            self._cache.let_go(_BLOCKS, name)

    # The manifest

    def read_manifest(self) -> tuple[int, bytes] | None:
        if self._pointer.is_changing:
            # Else it would say that nothing has changed, and the blocks of what may come would be deleted.
            self._pointer.settle()
        return self.manifest_of(self._read_pointer())

    def manifest_of(self, record: PointerRecord) -> tuple[int, bytes] | None:
        """The manifest that a pointer names, with its version; None before the first. `NotFound` if it is
        gone, because the pointer has moved on.
        """
        if not record.version:
            return None
        return record.version, bytes(self._range(_MANIFESTS, record.manifest, 0, None))

    def _read_pointer(self) -> PointerRecord:
        read = partial(self._pointer.read, self._timeouts.answer_s)
        return insist(self._names.pointer_stream, self._timeouts.call_s, read)

    def switch_manifest(self, expected_version: int, data: bytes) -> int:
        self._pointer.settle()
        record = self._read_pointer()
        self._pointer.check_owned()
        check_version(record.version, expected_version)
        if self.sweep_below:
            with suppress(FastiError):
                self.sweep(self.sweep_below)
                self.sweep_below = 0
        version = expected_version + 1
        name = f"{record.epoch}-{version}.{secrets.token_hex(4)}"
        self._put(_MANIFESTS, name, data)
        self._pointer.switch(name, version, *self.locate(data))
        with self._lock:
            self._fresh.clear()
        if record.manifest:
            self._manifests.append((time.monotonic() + self._grace_s, record.manifest))
        with suppress(FastiError):
            self.sync()
        return version


def _decode_or_none(name: str, number: int, data: bytes) -> Part | None:
    try:
        return decode_part(name, number, data)
    except Corruption:
        return None


if TYPE_CHECKING:
    from fasti.storage.blocks import BlockStore

    _conforms: type[BlockStore] = StreamBlocks
