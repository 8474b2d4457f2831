"""What happened to entries, as rows of the protocol. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker.kv.requests import split
from fasti.broker.kv.rings import Happened, Moment
from fasti.core.events import Replaced
from fasti.core.fields import FIELDS
from fasti.core.kv.events import KvProduced, Removed
from fasti.model import DUE_MAX_US
from fasti.protocol.schemas import CHANGES

Int64s = NDArray[np.int64]


def changes_batch(moments: Sequence[Moment]) -> pa.RecordBatch:
    """All changes of these moments, in order."""
    batches = [moment.batch(_made) for moment in moments]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _made(position: int, happened: list[Happened]) -> pa.RecordBatch:
    pieces = [_piece(position, each) for each in happened]
    columns = [pa.concat_arrays(list(parts)) for parts in zip(*pieces, strict=True)]
    keys, clustering = split(columns[3])
    columns[3:4] = [keys, clustering]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES)


def _piece(position: int, happened: Happened) -> list[pa.Array]:
    """One event: its columns, with the key in one piece."""
    event, batch = happened
    assert isinstance(event, (KvProduced, Replaced, Removed))
    count, rows = len(event.row), pa.array(event.row)
    common = [
        pa.array(np.full(count, position)),
        _words(event, count),
        pa.array(np.full(count, event.at_us)),
        batch.column("key").take(rows),
    ]
    if isinstance(event, Removed):
        kinds = (pa.int64(), pa.int64(), FIELDS["headers"].type, pa.string(), pa.binary())
        return common + [pa.nulls(count, kind) for kind in kinds]
    versions: Any = event.version
    if isinstance(event, KvProduced):
        versions = np.full(count, event.version)
    return [
        *common,
        pa.array(versions),
        pa.array(event.due_us, mask=event.due_us == DUE_MAX_US),
        _taken(batch, "headers", rows),
        _taken(batch, "content_type", rows),
        batch.column("payload").take(rows),
    ]


def _words(event: Any, count: int) -> pa.Array:
    word = "put"
    if isinstance(event, Removed):
        word = "expire" if event.expired else "delete"
    return pa.array([word]).take(pa.array(np.zeros(count, dtype=np.int64)))


def _taken(batch: pa.RecordBatch, name: str, rows: pa.Array) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(len(rows), FIELDS[name].type)
    return batch.column(name).take(rows)
