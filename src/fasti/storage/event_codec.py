"""Events as the body of a journal frame.

::

    u32   length of the head
    u32   zeros
    head  JSON: the events' codes, scalars and columns, and the names of the payload columns
    ...   each column, little-endian, padded to 8 bytes
    ...   the payloads: one Arrow IPC record batch message, without schema; or, of a message that came
          alone, its values one behind the other, whose names and lengths stand in the head

A column whose values are all alike, or count up by one, is kept as one number in the head. Columns
lie as Arrow lays out primitive arrays, so they are read in place. Hashes of keys are not written:
they are computed again from the keys, under the seed of the data directory.
"""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core.events import Event
from fasti.core.fields import FIELDS
from fasti.core.journaled import EVENTS
from fasti.core.keys import Rows
from fasti.core.replies import Frame
from fasti.errors import NewerFormat
from fasti.storage.formats import check_format

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Bodies with a message that came alone have the newer one, all others are as they ever were.
BODY_FORMAT_VERSION = 2
BATCH_FORMAT_VERSION = 1

_HEAD = struct.Struct("<I4x")
_KINDS: dict[str, str] = {
    "Int64s": "<i8",
    "UInt64s": "<u8",
    "UInt16s": "<u2",
    "NDArray[np.uint8]": "|u1",
}
_PADDING = bytes(8)
_JSON = json.JSONEncoder(separators=(",", ":"))


@cache
def _layout(code: int) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Names of an event's scalars, and names and kinds of its columns."""
    if code not in EVENTS:
        raise NewerFormat(
            f"a journal frame has an event of code {code}, which this version of Fasti does not know "
            f"(the highest is {max(EVENTS)}): use the version that wrote it",
            found=code,
            supported=max(EVENTS),
        )
    written = [f for f in fields(EVENTS[code]) if not f.metadata.get("derived")]
    scalars = tuple(f.name for f in written if str(f.type) not in _KINDS)
    columns = tuple((f.name, _KINDS[str(f.type)]) for f in written if str(f.type) in _KINDS)
    return scalars, columns


def encode(frame: Frame) -> list[Buffer]:
    """The buffers of a frame's body, to be written one after another."""
    buffers: list[Buffer] = []
    head: dict[str, Any] = {"v": BATCH_FORMAT_VERSION, "events": []}
    for event in frame.events:
        scalars, columns = _layout(event.code)
        packed = [pack_column(getattr(event, name), kind, buffers) for name, kind in columns]
        values = [getattr(event, name) for name in scalars]
        head["events"].append([event.code, values, packed])
    rows = frame.rows
    if rows is not None:
        if rows.values is None:
            head["rows"] = rows.names
        else:
            head["v"] = BODY_FORMAT_VERSION
            head["row"] = {name: len(value) for name, value in rows.values.items()}
        buffers.append(rows.encoded)
    text = _JSON.encode(head).encode()
    text += b" " * (-len(text) % 8)
    return [_HEAD.pack(len(text)), text, *buffers]


def decode(body: memoryview, seed: tuple[int, int]) -> tuple[list[Event], Rows | None]:
    """Back from a body. Columns and payloads are views of it."""
    head, offset = _read_head(body)
    events, rows = _decode(body, head, offset)
    keyed: list[Any] = [event for event in events if hasattr(event, "hashes")]
    keys = rows.keys(seed) if rows is not None and keyed else None
    if keys is not None:
        for event in keyed:
            event.hashes = keys.hashes[event.row]
    return events, rows


def decode_about(body: memoryview, topic: int) -> tuple[list[Event], Rows | None]:
    """The same without hashes, for a reader of one topic; nothing if the body is about others."""
    head, offset = _read_head(body)
    if not any(topic == topic_of(code, values) for code, values, _ in head["events"]):
        return [], None
    return _decode(body, head, offset)


def topic_of(code: int, values: list[Any]) -> Any:
    """The number of the topic that an event of a head is about; None if of none."""
    scalars, _ = _layout(code)
    return values[scalars.index("topic")] if "topic" in scalars else None


def partition_of(code: int, values: list[Any]) -> Any:
    """The partition that an event of a head is about; None if of none."""
    scalars, _ = _layout(code)
    return values[scalars.index("partition")] if "partition" in scalars else None


def _decode(body: memoryview, head: dict[str, Any], offset: int) -> tuple[list[Event], Rows | None]:
    events: list[Event] = []
    for code, values, packed in head["events"]:
        scalars, columns = _layout(code)
        arguments = dict(zip(scalars, values, strict=True))
        for (name, dtype), description in zip(columns, packed, strict=True):
            arguments[name], offset = unpack_column(body, offset, dtype, description)
        events.append(EVENTS[code](**arguments))
    return events, _read_rows(body, offset, head)


def decode_rows(body: memoryview) -> tuple[Rows | None, int]:
    """Only the payloads of a body, and when they were written."""
    head, offset = _read_head(body)
    at_us = int(head["events"][0][1][0])
    for code, _, packed in head["events"]:
        for (_, dtype), description in zip(_layout(code)[1], packed, strict=True):
            if description[0] == "a":
                offset += _padded(description[1] * np.dtype(dtype).itemsize)
    return _read_rows(body, offset, head), at_us


def read_head(body: memoryview) -> dict[str, Any]:
    """The head of a body: its events' codes, scalars and how their columns are packed."""
    return _read_head(body)[0]


def _read_head(body: memoryview) -> tuple[dict[str, Any], int]:
    (length,) = _HEAD.unpack_from(body)
    end = _HEAD.size + length
    head = json.loads(bytes(body[_HEAD.size : end]))
    check_format("a journal frame", head["v"], BODY_FORMAT_VERSION)
    return head, end


def _read_rows(body: memoryview, offset: int, head: dict[str, Any]) -> Rows | None:
    names = head.get("rows")
    if names is None:
        lengths = head.get("row")
        return None if lengths is None else _read_row(body, offset, lengths)
    schema = pa.schema([FIELDS[name] for name in names])
    return Rows(pa.ipc.read_record_batch(pa.py_buffer(body[offset:]), schema))


def _read_row(body: memoryview, offset: int, lengths: dict[str, int]) -> Rows:
    values = {}
    for name, length in lengths.items():
        values[name] = bytes(body[offset : offset + length])
        offset += length
    return Rows(None, values)


def pack_column(values: NDArray[Any], kind: str, buffers: list[Buffer]) -> list[Any]:
    """Describes a column, and adds its bytes to the buffers unless one number says it all."""
    count = len(values)
    if count == 1:
        return ["c", 1, int(values[0])]
    if count:
        first, last = values[0], values[-1]
        if first == last and (values == first).all():
            return ["c", count, int(first)]
        if int(last) - int(first) == count - 1 and (np.diff(values) == 1).all():
            return ["r", count, int(first)]
        plain = np.ascontiguousarray(values, dtype=kind)
        buffers.append(plain.data.cast("B"))
        if plain.nbytes % 8:
            buffers.append(_PADDING[: -plain.nbytes % 8])
    return ["a", count]


def unpack_column(
    body: memoryview, offset: int, kind: str, description: list[Any]
) -> tuple[NDArray[Any], int]:
    """A column back from its description, and where the next one begins."""
    form, count = description[0], description[1]
    if form == "c":
        return np.full(count, description[2], dtype=kind), offset
    if form == "r":
        first = description[2]
        return np.arange(first, first + count, dtype=kind), offset
    size = count * np.dtype(kind).itemsize
    return np.frombuffer(body[offset : offset + size], dtype=kind), offset + _padded(size)


def _padded(size: int) -> int:
    return size + -size % 8
