"""Reads that stream: pages of messages in id order, from the state as it is or from a snapshot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker.calls import requests
from fasti.broker.reading import MOVED, PIECE_BYTES, fetch
from fasti.core.commands import DropSnapshot, List, TakeSnapshot, Target
from fasti.core.replies import Messages
from fasti.core.timeline.reads import STATE_WORDS
from fasti.errors import InvalidArgument
from fasti.model import MINUTE_US, SEQUENCE_BITS, Outcome
from fasti.protocol.schemas import MESSAGES, METADATA, STATUS, VERSION

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]

_SNAPSHOT_US = 10 * MINUTE_US
# A page with payloads is small enough to be gathered and sent in one go.
_PAYLOAD_ROWS = 4096
_ROWS = 65_536
_FILTERS: Header = {
    "topic": str,
    "state": "",
    "due_from_us": None,
    "due_to_us": None,
    "owner": "",
    "reason": "",
    "limit": None,
    "payload": False,
    "partition": None,
    "snapshot": 0,
}
_STATES = pa.array(["", *(STATE_WORDS.get(code, "") for code in range(1, 8))])


@dataclass(slots=True)
class _Shared:
    """A snapshot whose endpoints are not all read yet."""

    partitions: set[int] = field(default_factory=set)


class Listings:
    """All listings of a broker. Any thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._shared: dict[int, _Shared] = {}
        self._lock = threading.Lock()

    def plan(self, descriptor: Header) -> tuple[pa.Schema, list[Header]]:
        """A ticket for each partition, all on one snapshot."""
        fields = requests.checked(descriptor, **_FILTERS)
        if fields["snapshot"]:
            raise InvalidArgument("a plan takes its own snapshot", field="snapshot")
        settings = self._service.require_topic(fields["topic"])
        partitions = range(settings.partitions)
        if requests.integer(fields, "partition") is not None:
            partitions = range(fields["partition"], fields["partition"] + 1)
        shard = self._service.shard
        taken = self._service.command(TakeSnapshot(shard.clock.now_us() + _SNAPSHOT_US))
        number = taken.value.number
        with self._lock:
            self._shared[number] = _Shared(set(partitions))
        base = {"version": VERSION, "call": "list", **descriptor}
        schema = MESSAGES if fields["payload"] else METADATA
        return schema, [{**base, "partition": n, "snapshot": number} for n in partitions]

    def drop(self, snapshot: int) -> None:
        """Lets a snapshot go."""
        with self._lock:
            self._shared.pop(snapshot, None)
        self._service.command(DropSnapshot(snapshot))

    def read(self, ticket: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The schema and the pages. Refusals are raised here, before the first page."""
        fields = requests.checked(ticket, **_FILTERS)
        settings = self._service.require_topic(fields["topic"])
        partition = requests.integer(fields, "partition")
        if partition is not None and not 0 <= partition < settings.partitions:
            raise InvalidArgument("there is no such partition", field="partition")
        limit = requests.integer(fields, "limit")
        if limit is not None and limit < 0:
            raise InvalidArgument("a limit can't be negative", field="limit", limit=0)
        pages = self._pages(fields, partition, limit)
        first = next(pages)
        schema = MESSAGES if fields["payload"] else METADATA
        return schema, _again(first, pages)

    def _pages(
        self, fields: Header, partition: int | None, left: int | None
    ) -> Iterator[pa.RecordBatch]:
        after_id = 0 if partition is None else partition << SEQUENCE_BITS
        while True:
            found = self._page(fields, after_id, left)
            if partition is not None and len(found.ids):
                found = _within(found, partition)
            yield from self._batches(found, fields)
            if left is not None:
                left -= len(found.ids)
            after_id = found.next_after_id
            beyond = partition is not None and after_id >> SEQUENCE_BITS > partition
            if not after_id or beyond or left == 0:
                break
        self._read_to_its_end(fields["snapshot"], partition)

    def _page(self, fields: Header, after_id: int, left: int | None) -> Messages:
        rows = _PAYLOAD_ROWS if fields["payload"] else _ROWS
        return self._service.command(
            List(
                fields["topic"],
                after_id,
                max(1, rows if left is None else min(rows, left)),
                requests.integer(fields, "due_from_us"),
                requests.integer(fields, "due_to_us"),
                fields["state"] or None,
                fields["owner"] or None,
                fields["snapshot"],
                reason=fields["reason"] or None,
            )
        )

    def _batches(self, found: Messages, fields: Header) -> Iterator[pa.RecordBatch]:
        """A page as one batch; with payloads, as many as it takes to keep each small enough."""
        if fields["limit"] == 0:
            found = _within(found, -1)
        if not fields["payload"]:
            yield metadata(found)
            return
        begin = 0
        while begin < len(found.ids) or not begin:
            part = _rows_from(found, begin, len(found.ids))
            part = _rows_from(part, 0, self._fitting(part))
            yield with_payloads(metadata(part), self._payloads(fields["topic"], part))
            begin += max(1, len(part.ids))

    def _fitting(self, found: Messages) -> int:
        """How many of these may be gathered at once."""
        shard = self._service.shard
        if not found.columns:
            return 0
        try:
            return shard.store.payloads.fitting(found.columns["location"], PIECE_BYTES)
        except MOVED:
            return max(1, PIECE_BYTES // shard.settings.limits.payload_bytes_max)

    def _payloads(self, topic: str, found: Messages) -> pa.RecordBatch:
        shard = self._service.shard
        locations = found.columns.get("location", np.zeros(0, dtype=np.int64))
        try:
            return shard.store.payloads.gather(locations)
        except MOVED:
            # Read again from where they are now; what has gone meanwhile has no payload.
            return fetch(shard, topic, Target(ids=found.ids))[1]

    def _read_to_its_end(self, snapshot: int, partition: int | None) -> None:
        with self._lock:
            shared = self._shared.get(snapshot)
            if shared is None:
                return
            shared.partitions.discard(-1 if partition is None else partition)
            if shared.partitions:
                return
        self.drop(snapshot)


def metadata(found: Messages) -> pa.RecordBatch:
    """Metadata of messages as the protocol has it."""
    if not found.columns:
        return pa.RecordBatch.from_pylist([], schema=METADATA)
    columns = found.columns
    return pa.RecordBatch.from_arrays(
        [
            pa.array(found.ids),
            pa.array((found.ids >> SEQUENCE_BITS).astype(np.int32)),
            _STATES.take(pa.array(columns["state"])),
            pa.array(columns["due_us"]),
            pa.array(columns["version"].astype(np.int64)),
            pa.array(columns["attempts"].astype(np.int32)),
            *(_named(found, name) for name in ("owner", "consumer", "reason")),
            pa.array(_priorities(found)),
        ],
        schema=METADATA,
    )


def _priorities(found: Messages) -> NDArray[np.int32]:
    """0 outside of priority topics."""
    given = found.columns.get("priority")
    return np.zeros(len(found.ids), np.int32) if given is None else given.astype(np.int32)


def with_payloads(batch: pa.RecordBatch, payloads: pa.RecordBatch) -> pa.RecordBatch:
    """Metadata and contents side by side."""
    more = [payloads.column(name) for name in MESSAGES.names[len(METADATA.names) :]]
    return pa.RecordBatch.from_arrays([*batch.columns, *more], schema=MESSAGES)


def with_status(batch: pa.RecordBatch, status: NDArray[np.uint8]) -> pa.RecordBatch:
    """Row by row what was found; where a message is not there, its columns are null."""
    words = pa.array([outcome.word for outcome in Outcome]).take(pa.array(status))
    here = status == Outcome.OK
    columns = [batch.column("id"), *(_masked(column, here) for column in batch.columns[1:])]
    schema = pa.schema([*batch.schema, STATUS])
    return pa.RecordBatch.from_arrays([*columns, words], schema=schema)


def _masked(column: pa.Array, here: NDArray[np.bool_]) -> pa.Array:
    if here.all():
        return column
    places = np.arange(len(column))
    return column.take(pa.array(places, mask=~here))


def _named(found: Messages, name: str) -> pa.Array:
    numbers = found.columns[name].astype(np.int64)
    return pa.array(found.names[name]).take(pa.array(numbers, mask=numbers == 0))


def _within(found: Messages, partition: int) -> Messages:
    """Only the messages of one partition."""
    keep = found.ids >> SEQUENCE_BITS == partition
    if keep.all():
        return found
    columns = {name: values[keep] for name, values in found.columns.items()}
    return Messages(found.status[keep], found.ids[keep], columns, found.names, found.next_after_id)


def _rows_from(found: Messages, begin: int, end: int) -> Messages:
    columns = {name: values[begin:end] for name, values in found.columns.items()}
    return Messages(found.status[begin:end], found.ids[begin:end], columns, found.names)


def _again(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
