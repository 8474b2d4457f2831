"""The pack: one message of a journal stream, with whole frames or one part of a large frame.

A pack is a header, padded with zeros to a multiple of 64, and a body::

    offset  size  field
         0     4  magic              f5 50 43 4b
         4     2  format version     1
         6     1  kind               0 frames, 1 part of a frame, 2 LeaderStarted,
                             3 LeaderYielded
         7     1  codec              0 none, 1 LZ4 (one block)
         8     4  shard
        12     1  length of the cluster's name
        13     1  length of the broker's name
        14     2  zero
        16     8  incarnation        the journal's
        24     8  epoch
        32     8  nonce              drawn by each candidate; with the epoch, it names the writer
        40     8  stream sequence    the place that the pack was written for
        48     8  first frame
        56     8  last frame         first - 1 in a pack without frames
        64     4  part               from 0
        68     4  parts              of the frame that this is a part of; else 1
        72     8  at_us              of the last frame, or when LeaderStarted was written (signed)
        80     8  checksum before    that of the pack at the place before; 0 at the first
        88     8  length of the body when decoded
        96     8  length of the body as stored
       104     8  checksum of the body as stored (XXH3-64)
       112        the cluster's name, the broker's name
               8  checksum           XXH3-64 of all before it

The body has frames as in a file (`storage/frames.py`), each with its own checksum; that of LeaderYielded is
the name of the broker that shall lead next. LZ4 is used where it
saves a fifth. The checksum covers the body's, so the chain of `checksum before` holds the whole stream.

`decode_pack` raises `Corruption` for a damaged pack and `NewerFormat` for a newer one: magic, version and
the checksum's place behind the names stay where they are. Pure functions and values; any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from fasti.cluster.pack_reader import PackHeader
from fasti.errors import Corruption, NewerFormat
from fasti.storage.frames import (
    BEGIN,
    END,
    HEADER_BYTES,
    StoredFrame,
    decode_header,
    frame_bytes,
    stored_body,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"\xf5PCK"
PACK_VERSION = 1
FRAMES, PART, START, END_OF_LEADER = 0, 1, 2, 3
RAW, LZ4 = 0, 1
_ALIGNMENT = 64
_WORTH = 0.8

_FIELDS = struct.Struct("<4sHBBIBB2xQQQQQQIIqQQQQ")
_CHECKSUM = struct.Struct("<Q")
assert _FIELDS.size == 112
# No header is longer: both names have 255 bytes at most.
PACK_HEADER_BYTES_MAX = 704


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack as values. ``body`` is decoded; ``checksum`` is known once it was encoded or decoded."""

    cluster: str
    shard: int
    incarnation: int
    place: int
    header: PackHeader
    at_us: int
    before: int
    body: Buffer = b""
    part: int = 0
    parts: int = 1
    checksum: int = 0

    @property
    def kind(self) -> int:
        if self.header.is_start:
            return START
        if self.header.is_end:
            return END_OF_LEADER
        return PART if self.parts > 1 else FRAMES


def encode_pack(pack: Pack) -> tuple[bytes, Pack]:
    """The message, and the pack with its checksum."""
    parts, encoded = encode_parts(pack)
    return b"".join(parts), encoded


def encode_parts(pack: Pack) -> tuple[list[bytes | memoryview], Pack]:
    """The message as header and body, which is not copied, and the pack with its checksum."""
    raw = memoryview(pack.body).cast("B") if memoryview(pack.body).nbytes else memoryview(b"")
    codec, stored = compress(raw)
    names = pack.cluster.encode(), pack.header.broker.encode()
    header = pack.header
    fields = _FIELDS.pack(
        MAGIC, PACK_VERSION, pack.kind, codec, pack.shard, len(names[0]), len(names[1]),
        pack.incarnation, header.epoch, header.nonce, pack.place, header.first_frame,
        header.last_frame, pack.part, pack.parts, pack.at_us, pack.before, len(raw), len(stored),
        xxh3_64_intdigest(stored),
    )  # fmt: skip
    checked = fields + names[0] + names[1]
    checksum = xxh3_64_intdigest(checked)
    padding = bytes(-(len(checked) + _CHECKSUM.size) % _ALIGNMENT)
    head = b"".join((checked, _CHECKSUM.pack(checksum), padding))
    return [head, stored], replace(pack, checksum=checksum)


def compress(raw: memoryview) -> tuple[int, bytes | memoryview]:
    """Which codec saves a fifth, and what it makes of these bytes."""
    if len(raw) >= _ALIGNMENT:
        packed = pa.Codec("lz4_raw").compress(raw, asbytes=True)
        if len(packed) <= len(raw) * _WORTH:
            return LZ4, packed
    return RAW, raw


def decompress(codec: int, stored: memoryview, raw_bytes: int) -> memoryview:
    """The bytes as they were."""
    if codec == RAW:
        return stored
    return memoryview(pa.Codec("lz4_raw").decompress(stored, raw_bytes))


def decode_pack(message: Buffer, stream: str) -> Pack:
    """The pack, with its checksums compared. ``stream`` is named in errors."""
    view = memoryview(message)
    if len(view) < _FIELDS.size + _CHECKSUM.size or view[:4] != MAGIC:
        raise _damaged(stream, "doesn't begin as a pack", 0)
    (_, version, kind, codec, shard, cluster_bytes, broker_bytes, incarnation, epoch, nonce, place,
     first, last, part, parts, at_us, before, raw_bytes, stored_bytes, body_checksum,
     ) = _FIELDS.unpack_from(view)  # fmt: skip
    end = _FIELDS.size + cluster_bytes + broker_bytes
    if len(view) < end + _CHECKSUM.size:
        raise _damaged(stream, "is too short for its header", place)
    (checksum,) = _CHECKSUM.unpack_from(view, end)
    if xxh3_64_intdigest(view[:end]) != checksum:
        raise _damaged(stream, "has a damaged header", place)
    if version != PACK_VERSION:
        message_text = f"a pack of {stream} has format {version}, this version reads {PACK_VERSION}"
        raise NewerFormat(message_text, found=version, supported=PACK_VERSION)
    begin = end + _CHECKSUM.size
    padding = -begin % _ALIGNMENT
    stored = view[begin + padding :]
    if (
        any(view[begin : begin + padding])
        or len(stored) != stored_bytes
        or xxh3_64_intdigest(stored) != body_checksum
    ):
        raise _damaged(stream, "has a damaged body", place)
    names = bytes(view[_FIELDS.size : end])
    broker = names[cluster_bytes:].decode()
    header = PackHeader(epoch, broker, nonce, first, last, kind == START, kind == END_OF_LEADER)
    body = decompress(codec, stored, raw_bytes)
    cluster = names[:cluster_bytes].decode()
    return Pack(
        cluster, shard, incarnation, place, header, at_us, before, body, part, parts, checksum
    )


def _damaged(stream: str, what: str, place: int) -> Corruption:
    return Corruption(f"a pack of {stream} {what}", file=stream, offset=place)


def split_frame(encoded: bytes, limit: int) -> list[memoryview]:
    """The parts of a frame that is too large for one pack."""
    view = memoryview(encoded)
    return [view[begin : begin + limit] for begin in range(0, len(view), limit)]


def frames_in(body: Buffer, stream: str, place: int) -> Iterator[StoredFrame]:
    """The frames of a pack's body, or of the parts of one frame put together."""
    view = memoryview(body)
    view = view.cast("B") if view.nbytes else memoryview(b"")
    offset = 0
    while offset < len(view):
        header = decode_header(view, offset)
        found = None if header is None else stored_body(view, offset, header)
        if header is None or found is None or offset + frame_bytes(header.body_length) > len(view):
            raise _damaged(stream, f"has a damaged frame at byte {offset}", place)
        yield StoredFrame(
            header.sequence,
            header.at_us,
            header.epoch,
            bool(header.flags & BEGIN),
            bool(header.flags & END),
            found,
        )
        offset += frame_bytes(header.body_length)


def groups_of(sizes: Sequence[int], aim: int) -> list[int]:
    """How many frames each pack takes, if the frames have these sizes: as many as stay below ``aim``."""
    counts: list[int] = []
    used = aim + 1
    for size in sizes:
        if used + size > aim:
            counts.append(0)
            used = 0
        counts[-1] += 1
        used += size
    return counts


assert HEADER_BYTES == _ALIGNMENT
