"""Which messages a caller named, by id or by key, one or many; and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from fasti.client.outcomes import Outcome, Outcomes, outcome_of_reply
from fasti.client.transport import Header, Transport
from fasti.errors import InvalidArgument
from fasti.protocol.single_row import TYPES, Part, SingleRow, is_plain

if TYPE_CHECKING:
    from fasti.client.arguments import ArrowBatch, Integers

# Requests by lists longer than this go in several.
ROWS_MAX = 50_000
# Of a request, beside those that name the messages: one number for all rows, or one of each.
Columns: TypeAlias = "dict[str, pa.Array | int]"


class Target:
    """Which messages a caller named, by id or by key, one or many."""

    def __init__(self, ids: Any, keys: Any, versions: Any) -> None:
        if (ids is None) == (keys is None):
            raise InvalidArgument("name messages by either id or key", field="id")
        name, kind = ("id", int) if keys is None else ("key", str)
        named = ids if keys is None else keys
        self.single = isinstance(named, (str, int, np.integer)) and not isinstance(named, bool)
        self.rows = 1
        # A single one by plain values, or columns. Of values that are none of these Arrow says why.
        self._row = _row(name, kind, named, versions) if self.single else None
        self._columns: dict[str, pa.Array] = {}
        if self._row is not None:
            return
        self._columns[name] = array = _array([named] if self.single else named, TYPES[kind], name)
        self.rows = len(array)
        if versions is not None:
            many = [versions] * self.rows if isinstance(versions, int) else versions
            self._columns["version"] = _array(many, pa.int64(), "version")

    def part(self, columns: Columns) -> Part:
        """The part of a request that names them, with more columns besides."""
        if self._row is not None and all(type(column) is int for column in columns.values()):
            return SingleRow({**self._row, **columns})
        return self.batch(columns)

    def batch(self, columns: Columns) -> ArrowBatch:
        """The same in Arrow's columns."""
        arrays = dict(self._columns)
        for name, value in (self._row or {}).items():
            arrays[name] = pa.array([value], TYPES[type(value)])
        for name, column in columns.items():
            one = isinstance(column, int)
            arrays[name] = pa.array(np.full(self.rows, column)) if one else column
        for name, array in arrays.items():
            if len(array) != self.rows:
                raise InvalidArgument(f"{self.rows} messages and {len(array)} {name}s", field=name)
        return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))

    def answer(self, outcomes: Outcomes) -> Outcome | Outcomes:
        """One outcome for one message."""
        return outcomes[0] if self.single else outcomes


def _row(name: str, kind: type, named: Any, version: Any) -> dict[str, Any] | None:
    """One message by plain values; None if it takes Arrow to say what is wrong with them."""
    one = int(named) if isinstance(named, np.integer) else named
    if type(one) is not kind or not is_plain(one):
        return None
    if version is None:
        return {name: one}
    return {name: one, "version": version} if type(version) is int and is_plain(version) else None


def _array(values: Any, kind: pa.DataType, field: str) -> pa.Array:
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        array = values if isinstance(values, pa.Array) else pa.array(values, type=kind)
        array = array if array.type == kind else array.cast(kind)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise InvalidArgument(f"{field} must be {kind}: {error}", field=field) from error
    if array.null_count:
        raise InvalidArgument(f"{field} is missing in a row", field=field)
    return array


def change(
    transport: Transport, action: str, header: Header, target: Target, columns: Columns
) -> Outcome | Outcomes:
    """What became of each message that a target names: one outcome for one."""
    part = target.part(columns)
    if isinstance(part, SingleRow):
        return outcome_of_reply(transport.call(action, header, [part])[0])
    outcomes = []
    for begin in range(0, part.num_rows, ROWS_MAX):
        reply, _ = transport.call(action, header, [part.slice(begin, ROWS_MAX)])
        outcomes.append(Outcomes.of_reply(reply))
    return target.answer(Outcomes.joined(outcomes))


def change_ids(
    transport: Transport, action: str, header: Header, ids: int | Integers
) -> Outcome | Outcomes:
    """The same of messages named by id: one outcome for one."""
    return change(transport, action, header, Target(ids, None, None), {})
