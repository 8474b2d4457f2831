"""The state block: what is durable of a shard beside its rows, as one sealed object.

The same shape as a journal frame's body (see event_codec.py): a JSON head that describes the
columns, then the columns. Its header is that of every block.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from fasti.core.capsule import Capsule
from fasti.storage.event_codec import pack_column, unpack_column
from fasti.storage.seals import open_seal, seal_content

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEAD = struct.Struct("<I4x")


def encode_state(capsule: Capsule) -> list[Buffer]:
    """The object's buffers."""
    buffers: list[Buffer] = []
    described: list[Any] = []
    for name, column in capsule.columns.items():
        values = column() if callable(column) else column
        kind = values.dtype.newbyteorder("<").str
        described.append([name, kind, pack_column(values, kind, buffers)])
    text = json.dumps({"head": capsule.head, "columns": described}).encode()
    text += b" " * (-len(text) % 8)
    return seal_content([_HEAD.pack(len(text)), text, *buffers])


def decode_state(data: memoryview, name: str) -> Capsule:
    """Back from an object; its columns are views of it."""
    content = open_seal(data, name)
    (length,) = _HEAD.unpack_from(content)
    offset = _HEAD.size + length
    described = json.loads(bytes(content[_HEAD.size : offset]))
    columns = {}
    for column, kind, description in described["columns"]:
        columns[column], offset = unpack_column(content, offset, kind, description)
    return Capsule(described["head"], columns)
