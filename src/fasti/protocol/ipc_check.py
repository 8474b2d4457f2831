"""What an Arrow stream announces, judged before Arrow unpacks it.

Arrow believes a stream: compressed buffers are unpacked to whatever length they claim (66 kB become
2 GiB), and a flatbuffer may point to the same field or text many times, each of which becomes an
object of its own. Nothing here is unpacked or copied: only the messages' metadata is read, which is
small, and what would cost much more memory than it has bytes is refused.

The offsets can be followed without checks of their own, because `MessageReader` has verified each flatbuffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.ipc

from fasti.errors import InvalidArgument

# The metadata of one message: ours have a few hundred bytes.
_METADATA_BYTES_MAX = 64 << 10
# Fields and pairs of metadata of one message, counted as often as they are pointed to.
_ENTRIES_MAX = 256
BATCHES_MAX = 10_000

_I32, _U32, _U16 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<H")
# Slots of Arrow's flatbuffers (Message.fbs, Schema.fbs), in the order of their declaration.
_HEADER_TYPE, _HEADER, _MESSAGE_PAIRS = 1, 2, 4
_SCHEMA_FIELDS, _SCHEMA_PAIRS = 1, 2
_FIELD_CHILDREN, _FIELD_PAIRS = 5, 6
_BATCH_COMPRESSION = 3
_SCHEMA, _RECORD_BATCH = 1, 3


def check_stream(body: pa.Buffer) -> int:
    """How many batches an Arrow stream has; raises `invalid_argument` if it would grow when read.

    Raises Arrow's errors where it is not a stream at all.
    """
    batches = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        metadata = message.metadata
        if len(metadata) > _METADATA_BYTES_MAX:
            raise InvalidArgument(
                f"the metadata of an Arrow message has {len(metadata)} bytes",
                field="parts",
                limit=_METADATA_BYTES_MAX,
            )
        batches += _check_message(metadata.to_pybytes())
        if batches > BATCHES_MAX:
            raise InvalidArgument("a part has too many batches", field="parts", limit=BATCHES_MAX)
    return batches


def _check_message(data: bytes) -> int:
    """1 for a batch, 0 for a schema."""
    root: int = _U32.unpack_from(data)[0]
    kind = data[_slot(data, root, _HEADER_TYPE)]
    header = _target(data, _slot(data, root, _HEADER))
    entries = _length(data, root, _MESSAGE_PAIRS)
    if kind == _SCHEMA:
        entries += _length(data, header, _SCHEMA_PAIRS)
        waiting = list(_tables(data, header, _SCHEMA_FIELDS))
        while waiting and entries <= _ENTRIES_MAX:
            field = waiting.pop()
            entries += 1 + _length(data, field, _FIELD_PAIRS)
            waiting += _tables(data, field, _FIELD_CHILDREN)
    elif kind != _RECORD_BATCH:
        raise InvalidArgument("a part contains something other than batches of rows", field="parts")
    elif _slot(data, header, _BATCH_COMPRESSION):
        raise InvalidArgument(
            "the batches of a part are compressed: send them as they are", field="parts"
        )
    if entries > _ENTRIES_MAX:
        raise InvalidArgument(
            "an Arrow message has too many fields or pairs of metadata",
            field="parts",
            limit=_ENTRIES_MAX,
        )
    return int(kind == _RECORD_BATCH)


def _slot(data: bytes, table: int, slot: int) -> int:
    """Where a table's field is; 0 if it is not there."""
    vtable = table - _I32.unpack_from(data, table)[0]
    entry = 4 + 2 * slot
    if entry >= _U16.unpack_from(data, vtable)[0]:
        return 0
    offset: int = _U16.unpack_from(data, vtable + entry)[0]
    return table + offset if offset else 0


def _target(data: bytes, place: int) -> int:
    return place + int(_U32.unpack_from(data, place)[0])


def _length(data: bytes, table: int, slot: int) -> int:
    place = _slot(data, table, slot)
    return int(_U32.unpack_from(data, _target(data, place))[0]) if place else 0


def _tables(data: bytes, table: int, slot: int) -> Iterator[int]:
    """The tables of a vector, as many as a check needs."""
    count = min(_length(data, table, slot), _ENTRIES_MAX + 1)
    if count:
        first = _target(data, _slot(data, table, slot)) + 4
        yield from (_target(data, first + 4 * number) for number in range(count))
