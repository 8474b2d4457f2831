"""Blocks of a run: rows of messages sorted by (topic, partition, due, sequence).

A run is what one checkpoint wrote: blocks of at most 65,536 rows and about 4 MiB of payload. Each
block is two objects under one number. Its *rows* hold fixed-width metadata and are read when a
shard opens and when a slice of time comes near; its *payloads* are read when a message is
delivered. A *delta* block has rows only: what changed of messages whose payloads lie elsewhere.

The name of an object begins with the epoch of the opening that wrote it: two writers that take each other
for gone may give the same number, never the same name.

An object is an Arrow IPC stream with one batch, sealed (seals.py). In payloads a null `payload` says that
the row's bytes were lost before the block was written.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.core.fields import FIELDS

Int64s = NDArray[np.int64]
Columns = dict[str, NDArray[Any]]
Place = tuple[int, int, int]

BLOCK_ROWS_MAX = 65_536
BLOCK_BYTES_MAX = 4 << 20

ROW_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in {
            "topic": pa.int32(),
            "partition": pa.int32(),
            "sequence": pa.int64(),
            "due": pa.int64(),
            "location": pa.int64(),
            "hash_first": pa.uint64(),
            "hash_last": pa.uint64(),
            "version": pa.uint32(),
            "owner": pa.uint32(),
            "lease": pa.uint32(),  # the number of the last reason, unless the message is leased
            "attempts": pa.uint16(),
            "state": pa.uint8(),
        }.items()
    ]
)
# Columns that a block leaves out where all are 0: priorities outside of priority topics, and when
# messages expire, or died if they are dead.
RARE_FIELDS = (
    pa.field("priority", pa.uint16(), nullable=False),
    pa.field("moment", pa.int64(), nullable=False),
)
PAYLOAD_SCHEMA = pa.schema(list(FIELDS.values()))


@dataclass(frozen=True, slots=True)
class Block:
    """A block as the manifest lists it. `first` and `last` are (topic, partition, due)."""

    number: int
    # Of the opening of the journal that wrote it.
    epoch: int
    checkpoint: int
    rows: int
    size_bytes: int
    first: Place
    last: Place
    delta: bool = False

    @property
    def rows_name(self) -> str:
        """The object that holds its metadata."""
        return object_name(self.epoch, self.number, "delta" if self.delta else "rows")

    @property
    def payloads_name(self) -> str:
        """The object that holds its payloads."""
        return object_name(self.epoch, self.number, "payloads")

    @property
    def names(self) -> list[str]:
        return [self.rows_name] if self.delta else [self.rows_name, self.payloads_name]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Block:
        places = {name: tuple(values[name]) for name in ("first", "last")}
        return cls(**{**values, **places})


def object_name(epoch: int, number: int, kind: str) -> str:
    """What an object of a block is called. No writer of another epoch gives the same name."""
    return f"{epoch:08d}-{number:012d}.{kind}"


def number_in(name: str) -> int:
    """The number of the block that an object belongs to."""
    return int(name.partition(".")[0].partition("-")[2])


def epoch_in(name: str) -> int:
    """The epoch of the opening that wrote an object; 0 if the name is not a block's."""
    epoch, dash, _ = name.partition("-")
    return int(epoch) if dash and epoch.isdecimal() else 0


def rows_batch(columns: Columns) -> pa.RecordBatch:
    """Metadata columns as a batch of the rows' schema."""
    schema = ROW_SCHEMA
    for field in RARE_FIELDS:
        if field.name in columns and columns[field.name].any():
            schema = schema.append(field)
    arrays = [pa.array(columns[field.name], type=field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_columns(batch: pa.RecordBatch) -> Columns:
    """The columns of a rows object, as views."""
    return {
        name: batch.column(index).to_numpy(zero_copy_only=True)
        for index, name in enumerate(batch.schema.names)
    }


def rows_by_partition(
    columns: Columns, alive: NDArray[np.bool_]
) -> dict[tuple[int, int], NDArray[np.intp]]:
    """Which of a block's rows belong to which topic and partition, of those that are alive."""
    rows = np.flatnonzero(alive)
    if not len(rows):
        return {}
    topics, partitions = columns["topic"], columns["partition"]
    if topics[0] == topics[-1] and partitions[0] == partitions[-1]:
        return {(int(topics[0]), int(partitions[0])): rows}
    places = {}
    pairs = np.stack([topics[rows], partitions[rows]])
    for topic, partition in np.unique(pairs, axis=1).T.tolist():
        places[topic, partition] = rows[(pairs[0] == topic) & (pairs[1] == partition)]
    return places


def used_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the columns that no row uses: reading the others is faster for it."""
    used = [
        name
        for name in batch.schema.names
        if name == "payload" or batch.column(name).null_count < batch.num_rows
    ]
    return batch.select(used)


def place_of(columns: Columns, row: int) -> Place:
    """The sort key of a row, without its sequence."""
    return int(columns["topic"][row]), int(columns["partition"][row]), int(columns["due"][row])
