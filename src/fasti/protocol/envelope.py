"""Envelopes: how an action's body and result carry a JSON header and Arrow tables.

Four bytes with the header's length, the header, and the parts one after another, each an Arrow IPC
stream whose length the header names.
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

_LENGTH = struct.Struct("<I")
_PARTS_MAX = 10_000
# JSON takes up to 30 times its bytes when it is read.
_JSON_BYTES_MAX = 8 << 20

Header = dict[str, Any]


def pack(header: Header, parts: Sequence[pa.RecordBatch | pa.Table] = ()) -> bytes:
    """An envelope as bytes."""
    bodies = [_encode(part) for part in parts]
    if bodies:
        header = {**header, "parts": [len(body) for body in bodies]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *bodies])


def unpack(body: pa.Buffer | bytes, *, of_request: bool = False) -> tuple[Header, list[pa.Table]]:
    """The header (without `parts`) and the parts. Raises `invalid_argument` on anything else.

    `of_request`: a stranger may have made it. What would need much more memory than it has bytes
    is refused before it is unpacked.
    """
    buffer = pa.py_buffer(body)
    if len(buffer) < _LENGTH.size:
        raise InvalidArgument("an envelope begins with the length of its header", field="body")
    (length,) = _LENGTH.unpack(buffer[: _LENGTH.size].to_pybytes())
    begin = _LENGTH.size + length
    if begin > len(buffer):
        raise InvalidArgument(
            f"the header should have {length} bytes and the body has {len(buffer)}", field="body"
        )
    text = buffer[_LENGTH.size : begin].to_pybytes()
    header = parse_request(text) if of_request else parse(text)
    sizes = header.pop("parts", [])
    if not isinstance(sizes, list) or len(sizes) > _PARTS_MAX:
        raise InvalidArgument("parts must be a list of sizes", field="parts", limit=_PARTS_MAX)
    bodies = []
    for size in sizes:
        if type(size) is not int or size < 0 or begin + size > len(buffer):
            raise InvalidArgument("a part is longer than the body", field="parts")
        bodies.append(buffer[begin : begin + size])
        begin += size
    if begin != len(buffer):
        raise InvalidArgument("the body goes on behind its last part", field="parts")
    if of_request:
        _check(bodies)
    return header, [_decode(part) for part in bodies]


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
        value = json.loads(str(text, "utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"this is not JSON: {error}", field="json") from error
    if not isinstance(value, dict):
        raise InvalidArgument("this is JSON, but not an object", field="json")
    return value


def _refuse_constant(word: str) -> None:
    raise ValueError(f"JSON has no {word}")


def dump(value: Header) -> bytes:
    """A JSON object as bytes, for metadata, descriptors and tickets."""
    return json.dumps(value, separators=(",", ":")).encode()


def _encode(part: pa.RecordBatch | pa.Table) -> bytes:
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
