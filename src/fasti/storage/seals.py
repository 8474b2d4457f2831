"""Sealed objects: how every block is checked, and how much of one is damaged.

An object is some content (an Arrow IPC stream with one batch, or the state's own form) behind a
header, and is mapped, never copied. All integers are little-endian::

    offset  size  field
         0     8  magic            "FASTIBLK"
         8     4  format version   1
        12     4  head             how many bytes of the content stand before its columns
        16     8  checksum         XXH3-64 of all other bytes of the file
        24     8  length           of the content
        32     8  each             XXH3-64 of each piece: 1024 bytes of the head, then of the rest;
                                   the last piece of both may be shorter
                  zeros            up to a multiple of 64
                  the content
                  the head again
              32  the header again, its checksum zeros

The checksum keeps its place in every later format.

Reading compares the checksum alone. Only when that fails are the pieces looked at (`damage_of`): what
lies in a piece that is still as it was written can be relied on, and where a single bit was flipped
everything but its byte. Header and head, without which nothing could be found, stand twice.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from fasti.errors import Corruption
from fasti.storage.formats import check_format
from fasti.storage.frames import body_checksum

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_FORMAT_VERSION = 1
# Larger ones cost more messages when one is damaged, smaller ones more time when all are written.
PIECE_BYTES = 1024
# In more damaged pieces than this no single bit is looked for: each takes milliseconds.
_SEARCHED_MAX = 8

_MAGIC = b"FASTIBLK"
_HEADER = struct.Struct("<8sIIQQ")
_ALIGNMENT = 64
# An IPC stream ends with eight bytes that say so.
_END_OF_STREAM = 8
# No block is larger: what says so is damaged.
_LENGTH_MAX = 1 << 32


@dataclass(frozen=True, slots=True)
class Damage:
    """Which bytes of an object's content can't be relied on."""

    # The content, with a head that is good again if one of its two copies was.
    content: pa.Buffer
    head_bytes: int
    # Ranges of the content, in order.
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    # Where in the file the first of them begins.
    offset: int

    def touches(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of ranges behind the head, which touch a damaged one. An empty one touches none."""
        ended = np.searchsorted(self.ends, begin, side="right")
        started = np.searchsorted(self.begins, end, side="left")
        touched: NDArray[np.bool_] = (end > begin) & (started > ended)
        return touched


def seal(batch: pa.RecordBatch) -> list[Buffer]:
    """An object with one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue()
    messages = pa.ipc.MessageReader.open_stream(content)
    messages.read_next_message()
    body_bytes = messages.read_next_message().body.size
    return _seal(memoryview(content), len(content) - _END_OF_STREAM - body_bytes)


def seal_content(content: list[Buffer]) -> list[Buffer]:
    """An object with some content."""
    whole = b"".join(memoryview(part).cast("B") for part in content if memoryview(part).nbytes)
    return _seal(memoryview(whole), 0)


def _seal(content: memoryview, head_bytes: int) -> list[Buffer]:
    pieces = _checksums(content, head_bytes)
    table = pieces.tobytes() + bytes(_begin(len(pieces)) - _HEADER.size - pieces.nbytes)
    fields = (_MAGIC, BLOCK_FORMAT_VERSION, head_bytes)
    header = _HEADER.pack(*fields, 0, len(content))
    rest: list[Buffer] = [table, content, content[:head_bytes], header]
    checksum = _checksum(memoryview(header), rest)
    return [_HEADER.pack(*fields, checksum, len(content)), *rest]


def _checksums(content: memoryview, head_bytes: int) -> NDArray[np.uint64]:
    """One for each piece; these are few beside the rows."""
    digests = [
        xxh3_64_intdigest(part[begin : begin + PIECE_BYTES])
        for part in (content[:head_bytes], content[head_bytes:])
        for begin in range(0, len(part), PIECE_BYTES)
    ]
    return np.array(digests, dtype="<u8")


def _count(size_bytes: int) -> int:
    return -(-size_bytes // PIECE_BYTES)


def _pieces(head_bytes: int, length: int) -> int:
    return _count(head_bytes) + _count(length - head_bytes)


def _size(head_bytes: int, length: int) -> int:
    """Of a whole object."""
    return _begin(_pieces(head_bytes, length)) + length + head_bytes + _HEADER.size


def _checksum(header: memoryview, rest: list[Buffer]) -> int:
    return body_checksum([header[:16], header[24:32], *rest])


def _begin(pieces: int) -> int:
    """Where the content begins."""
    return -(-(_HEADER.size + 8 * pieces) // _ALIGNMENT) * _ALIGNMENT


def unseal(data: memoryview, name: str, verify: bool = True) -> pa.RecordBatch:
    """The batch of an object. `verify` reads all of it once, to compare the checksum."""
    return read_batch(pa.py_buffer(open_seal(data, name, verify)))


def read_batch(content: pa.Buffer) -> pa.RecordBatch:
    """The batch that a content is; its columns are views of it."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_next_batch()


def open_seal(data: memoryview, name: str, verify: bool = True) -> memoryview:
    """The content of an object; raises `Corruption` or `NewerFormat`."""
    if len(data) < _HEADER.size or bytes(data[:8]) != _MAGIC:
        raise Corruption(f"{name} is not a block", file=name, offset=0)
    _, version, head_bytes, checksum, length = _HEADER.unpack_from(data)
    # Before the version, so that one that rotted is not taken for a newer one.
    if verify and _checksum(data[: _HEADER.size], [data[_HEADER.size :]]) != checksum:
        raise Corruption(f"{name}: the checksum is wrong", file=name, offset=0)
    check_format(name, version, BLOCK_FORMAT_VERSION)
    if head_bytes > length or _size(head_bytes, length) != len(data):
        raise Corruption(f"{name}: the length is wrong", file=name, offset=24)
    begin = _begin(_pieces(head_bytes, length))
    return data[begin : begin + length]


# Damage


def damage_of(data: memoryview) -> Damage | None:
    """What of an object that did not open can be relied on; None: nothing can be told."""
    lengths = _lengths(data)
    if lengths is None:
        return None
    head_bytes, length = lengths
    count = _pieces(head_bytes, length)
    begin = _begin(count)
    if len(data) < begin:
        return None
    listed = np.frombuffer(data[_HEADER.size : _HEADER.size + 8 * count], dtype="<u8")
    content = np.zeros(length, dtype=np.uint8)
    there = np.frombuffer(data[begin : begin + length], dtype=np.uint8)
    content[: len(there)] = there
    heads = _count(head_bytes)
    copy = data[begin + length : begin + length + head_bytes]
    head = _damaged(content.data[:head_bytes], listed[:heads])
    if head and len(copy) == head_bytes:
        content[:head_bytes] = np.frombuffer(copy, dtype=np.uint8)
        if _damaged(copy, listed[:heads]):
            return None
    elif head:
        return None
    rest = _damaged(content.data[head_bytes:], listed[heads:])
    ranges = head_bytes + np.array(rest, dtype=np.int64).reshape(-1, 2)
    first = head[0][0] if head else int(ranges[0, 0]) if len(ranges) else -begin
    return Damage(pa.py_buffer(content), head_bytes, ranges[:, 0], ranges[:, 1], begin + first)


def _damaged(part: memoryview, listed: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Ranges of a part that are not as they were written: pieces of it, or single bytes."""
    checksums = _checksums(part, 0)
    damaged = np.flatnonzero(checksums != listed).tolist()
    ranges: list[tuple[int, int]] = []
    for number in damaged:
        begin = number * PIECE_BYTES
        end = min(begin + PIECE_BYTES, len(part))
        if int(checksums[number] ^ listed[number]).bit_count() == 1:
            continue  # The flipped bit is in the checksum.
        place = None
        if len(damaged) <= _SEARCHED_MAX:
            place = _flipped(part[begin:end], int(listed[number]))
        ranges.append((begin, end) if place is None else (begin + place, begin + place + 1))
    return ranges


def _flipped(piece: memoryview, checksum: int) -> int | None:
    """The byte of a piece in which one bit is wrong; None if there is more wrong than that.

    Found by trying all of them. That another bit than the right one fits a checksum of 64 bits is as
    unlikely as that damage fits it.
    """
    tried = bytearray(piece)
    for place in range(len(tried)):
        for bit in (1, 2, 4, 8, 16, 32, 64, 128):
            tried[place] ^= bit
            if xxh3_64_intdigest(tried) == checksum:
                return place
            tried[place] ^= bit
    return None


def _lengths(data: memoryview) -> tuple[int, int] | None:
    """Of head and content: as the header says, or its copy; of a file that was cut the header."""
    if len(data) < _HEADER.size:
        return None
    places = (0, len(data) - _HEADER.size)
    headers = [_HEADER.unpack_from(data, offset) for offset in places]
    lengths = [(head, length) for _, _, head, _, length in headers]
    lengths = [pair for pair in lengths if 0 < pair[1] <= _LENGTH_MAX and pair[0] <= pair[1]]
    for head_bytes, length in lengths:
        if _size(head_bytes, length) == len(data):
            return head_bytes, length
    _, version, head_bytes, _, length = headers[0]
    if version == BLOCK_FORMAT_VERSION and (head_bytes, length) in lengths:
        return head_bytes, length
    return None
