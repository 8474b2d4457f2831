"""Lists in tickets: the columns that are wanted, and words that filter."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from fasti.errors import InvalidArgument

Header = dict[str, Any]

NAMED_MAX = 1_000


def columns_of(schema: pa.Schema, names: list[Any]) -> pa.Schema:
    """Some columns, in the order in which they are named. Raises `invalid_argument`."""
    for name in names:
        if name not in schema.names:
            raise InvalidArgument(
                f"there is no column {name!r}: there are {', '.join(schema.names)}", field="columns"
            )
    if len(set(names)) < len(names):
        raise InvalidArgument("a column is named twice", field="columns")
    return pa.schema([schema.field(name) for name in names])


def words(fields: Header, name: str) -> list[str]:
    """A list of texts. Raises `invalid_argument`."""
    found = fields[name]
    if not all(isinstance(word, str) for word in found):
        raise InvalidArgument(f"{name!r} must be a list of strings", field=name)
    if len(found) > NAMED_MAX:
        raise InvalidArgument(f"{name!r} has too many entries", field=name, limit=NAMED_MAX)
    return list(found)
