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

_LENGTH = struct.Struct("<I")
_PARTS_MAX = 10_000

Header = dict[str, Any]


def pack(header: Header, parts: Sequence[pa.RecordBatch | pa.Table] = ()) -> bytes:
    """An envelope as bytes."""
    bodies = [_encode(part) for part in parts]
    if bodies:
        header = {**header, "parts": [len(body) for body in bodies]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *bodies])


def unpack(body: pa.Buffer | bytes) -> tuple[Header, list[pa.Table]]:
    """The header (without `parts`) and the parts. Raises `invalid_argument` on anything else."""
    buffer = pa.py_buffer(body)
    if len(buffer) < _LENGTH.size:
        raise InvalidArgument("an envelope begins with the length of its header", field="body")
    (length,) = _LENGTH.unpack(buffer[: _LENGTH.size].to_pybytes())
    begin = _LENGTH.size + length
    if begin > len(buffer):
        raise InvalidArgument(
            f"the header should have {length} bytes and the body has {len(buffer)}", field="body"
        )
    header = parse(buffer[_LENGTH.size : begin].to_pybytes())
    sizes = header.pop("parts", [])
    if not isinstance(sizes, list) or len(sizes) > _PARTS_MAX:
        raise InvalidArgument("parts is a list of sizes", field="parts", limit=_PARTS_MAX)
    parts = []
    for size in sizes:
        if type(size) is not int or size < 0 or begin + size > len(buffer):
            raise InvalidArgument("a part is longer than the body", field="parts")
        parts.append(_decode(buffer[begin : begin + size]))
        begin += size
    if begin != len(buffer):
        raise InvalidArgument("the body goes on behind its last part", field="parts")
    return header, parts


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


def _decode(body: pa.Buffer) -> pa.Table:
    try:
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgument(f"a part is not an Arrow stream: {error}", field="parts") from error
    return table
