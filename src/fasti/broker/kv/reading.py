"""Reading entries together with their values, wherever those lie by the time that they are read.

A checkpoint may move a value between the moment when the engine told its place and the moment when
it is read: then the engine is asked again, as reading.py does for messages. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker.reading import MOVED, gather_bounded
from fasti.core.kv.commands import KvFound, KvGet, KvRows
from fasti.errors import FastiError, InvalidArgument
from fasti.model import DUE_MAX_US, Outcome
from fasti.protocol.schemas import KV_ROWS

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

Int64s = NDArray[np.int64]

_TRIES = 16
_PIECE_BYTES = 16 << 20
_CONTENTS = ("created_us", "headers", "content_type", "payload")
_WITHOUT_VALUES = ("created_us", "headers", "content_type")


def fetch(
    shard: Shard, command: KvGet | KvRows, values: bool, keys: bool = False
) -> tuple[KvFound, pa.RecordBatch]:
    """Entries, and the contents of those that are there, in the order of the command's rows."""
    names = (("key",) if keys else ()) + (_CONTENTS if values else _WITHOUT_VALUES)
    error: FastiError | None = None
    for _ in range(_TRIES):
        found: KvFound = shard.call(command, lead=True)
        if found.error is not None:
            raise found.error
        here = found.status == Outcome.OK
        places = found.locations if here.all() else found.locations[here]
        try:
            return found, _gather(shard, places, values, names)
        except MOVED as moved:
            error = moved
    assert error is not None
    raise error


def _gather(shard: Shard, places: Int64s, values: bool, names: tuple[str, ...]) -> pa.RecordBatch:
    """No more than fits one answer. Values that nobody wants are let go at once."""
    if values:
        return gather_bounded(shard, places, names)
    limit = shard.settings.limits.batch_bytes_max
    found: list[pa.RecordBatch] = []
    begin = 0
    while begin < len(places) or not found:
        count = shard.store.payloads.fitting(places[begin:], limit)
        found.append(shard.store.payloads.gather(places[begin : begin + count], names=names))
        begin += count
        if sum(batch.nbytes for batch in found) > limit:
            raise InvalidArgument(
                f"the headers have more than {limit} bytes together: ask for fewer at a time",
                field="batch_bytes_max",
                limit=limit,
            )
    return found[0] if len(found) == 1 else pa.concat_batches(found)


def pieces(
    shard: Shard, topic: str, ids: Int64s, values: bool
) -> Iterator[tuple[KvFound, pa.RecordBatch, Int64s]]:
    """Of these entries those that are there, a bounded piece at a time.

    Each comes with its contents, and with the places in `ids` at which its entries stand.
    """
    names = _CONTENTS if values else _WITHOUT_VALUES
    places = np.arange(len(ids))
    tries = 0
    while len(places):
        found: KvFound = shard.call(KvRows(topic, ids[places]), lead=True)
        if found.error is not None:
            raise found.error
        here = np.flatnonzero(found.status == Outcome.OK)
        if not len(here):
            return
        try:
            count = shard.store.payloads.fitting(found.locations[here], _PIECE_BYTES)
            here = here[:count]
            # A page does not fail for one value: that is null.
            contents = shard.store.payloads.gather(found.locations[here], names=names, lost=True)
        except MOVED:
            tries += 1
            if tries > _TRIES:
                raise
            continue
        yield found.only(here), contents, places[here]
        places = places[here[-1] + 1 :]


def entries_batch(
    found: KvFound, contents: pa.RecordBatch, keys: pa.Array, clustering: pa.Array
) -> pa.RecordBatch:
    """Rows of the protocol. Where nothing is found, only the name is told."""
    here = found.status == Outcome.OK
    missing = None if here.all() else ~here
    rows: Any = None
    if missing is not None:
        places = np.cumsum(here) - 1
        rows = pa.array(places, mask=missing)

    def content(name: str) -> pa.Array:
        if name not in contents.schema.names:
            return pa.nulls(len(here), pa.binary())
        column = contents.column(name)
        return column if rows is None else column.take(rows)

    for_ever = found.expires_us == DUE_MAX_US
    return pa.RecordBatch.from_arrays(
        [
            keys,
            clustering,
            pa.array(found.versions, mask=missing),
            pa.array(found.expires_us, mask=for_ever if missing is None else for_ever | missing),
            content("created_us"),
            content("headers"),
            content("content_type"),
            content("payload"),
        ],
        schema=KV_ROWS,
    )
