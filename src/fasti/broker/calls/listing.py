"""Reads that stream: messages of a snapshot, one that a ticket names or one for this reader alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker.caller import Caller
from fasti.broker.calls import requests
from fasti.broker.calls.snapshot_listing import FIELDS as SNAPSHOT_FIELDS
from fasti.broker.calls.snapshot_listing import STATES, SnapshotListing, schema_of
from fasti.broker.calls.snapshot_pages import (
    SnapshotTopic,
    begins_with,
    checked_partitions,
    split_ranges,
)
from fasti.broker.calls.snapshots import KEEP_US
from fasti.broker.reading import MOVED, fetch
from fasti.core.commands import Target
from fasti.core.replies import Messages
from fasti.errors import InvalidArgument
from fasti.model import SEQUENCE_BITS, Outcome
from fasti.protocol.schemas import (
    MESSAGES,
    METADATA,
    SOME_MOMENTS,
    STATUS,
    VERSION,
)

if TYPE_CHECKING:
    from fasti.broker.service import Service

Header = dict[str, Any]

_FILTERS: Header = {
    "topic": str,
    "state": "",
    "due_from_us": None,
    "due_to_us": None,
    "owner": "",
    "key_prefix": "",
    "reason": "",
    "died_from_us": None,
    "died_to_us": None,
    "consumer": "",
    "limit": None,
    "payload": False,
    "partition": None,
    "snapshot": 0,
}
# Of the fields that a snapshot's listing has, those that any listing has.
_EVERYWHERE = ("after_id", "columns")


class Listings:
    """All listings of a broker. Any thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def plan(self, caller: Caller, descriptor: Header) -> tuple[pa.Schema, list[Header]]:
        """Tickets that together have everything, all on one snapshot.

        One for each partition; with `splits`, about so many of about the same size.
        """
        given = dict(descriptor)
        wanted = requests.checked(
            {name: given.pop(name) for name in ("splits", "keep_us") if name in given},
            splits=0,
            keep_us=KEEP_US,
        )
        fields = requests.checked(given, **_FILTERS, **SNAPSHOT_FIELDS)
        settings = self._service.require_topic(fields["topic"])
        shard = self._service.placement.shard_of(fields["topic"])
        partitions = checked_partitions(fields, settings, shard.place)
        check_prefix(self._service, fields["key_prefix"])
        schema = schema_of(fields)
        place = (fields["snapshot"], fields["position"], wanted["keep_us"])
        with self._service.snapshots.planning(caller, shard, *place) as held:
            base = {"version": VERSION, "call": "list", **given, **held.told()}
            if "splits" not in descriptor:
                if not fields["snapshot"]:
                    held.unread = set(partitions)
                return schema, [{**base, "partition": number} for number in partitions]
            topic = SnapshotTopic(self._service, held, fields["topic"])
            ranges = split_ranges(topic, wanted["splits"], partitions)
            return schema, [{**base, **ids} for ids in ranges]

    def read(self, caller: Caller, ticket: Header) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The schema and the pages. Refusals are raised here, before the first page."""
        fields = requests.checked(ticket, **_FILTERS, **SNAPSHOT_FIELDS)
        for name in ("limit", "after_id"):
            if (requests.integer(fields, name) or 0) < 0:
                raise InvalidArgument(f"{name} can't be negative", field=name, limit=0)
        check_prefix(self._service, fields["key_prefix"])
        if fields["snapshot"]:
            snapshots = self._service.snapshots
            held = snapshots.find(fields["snapshot"], requests.integer(fields, "position"))
            listing = SnapshotListing(self._service, held, fields)
            part = requests.integer(fields, "part")
            pages = snapshots.reading(held, listing.batches(), fields["partition"], part)
            return listing.schema, pages
        for name, default in SNAPSHOT_FIELDS.items():
            if fields[name] != default and name not in _EVERYWHERE:
                raise InvalidArgument(f"{name!r} needs a snapshot", field=name)
        pages = self._pages(caller, fields)
        # The snapshot is taken, and everything that can be refused is.
        next(pages)
        return schema_of(fields), pages

    def _pages(self, caller: Caller, fields: Header) -> Iterator[Any]:
        """Nothing at first, then the batches: at least one, which tells the schema."""
        with self._service.snapshots.for_one_listing(caller, fields["topic"]) as held:
            listing = SnapshotListing(self._service, held, fields)
            yield None
            is_empty = True
            for batch in listing.batches():
                is_empty = False
                yield batch
            if is_empty:
                yield pa.RecordBatch.from_pylist([], schema=listing.schema)


def gather(
    service: Service, topic: str, messages: Messages, names: tuple[str, ...]
) -> pa.RecordBatch:
    """Some contents of messages. Of what has gone meanwhile, or can't be read, they are null."""
    shard = service.placement.shard_of(topic)
    locations = messages.columns.get("location", np.zeros(0, dtype=np.int64))
    try:
        return shard.store.payloads.gather(locations, names=names, lost=True)
    except MOVED:
        # Read again from where they are now.
        again = fetch(
            shard,
            topic,
            Target(ids=messages.ids),
            lambda shard, places: shard.store.payloads.gather(places, names=names, lost=True),
        )
        return again[1]


def check_prefix(service: Service, prefix: str) -> None:
    """Refuses what no key can begin with."""
    limit = service.limits.key_bytes_max
    if len(prefix.encode()) > limit:
        raise InvalidArgument(f"a key has at most {limit} bytes", field="key_prefix", limit=limit)


def with_prefix(service: Service, topic: str, messages: Messages, prefix: str) -> Messages:
    """Those whose key begins so. Keys lie beside the payloads and are read for it."""
    if not len(messages.ids):
        return messages
    keys = gather(service, topic, messages, ("key",)).column("key")
    return only_rows(messages, begins_with(keys, prefix))


def metadata(messages: Messages) -> pa.RecordBatch:
    """Metadata of messages as the protocol has it."""
    if not messages.columns:
        return pa.RecordBatch.from_pylist([], schema=METADATA)
    columns = messages.columns
    return pa.RecordBatch.from_arrays(
        [
            pa.array(messages.ids),
            pa.array((messages.ids >> SEQUENCE_BITS).astype(np.int32)),
            STATES.take(pa.array(columns["state"])),
            pa.array(columns["due_us"]),
            pa.array(columns["version"].astype(np.int64)),
            pa.array(columns["attempts"].astype(np.int32)),
            *(_named(messages, name) for name in ("owner", "consumer", "reason")),
            pa.array(_priorities(messages)),
            *(_moment(messages, name) for name in SOME_MOMENTS),
        ],
        schema=METADATA,
    )


def _moment(messages: Messages, name: str) -> pa.Array:
    """Null where there is none."""
    given = messages.columns.get(name)
    if given is None:
        return pa.nulls(len(messages.ids), pa.int64())
    return pa.array(given, mask=given == 0)


def _priorities(messages: Messages) -> NDArray[np.int32]:
    """0 outside of priority topics."""
    given = messages.columns.get("priority")
    return np.zeros(len(messages.ids), np.int32) if given is None else given.astype(np.int32)


def with_payloads(batch: pa.RecordBatch, payloads: pa.RecordBatch) -> pa.RecordBatch:
    """Metadata and contents side by side."""
    more = [payloads.column(name) for name in MESSAGES.names[len(METADATA.names) :]]
    return pa.RecordBatch.from_arrays([*batch.columns, *more], schema=MESSAGES)


def with_status(batch: pa.RecordBatch, status: NDArray[np.uint8]) -> pa.RecordBatch:
    """Row by row the messages; where one is not there, its columns are null."""
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


def _named(messages: Messages, name: str) -> pa.Array:
    numbers = messages.columns[name].astype(np.int64)
    return pa.array(messages.names[name]).take(pa.array(numbers, mask=numbers == 0))


def only_rows(messages: Messages, keep: NDArray[np.bool_]) -> Messages:
    """Some of the messages of a page."""
    if keep.all():
        return messages
    columns = {name: values[keep] for name, values in messages.columns.items()}
    return Messages(
        messages.status[keep], messages.ids[keep], columns, messages.names, messages.next_after_id
    )
