"""Entries of a snapshot: all of one moment, in splits, in no particular order.

Unlike a scan, which goes by the order of keys, this reads what lies in memory from end to end: for
whoever wants all entries, or most, as one consistent state. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fasti.broker.calls import requests
from fasti.broker.calls.listed import columns_of, words
from fasti.broker.calls.snapshot_pages import IdRange, SnapshotTopic, by_place, only
from fasti.broker.kv.requests import split
from fasti.core.rows.arena import STATE_MASK
from fasti.core.rows.snapshot import Columns
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, State
from fasti.protocol.schemas import KV_ROWS

if TYPE_CHECKING:
    from fasti.broker.calls.snapshots import Held
    from fasti.broker.service import Service

Header = dict[str, Any]

# What only snapshots take, and its default.
FIELDS: Header = {
    "snapshot": 0,
    "keys": [],
    "after_id": None,
    "until_id": None,
    "columns": [],
    "position": None,
    "shard": "",
    "deadline_us": None,
    "part": None,
}
_CONTENTS = {
    "key": "key",
    "clustering": "key",
    "created_us": "created_us",
    "headers": "headers",
    "content_type": "content_type",
    "value": "payload",
}
_RANGES = ("key", "from", "to", "limit")


class SnapshotEntries:
    """One ticket's entries. Checked when it is made; then read by one thread."""

    def __init__(self, service: Service, held: Held, fields: Header) -> None:
        self._topic = SnapshotTopic(service, held, fields["topic"])
        if self._topic.settings.kind != "kv":
            raise InvalidArgument(
                f"topic {fields['topic']!r} is not a key-value topic", field="topic"
            )
        for name in _RANGES:
            if fields[name] is not None:
                raise InvalidArgument(f"{name!r} is for scans, not for snapshots", field=name)
        self._at_us = held.snapshot.at_us
        self.schema = columns_of(KV_ROWS, fields["columns"]) if fields["columns"] else KV_ROWS
        self._range = IdRange(
            requests.integer(fields, "after_id") or 0, requests.integer(fields, "until_id")
        )
        self._prefix: str = fields["prefix"] or ""
        self._keys = words(fields, "keys")
        names = [name for name in self.schema.names if fields["value"] or name != "value"]
        self._contents = tuple(
            dict.fromkeys(_CONTENTS[name] for name in names if name in _CONTENTS)
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them. Raises `gone` when the snapshot was let go meanwhile."""
        for _, columns in self._topic.parts(self._range, ("due", "location", "version")):
            stored = columns["flags"] & STATE_MASK == State.SCHEDULED
            kept = only(columns, stored & (columns["due"] > self._at_us))
            if self._prefix or self._keys:
                kept = self._named(kept)
            for piece in self._topic.pieces(by_place(kept), bool(self._contents)):
                yield self._made(piece)

    def _named(self, columns: Columns) -> Columns:
        if not len(columns["flags"]):
            return columns
        keys = self._topic.gather(columns["location"], ("key",)).column("key")
        keep = pc.starts_with(keys, self._prefix)
        if self._keys:
            named = split(keys)[0]
            keep = pc.and_(keep, pc.is_in(named, value_set=pa.array(self._keys, pa.string())))
        return only(columns, keep.to_numpy(zero_copy_only=False))

    def _made(self, columns: Columns) -> pa.RecordBatch:
        found: dict[str, pa.Array] = {
            "version": pa.array(columns["version"].astype("int64")),
            "expires_us": pa.array(columns["due"], mask=columns["due"] == DUE_MAX_US),
        }
        if self._contents:
            contents = self._topic.gather(columns["location"], self._contents)
            for name, source in _CONTENTS.items():
                if source in self._contents:
                    found[name] = contents.column(source)
            if "key" in self._contents:
                found["key"], found["clustering"] = split(found["key"])
        count = len(columns["flags"])
        arrays = [
            found[field.name] if field.name in found else pa.nulls(count, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
