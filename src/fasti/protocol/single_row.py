"""A part of one row that is texts and integers: its values as they are, on both sides of the wire.

Arrow takes longer to make a batch of one row than everything else takes that is done with it. So a request
that names one message is checked and carried out by its values, and becomes a batch (`batch`) only for what
works on columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

TYPES: dict[type, pa.DataType] = {int: pa.int64(), str: pa.string()}
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class SingleRow:
    """One row by column. Nobody changes it."""

    __slots__ = ("values",)

    num_rows = 1

    def __init__(self, values: dict[str, Any]) -> None:
        """`values` are such that `is_plain` is true of each."""
        self.values = values

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> SingleRow | None:
        """A part that stood in a header, if it is one row without a fault; else Arrow is to say of it what
        it says of every part.
        """
        values = {}
        for name, column in columns.items():
            one = type(column) is list and len(column) == 1
            if not (one and name.isascii() and is_plain(column[0])):
                return None
            values[name] = column[0]
        return cls(values) if values else None

    @property
    def lists(self) -> dict[str, list[Any]]:
        """As it stands in a header."""
        return {name: [value] for name, value in self.values.items()}

    @property
    def batch(self) -> pa.RecordBatch:
        """In Arrow's columns."""
        arrays = [pa.array([value], TYPES[type(value)]) for value in self.values.values()]
        return pa.RecordBatch.from_arrays(arrays, list(self.values))


Part: TypeAlias = "pa.RecordBatch | pa.Table | SingleRow"


def is_plain(value: Any) -> bool:
    """Whether Arrow would take it as it is: an integer of 64 bits, or a text that UTF-8 can encode."""
    if type(value) is int:
        return _INT64_MIN <= value <= _INT64_MAX
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def as_batch(part: Part) -> Any:
    """A part in Arrow's columns."""
    return part.batch if isinstance(part, SingleRow) else part
