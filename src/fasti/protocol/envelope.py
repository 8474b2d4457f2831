"""Envelopes: how an action's body and result carry a JSON header and Arrow tables.

Four bytes with the header's length, the header, and the parts one after another, each an Arrow IPC
stream whose length the header names. A small part of texts and integers may stand in the header itself,
as columns in JSON: an Arrow stream of one row costs more than everything else of its request.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from fasti.errors import InvalidArgument
from fasti.protocol.ipc_check import BATCHES_MAX, check_stream
from fasti.protocol.single_row import TYPES, Part, SingleRow, as_batch

_LENGTH = struct.Struct("<I")
_PARTS_MAX = 10_000
# JSON takes up to 30 times its bytes when it is read.
_JSON_BYTES_MAX = 8 << 20
# Up to so many rows a part is smaller and quicker as JSON.
_INLINE_ROWS_MAX = 8

Header = dict[str, Any]


def pack(header: Header, parts: Sequence[Part] = (), *, inline: bool = False) -> bytes:
    """An envelope as bytes. `inline`: parts that are small and simple go into the header."""
    bodies: list[bytes] = []
    if parts:
        places: list[int | Header] = []
        for part in parts:
            columns = _inline_columns(part) if inline else None
            if columns is None:
                bodies.append(_encode(part))
                places.append(len(bodies[-1]))
            else:
                places.append(columns)
        header = {**header, "parts": places}
    text = dump(header)
    return b"".join([_LENGTH.pack(len(text)), text, *bodies])


def unpack(body: pa.Buffer | bytes, *, of_request: bool = False) -> tuple[Header, list[Part]]:
    """The header (without `parts`) and the parts. Raises `invalid_argument` on anything else.

    A part that stood in the header is a batch, or a `SingleRow` if it is one; any other is a table.
    `of_request`: a stranger may have made it. What would need much more memory than it has bytes is refused
    before it is unpacked.
    """
    buffer = pa.py_buffer(body)
    size = len(buffer)
    if size < _LENGTH.size:
        raise InvalidArgument("an envelope begins with the length of its header", field="body")
    view = memoryview(buffer)
    (length,) = _LENGTH.unpack_from(view)
    begin = _LENGTH.size + length
    if begin > size:
        raise InvalidArgument(
            f"the header should have {length} bytes and the body has {size}", field="body"
        )
    text = bytes(view[_LENGTH.size : begin])
    header = parse_request(text) if of_request else parse(text)
    places = header.pop("parts", [])
    if not isinstance(places, list) or len(places) > _PARTS_MAX:
        raise InvalidArgument("parts must be a list of sizes", field="parts", limit=_PARTS_MAX)
    bodies: list[pa.Buffer | Header] = []
    for place in places:
        if type(place) is dict:
            bodies.append(place)
            continue
        if type(place) is not int or place < 0 or begin + place > size:
            raise InvalidArgument("a part is longer than the body", field="parts")
        bodies.append(buffer[begin : begin + place])
        begin += place
    if begin != size:
        raise InvalidArgument("the body goes on behind its last part", field="parts")
    if of_request:
        _check([body for body in bodies if type(body) is not dict])
    return header, [_from_columns(b) if type(b) is dict else _decode(b) for b in bodies]


def parse_request(text: bytes) -> Header:
    """A JSON object that a stranger may have made."""
    if len(text) > _JSON_BYTES_MAX:
        raise InvalidArgument(
            f"this JSON has {len(text)} bytes", field="json", limit=_JSON_BYTES_MAX
        )
    return parse(text)


def parse(text: bytes) -> Header:
    """A JSON object."""
    try:
        # As text: json would take bytes for UTF-16 or UTF-32 too.
        value = _decoder.decode(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"this is not JSON: {error}", field="json") from error
    if not isinstance(value, dict):
        raise InvalidArgument("this is JSON, but not an object", field="json")
    return value


def _refuse_constant(word: str) -> None:
    raise ValueError(f"JSON has no {word}")


# Made once: `json.loads` and `json.dumps` with options make one each time.
_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
_encoder = json.JSONEncoder(separators=(",", ":"))


def dump(value: Header) -> bytes:
    """A JSON object as bytes, for metadata, descriptors and tickets."""
    return _encoder.encode(value).encode()


def join_row(header: Header, payload: bytes) -> bytes:
    """Metadata with one message's payload, whose columns stand in the header: an Arrow batch of one row
    would cost more than everything else of it. JSON has no zero byte, so the first one ends it.
    """
    return b"%b\0%b" % (dump(header), payload)


def split_row(body: bytes) -> tuple[bytes, bytes | None]:
    """The header's text, and the payload behind it if there is one."""
    text, zero, payload = body.partition(b"\0")
    return text, payload if zero else None


def _inline_columns(part: Part) -> Header | None:
    """A part as JSON, if it is one that may stand in a header."""
    if isinstance(part, SingleRow):
        return part.lists
    if not 0 < part.num_rows <= _INLINE_ROWS_MAX:
        return None
    columns = part.columns
    for column in columns:
        if column.null_count or column.type not in TYPES.values():
            return None
    return dict(zip(part.schema.names, [column.to_pylist() for column in columns], strict=True))


def _from_columns(columns: Header) -> Part:
    """A part that stood in the header: texts are utf8, integers int64."""
    row = SingleRow.of_columns(columns)
    if row is not None:
        return row
    arrays = []
    for name, values in columns.items():
        kinds = {*map(type, values)} if type(values) is list else set()
        kind = TYPES.get(kinds.pop()) if len(kinds) == 1 else None
        if kind is None:
            raise InvalidArgument(
                f"the column {name!r} in a header must be a list of texts or of integers",
                field="parts",
            )
        try:
            arrays.append(pa.array(values, kind))
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise InvalidArgument(f"the column {name!r}: {error}", field="parts") from error
    try:
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(f"a part in the header: {error}", field="parts") from error


def _encode(part: Part) -> bytes:
    part = as_batch(part)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema) as writer:
        writer.write(part)
    return sink.getvalue().to_pybytes()


def _check(bodies: list[pa.Buffer]) -> None:
    """All of them before the first is read: what is refused has cost nothing."""
    try:
        batches = sum(map(check_stream, bodies))
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        raise _not_arrow(error) from error
    if batches > BATCHES_MAX:
        raise InvalidArgument("too many batches", field="parts", limit=BATCHES_MAX)


def _decode(body: pa.Buffer) -> pa.Table:
    try:
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _not_arrow(error) from error
    return table


def _not_arrow(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"a part is not an Arrow stream: {error}", field="parts")
