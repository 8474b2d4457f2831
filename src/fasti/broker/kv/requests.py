"""From the protocol's words about entries to the engine's commands, and back.

An entry's name is its key, and its clustering key if it has one; in the engine and in storage they
are one key with a NUL between them. Everything is checked here, in the caller's thread.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.broker.calls import requests
from fasti.core.columns.hashing import UInt64s
from fasti.core.columns.xxh64 import public_hashes
from fasti.core.commands import When
from fasti.core.fields import HEADERS
from fasti.core.keys import Keys, Rows
from fasti.core.kv.commands import ANY_VERSION, KvDelete, KvPut
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, Limits

Int64s = NDArray[np.int64]
Seed = tuple[int, int]

SEPARATOR = "\0"
NAME_TYPES: dict[str, pa.DataType] = {"key": pa.string(), "clustering": pa.string()}
_PUT_TYPES: dict[str, pa.DataType] = {
    **NAME_TYPES,
    "value": pa.binary(),
    "version": pa.int64(),
    "ttl_us": pa.int64(),
    "expires_us": pa.int64(),
    "headers": HEADERS,
    "content_type": pa.string(),
}
_DELETE_TYPES: dict[str, pa.DataType] = {**NAME_TYPES, "version": pa.int64()}


class KvKeys(Keys):
    """Keys of entries. The part before the clustering key decides the partition."""

    def __init__(self, values: pa.Array, named: pa.Array, seed: Seed) -> None:
        super().__init__(values, seed)
        self._named = named

    @cached_property
    def routes(self) -> UInt64s:
        """All entries of a key share a partition."""
        return public_hashes(self._named)


def keys(batch: pa.RecordBatch, seed: Seed) -> KvKeys:
    """The keys of a part that was checked for its columns."""
    named = _name(batch, "key")
    if named.null_count:
        raise InvalidArgument("a row has no key", field="key")
    clustering = _name(batch, "clustering") if "clustering" in batch.schema.names else None
    if clustering is None or clustering.null_count == len(clustering):
        return KvKeys(named, named, seed)
    joined = pc.binary_join_element_wise(named, clustering, SEPARATOR, null_handling="skip")
    return KvKeys(joined, named, seed)


def _name(batch: pa.RecordBatch, field: str) -> pa.Array:
    column = batch.column(field)
    if pc.any(pc.match_substring(column, SEPARATOR)).as_py():
        raise InvalidArgument(f"a {field} can't contain NUL", field=field)
    if pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
        raise InvalidArgument(f"a {field} can't be empty", field=field)
    return column


def names(batch: pa.RecordBatch, seed: Seed, limits: Limits) -> KvKeys:
    """The entries that a part names, and nothing else."""
    requests.check_columns(batch.schema, NAME_TYPES, "key")
    requests.check_contents(batch)
    requests.check_rows(batch, limits)
    return keys(batch, seed)


def put(batch: pa.RecordBatch, topic: str, seed: Seed, limits: Limits) -> KvPut:
    """The command of a put."""
    requests.check_columns(batch.schema, _PUT_TYPES, "key")
    requests.check_contents(batch)
    if "value" not in batch.schema.names:
        raise InvalidArgument("the column 'value' is missing", field="value")
    values = batch.column("value")
    if values.null_count:
        raise InvalidArgument("a value may be empty but not missing", field="value")
    named = keys(batch, seed)
    used = {}
    for name in ("headers", "content_type"):
        if name in batch.schema.names and batch.column(name).null_count < batch.num_rows:
            used[name] = batch.column(name)
    rows = Rows.of(values, limits, key=named.values, **used)
    return KvPut(topic, rows, named, _versions(batch), _expires(batch))


def delete(batch: pa.RecordBatch, topic: str, seed: Seed, limits: Limits) -> KvDelete:
    """The command of a delete. Its rows bring the keys into the journal, for those who watch."""
    requests.check_columns(batch.schema, _DELETE_TYPES, "key")
    requests.check_contents(batch)
    requests.check_rows(batch, limits)
    named = keys(batch, seed)
    rows = Rows.of(empty_values(len(named)), limits, key=named.values)
    return KvDelete(topic, rows, named, _versions(batch))


def empty_values(count: int) -> pa.Array:
    """As many values of no bytes."""
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(b"")])


def _versions(batch: pa.RecordBatch) -> Int64s | int:
    """The version that each row expects; null: any."""
    if "version" not in batch.schema.names:
        return ANY_VERSION
    column = batch.column("version")
    if column.null_count == len(column):
        return ANY_VERSION
    if (pc.min(column).as_py() or 0) < 0:
        raise InvalidArgument("a version is 0 (no entry) or more", field="version")
    return requests.filled(column, ANY_VERSION)


def _expires(batch: pa.RecordBatch) -> When | None:
    """When each row expires: after a time, or at one; null: never."""
    given = [name for name in ("ttl_us", "expires_us") if name in batch.schema.names]
    given = [name for name in given if batch.column(name).null_count < batch.num_rows]
    if len(given) > 1:
        raise InvalidArgument("a batch has either ttl_us or expires_us", field="ttl_us")
    if not given:
        return None
    moments = requests.filled(batch.column(given[0]), DUE_MAX_US)
    return When(delay_us=moments) if given[0] == "ttl_us" else When(due_us=moments)


def split(joined: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Keys and clustering keys (null: none) of stored keys."""
    if (
        joined.null_count == len(joined)
        or not pc.any(pc.match_substring(joined, SEPARATOR)).as_py()
    ):
        return joined, pa.nulls(len(joined), pa.string())
    parts = pc.split_pattern(joined, SEPARATOR, max_splits=1)
    flat = parts.flatten()
    offsets = parts.offsets.to_numpy()
    first, sizes = offsets[:-1] - offsets[0], np.diff(offsets)
    named = flat.take(pa.array(first))
    second = pa.array(first + 1, mask=sizes < 2)
    return named, flat.take(second)
