"""One message of the blocks' stream: a part of a block under a header. Pure; any thread.

::

    offset  size  field
         0     4  magic            f5 42 4c 4b
         4     2  format version   1
         6     1  codec            0 none, 1 LZ4 (one block)
         7     1  zero
         8     4  part             from 0
        12     4  parts
        16     8  size             of the whole block
        24     8  part bytes       what every part but the last has
        32     8  nonce            drawn by each `put`: tells its own message from another's
        40     8  checksum         XXH3-64 of the body as stored
        48     8  name checksum    XXH3-64 of the block's name
        56     8  header checksum  XXH3-64 of the 56 bytes before it

The stream has LZ4 where it saves a fifth; cached files have the body as it is.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest

from fasti.cluster.pack import RAW, compress, decompress
from fasti.errors import Corruption, NewerFormat

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"\xf5BLK"
PART_VERSION = 1
PART_HEADER_BYTES = 64
_FIELDS = struct.Struct("<4sHBxIIQQQQQ")
_CHECKSUM = struct.Struct("<Q")
assert _FIELDS.size + _CHECKSUM.size == PART_HEADER_BYTES


class Part(NamedTuple):
    """A part of a block, checked."""

    number: int
    parts: int
    size: int
    part_bytes: int
    nonce: int
    body: memoryview


def encode_part(
    name: str, part: Part, compressed: bool = False
) -> tuple[bytes, bytes | memoryview]:
    """The message, as header and body; also what a cached file has."""
    codec, stored = compress(part.body) if compressed else (RAW, part.body)
    fields = _FIELDS.pack(
        MAGIC,
        PART_VERSION,
        codec,
        part.number,
        part.parts,
        part.size,
        part.part_bytes,
        part.nonce,
        xxh3_64_intdigest(stored),
        xxh3_64_intdigest(name.encode()),
    )
    return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields)), stored


def decode_part(name: str, number: int, data: Buffer) -> Part:
    """Raises `Corruption` unless this is that part of that block, whole; `NewerFormat`."""
    view = memoryview(data)
    file = f"blocks/{name}"
    if len(view) < PART_HEADER_BYTES or view[:4] != MAGIC:
        raise Corruption(f"part {number} of block {name} has no header", file=file, offset=0)
    fields = view[: _FIELDS.size]
    if xxh3_64_intdigest(fields) != _CHECKSUM.unpack_from(view, _FIELDS.size)[0]:
        raise Corruption(f"part {number} of block {name} has a damaged header", file=file, offset=0)
    _, version, codec, found, parts, size, part_bytes, nonce, checksum, named = _FIELDS.unpack(
        fields
    )
    if version != PART_VERSION:
        text = f"block {name} has format {version}, this version reads {PART_VERSION}"
        raise NewerFormat(text, found=version, supported=PART_VERSION)
    stored = view[PART_HEADER_BYTES:]
    offset = number * part_bytes
    expected = min(part_bytes, size - offset)
    is_it = found == number and named == xxh3_64_intdigest(name.encode())
    if is_it and xxh3_64_intdigest(stored) == checksum:
        body = decompress(codec, stored, expected)
        if len(body) == expected:
            return Part(number, parts, size, part_bytes, nonce, body)
    raise Corruption(f"part {number} of block {name} is damaged", file=file, offset=offset)
