"""Scans of key-value topics: all entries, a prefix or a range, in the order of (key, clustering).

A scan reads pages, each as of its own moment: it sees every put that was acknowledged when it
began and was not overwritten or removed since. What must be of one moment is read from a snapshot
(snapshot_reads.py). Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.snapshot_pages import SnapshotTopic, split_ranges
from fasti.broker.calls.snapshots import KEEP_US
from fasti.broker.kv.order import KeyOrder, page
from fasti.broker.kv.reading import entries_batch, pieces
from fasti.broker.kv.requests import SEPARATOR, split
from fasti.broker.kv.snapshot_reads import FIELDS as SNAPSHOT_FIELDS
from fasti.broker.kv.snapshot_reads import SnapshotEntries
from fasti.core.kv.commands import KvDescribe, KvFound, KvRows
from fasti.errors import InvalidArgument
from fasti.model import Outcome
from fasti.protocol.schemas import KV_ROWS, VERSION

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]
Int64s = NDArray[np.int64]

# Topics whose order is kept; of others it is built again when they are scanned.
ORDERS_MAX = 64
_PAGE_ROWS = 5_000
_ALIVE_ROWS = 65_536
_FIELDS: Header = {
    "topic": str,
    "prefix": None,
    "key": None,
    "from": None,
    "to": None,
    "limit": None,
    "value": True,
}


class KvReads:
    """All scans of a broker."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._orders: dict[str, KeyOrder] = {}

    def plan(self, caller: Caller, descriptor: Header) -> tuple[pa.Schema, list[Header]]:
        """One ticket: the order of keys spans the partitions. With `splits`, several that read a
        snapshot.
        """
        if "splits" in descriptor:
            return self._plan_snapshot(descriptor, caller)
        fields = requests.checked(descriptor, **_FIELDS)
        _bounds(fields)
        self._service.command(KvDescribe(fields["topic"]))
        return KV_ROWS, [{"version": VERSION, "call": "kv", **descriptor}]

    def _plan_snapshot(self, descriptor: Header, caller: Caller) -> tuple[pa.Schema, list[Header]]:
        given = dict(descriptor)
        wanted = requests.checked(
            {name: given.pop(name) for name in ("splits", "keep_us") if name in given},
            splits=int,
            keep_us=KEEP_US,
        )
        fields = requests.checked(given, **_FIELDS, **SNAPSHOT_FIELDS)
        _bounds(fields)
        self._service.command(KvDescribe(fields["topic"]))
        snapshots = self._service.snapshots
        position = requests.integer(fields, "position")
        shard = self._service.placement.shard_of(fields["topic"])
        place = (fields["snapshot"], position, wanted["keep_us"])
        with snapshots.planning(caller, shard, *place) as held:
            schema = SnapshotEntries(self._service, held, fields).schema
            topic = SnapshotTopic(self._service, held, fields["topic"])
            ranges = split_ranges(topic, wanted["splits"], range(topic.settings.partitions))
            base = {"version": VERSION, "call": "kv", **given, **held.told()}
            return schema, [{**base, **ids} for ids in ranges]

    def read(self, caller: Caller, ticket: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The schema and the pages. Refusals are raised here, before the first page."""
        fields = requests.checked(ticket, **_FIELDS, **SNAPSHOT_FIELDS)
        if fields["snapshot"]:
            return self._read_snapshot(fields)
        for name, default in SNAPSHOT_FIELDS.items():
            if fields[name] != default:
                raise InvalidArgument(f"{name!r} needs a snapshot", field=name)
        low, high = _bounds(fields)
        limit = requests.integer(fields, "limit")
        if limit is not None and limit < 0:
            raise InvalidArgument("a limit can't be negative", field="limit", limit=0)
        topic: str = fields["topic"]
        order = self._order(topic)
        runs = order.runs(lambda ids: self._alive(topic, ids))
        return KV_ROWS, self._pages(topic, runs, (low, high), limit, fields["value"])

    def _read_snapshot(self, fields: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        _bounds(fields)
        snapshots = self._service.snapshots
        held = snapshots.find(fields["snapshot"], requests.integer(fields, "position"))
        entries = SnapshotEntries(self._service, held, fields)
        part = requests.integer(fields, "part")
        return entries.schema, snapshots.reading(held, entries.batches(), None, part)

    def forget(self, topic: str) -> None:
        """The topic was deleted."""
        with self._lock:
            order = self._orders.pop(topic, None)
        if order is not None:
            order.close()

    def _order(self, topic: str) -> KeyOrder:
        number = self._service.command(KvDescribe(topic)).value["topic"]
        with self._lock:
            order = self._orders.pop(topic, None)
            if order is not None and order.number != number:
                order.close()
                order = None
            if order is None:
                order = KeyOrder(self._service, topic, number)
            # The last one is the one that was used last.
            self._orders[topic] = order
            if len(self._orders) > ORDERS_MAX:
                self._orders.pop(next(iter(self._orders))).close()
            return order

    def _alive(self, topic: str, ids: Int64s) -> NDArray[np.bool_]:
        parts = []
        for begin in range(0, len(ids), _ALIVE_ROWS):
            some = ids[begin : begin + _ALIVE_ROWS]
            found: KvFound = self._service.command(KvRows(topic, some))
            parts.append(found.status == Outcome.OK)
        return np.concatenate(parts)

    def _pages(
        self,
        topic: str,
        runs: Any,
        bounds: tuple[bytes, bytes | None],
        left: int | None,
        values: bool,
    ) -> Iterator[pa.RecordBatch]:
        low, high = bounds
        after, told = False, False
        while left is None or left > 0:
            count = _PAGE_ROWS if left is None else min(_PAGE_ROWS, left)
            keys, ids = page(runs, low, after, high, count)
            if not len(ids):
                break
            low, after = keys[len(keys) - 1].as_py(), True
            for found, contents, rows in pieces(
                self._service.placement.shard_of(topic), topic, ids, values
            ):
                named, clustering = split(keys.take(pa.array(rows)).cast(pa.string()))
                batch = entries_batch(found, contents, named, clustering)
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                told = True
                yield batch
        if not told:
            yield pa.RecordBatch.from_pylist([], schema=KV_ROWS)


def _bounds(fields: Header) -> tuple[bytes, bytes | None]:
    """The first key that is wanted, and the first behind it that is not."""
    given = [name for name in ("prefix", "key") if fields[name] is not None]
    ranged = fields["from"] is not None or fields["to"] is not None
    if len(given) + ranged > 1:
        raise InvalidArgument("one of prefix, key, and from or to", field="prefix")
    for name in given:
        if not isinstance(fields[name], str):
            raise InvalidArgument(f"{name!r} must be a JSON string", field=name)
        _check_text(fields[name], name)
    if fields["key"] is not None:
        key = fields["key"].encode()
        return key, key + b"\x01"
    if fields["prefix"]:
        prefix = fields["prefix"].encode()
        # No byte of UTF-8 is 255.
        return prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    low = _place(fields["from"], "from") or b""
    return low, _place(fields["to"], "to")


def _place(given: Any, field: str) -> bytes | None:
    """A key, or a key and a clustering key, as it is stored."""
    if given is None:
        return None
    parts = [given] if isinstance(given, str) else given
    texts = isinstance(parts, list) and 1 <= len(parts) <= 2 and isinstance(parts[0], str)
    if not texts or not (parts[-1] is None or isinstance(parts[-1], str)):
        raise InvalidArgument(f"{field!r} must be a key, or [key, clustering key]", field=field)
    for part in parts:
        _check_text(part or "", field)
    known = [part for part in parts if part is not None]
    return SEPARATOR.join(known).encode()


def _check_text(text: str, field: str) -> None:
    if SEPARATOR in text:
        raise InvalidArgument(f"{field!r} can't contain NUL", field=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{field!r} can't be encoded as UTF-8", field=field) from error
