"""Which messages a caller named, by id or by key, one or many; and what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fasti.client.outcomes import Outcome, Outcomes
from fasti.client.transport import Header, Transport
from fasti.errors import InvalidArgument

if TYPE_CHECKING:
    from fasti.client.arguments import ArrowBatch, Integers

# Requests by lists longer than this go in several.
ROWS_MAX = 50_000


class Target:
    """Which messages a caller named, by id or by key, one or many."""

    def __init__(self, ids: Any, keys: Any, versions: Any) -> None:
        if (ids is None) == (keys is None):
            raise InvalidArgument("name messages by either id or key", field="id")
        self._name = "id" if keys is None else "key"
        named = ids if keys is None else keys
        self.single = isinstance(named, (str, int, np.integer)) and not isinstance(named, bool)
        kind = pa.int64() if keys is None else pa.string()
        self._named = _array([named] if self.single else named, kind, self._name)
        self.rows = len(self._named)
        self._versions = None
        if versions is not None:
            many = [versions] * self.rows if isinstance(versions, int) else versions
            self._versions = _array(many, pa.int64(), "version")

    def batch(self, columns: dict[str, pa.Array]) -> ArrowBatch:
        """The part of a request that names them, with more columns besides."""
        arrays = {self._name: self._named}
        if self._versions is not None:
            arrays["version"] = self._versions
        arrays |= columns
        for name, array in arrays.items():
            if len(array) != self.rows:
                raise InvalidArgument(f"{self.rows} messages and {len(array)} {name}s", field=name)
        return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))

    def answer(self, outcomes: Outcomes) -> Outcome | Outcomes:
        """One outcome for one message."""
        return outcomes[0] if self.single else outcomes


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


def outcomes_of(
    transport: Transport, action: str, header: Header, batch: pa.RecordBatch
) -> Outcomes:
    """What became of each row of a batch that names messages."""
    outcomes = []
    for begin in range(0, batch.num_rows, ROWS_MAX):
        reply, _ = transport.call(action, header, [batch.slice(begin, ROWS_MAX)])
        outcomes.append(Outcomes.of_reply(reply))
    return Outcomes.joined(outcomes)


def change_ids(
    transport: Transport, action: str, header: Header, ids: int | Integers
) -> Outcome | Outcomes:
    """The same of messages named by id: one outcome for one."""
    target = Target(ids, None, None)
    return target.answer(outcomes_of(transport, action, header, target.batch({})))
