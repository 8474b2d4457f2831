"""The frame: the unit in which the journal is written, checked and cut.

A frame is a header of 64 bytes and a body, padded with zeros to a multiple of 64, so that every
body starts on a 64-byte boundary of its file.  Arrow buffers inside it stay aligned; and copying
from aligned memory into the page cache takes up to three times as long when the two are 8 bytes
off than when they agree::

    offset  size  field
         0     4  magic            f5 46 52 4d; never part of UTF-8 text
         4     2  format version   1
         6     2  flags            1 BEGIN, 2 END of a group; 4 MARK; 8 VOID
         8     4  body length      without padding
        12     4  epoch            +1 at every opening of the journal
        16     8  incarnation      drawn once per journal, again after a restore
        24     8  sequence         from 1, +1 each, no holes
        32     8  synced_through   the highest sequence known durable when this was written
        40     8  at_us            when its events were decided (signed)
        48     8  body checksum    XXH3-64 of the body
        56     4  nonce            that of its segment, drawn at random
        60     4  header checksum  the low half of XXH3-64 of the 60 bytes before it

Everything is little-endian.  Magic, version and header checksum keep their places in every
later format, so that an old program can tell a newer frame from a damaged one.

The nonce tells frames from those that an earlier life of the same file left behind.  Epoch and
sequence are not enough for that: a process that dies while it starts a segment has written
frames under an epoch that is recorded nowhere, and the next one uses epoch and file again.

A *group* is what must be seen whole: its first frame has BEGIN, its last END, a frame of its own
has both.  A MARK has no body and no sequence of its own: it repeats the last frame's, and is
written when the journal falls idle only to say in ``synced_through`` that this frame was synced.
VOID is what `repair` makes of a frame that was lost: it keeps the sequence and has no events.

Pure functions and values; any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT_VERSION = 1
HEADER_BYTES = 64
ALIGNMENT = 64
MAGIC = b"\xf5FRM"
BODY_BYTES_MAX = 0xFFFF_FFFF

BEGIN = 1
END = 2
MARK = 4
VOID = 8

_FIELDS = struct.Struct("<4sHHIIQQQqQI")
_CHECKSUM = struct.Struct("<I")
_CHECKED_BYTES = _FIELDS.size
assert _CHECKED_BYTES + _CHECKSUM.size == HEADER_BYTES

_PADDING = tuple(bytes(count) for count in range(ALIGNMENT))


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame to append; ``body`` is written buffer after buffer, without joining them.

    ``checksum`` is `body_checksum(body)` when another thread has already computed it.
    """

    sequence: int
    at_us: int
    begins_group: bool
    ends_group: bool
    body: Sequence[Buffer]
    checksum: int | None = None


class Sealed(NamedTuple):
    """A piece of a journal that is complete: its last frame, its bytes on the disk, and a moment at
    which all of it was decided.
    """

    last_sequence: int
    size_bytes: int
    until_us: int


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A frame as it is read again; ``body`` is a view of the stored bytes where possible."""

    sequence: int
    at_us: int
    epoch: int
    begins_group: bool
    ends_group: bool
    body: memoryview


class Header(NamedTuple):
    """The fields of a frame header, in the order in which they are stored."""

    version: int
    flags: int
    body_length: int
    epoch: int
    incarnation: int
    sequence: int
    synced_through: int
    at_us: int
    body_checksum: int
    nonce: int


def check_order(frames: Sequence[Frame], last_sequence: int, in_group: bool) -> bool:
    """Whether a group is open after these frames; raises if they don't follow the last one."""
    for expected, frame in enumerate(frames, last_sequence + 1):
        if frame.sequence != expected:
            raise InvalidArgument(
                f"frame {frame.sequence} where {expected} is next", field="sequence"
            )
        if frame.begins_group == in_group:
            state = "inside" if in_group else "outside"
            raise InvalidArgument(
                f"frame {expected} {state} of a group has begins_group={frame.begins_group}",
                field="begins_group",
            )
        in_group = not frame.ends_group
    return in_group


def body_checksum(body: Sequence[Buffer]) -> int:
    """XXH3-64 over the buffers as if they were one."""
    if len(body) == 1:
        return xxh3_64_intdigest(body[0])
    state = xxh3_64()
    for buffer in body:
        state.update(buffer)
    return state.intdigest()


def body_bytes(body: Sequence[Buffer]) -> int:
    """The length of the buffers together."""
    total = 0
    for buffer in body:
        total += len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
    return total


def flattened(buffers: Sequence[Buffer]) -> list[memoryview]:
    """The buffers that aren't empty, each as a view of bytes; nothing is copied."""
    views = (memoryview(buffer) for buffer in buffers)
    return [view.cast("B") for view in views if view.nbytes]


def padding(body_length: int) -> bytes:
    """The zeros that follow a body of that length."""
    return _PADDING[-body_length % ALIGNMENT]


def frame_bytes(body_length: int) -> int:
    """What a frame with such a body takes in the file."""
    return HEADER_BYTES + body_length + -body_length % ALIGNMENT


def encode_header(header: Header) -> bytes:
    """The 64 bytes of a header, with its checksum."""
    fields = _FIELDS.pack(MAGIC, *header)
    return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields) & 0xFFFF_FFFF)


def decode_header(view: memoryview, offset: int) -> Header | None:
    """The header at ``offset``, or None if there is no valid one.

    A valid header of a newer format is returned too; the caller looks at ``version``.
    """
    if offset + HEADER_BYTES > len(view) or view[offset : offset + 4] != MAGIC:
        return None
    (checksum,) = _CHECKSUM.unpack_from(view, offset + _CHECKED_BYTES)
    digest = xxh3_64_intdigest(view[offset : offset + _CHECKED_BYTES])
    if digest & 0xFFFF_FFFF != checksum:
        return None
    return Header(*_FIELDS.unpack_from(view, offset)[1:])


def stored_body(view: memoryview, offset: int, header: Header) -> memoryview | None:
    """The body behind a header, or None if it is cut off or its checksum is wrong."""
    start = offset + HEADER_BYTES
    body = view[start : start + header.body_length]
    if len(body) != header.body_length or xxh3_64_intdigest(body) != header.body_checksum:
        return None
    return body
