"""A listing of a snapshot: the columns that are wanted, of the messages that fit the filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fasti.broker.calls import requests
from fasti.broker.calls.listed import columns_of, words
from fasti.broker.calls.snapshot_pages import (
    IdRange,
    SnapshotTopic,
    by_place,
    checked_partitions,
    is_there,
    only,
)
from fasti.core.rows.arena import EXPIRES, MOMENT, PRIORITY, STATE_MASK
from fasti.core.rows.snapshot import Columns
from fasti.core.timeline.reads import READY, STATE_WORDS
from fasti.core.traits import KINDS
from fasti.errors import InvalidArgument
from fasti.model import SEQUENCE_BITS, State
from fasti.protocol.schemas import CONTENT_NAMES, MESSAGES, METADATA, SOME_MOMENTS

if TYPE_CHECKING:
    from fasti.broker.calls.snapshots import Held
    from fasti.broker.service import Service

Header = dict[str, Any]
Int64s = NDArray[np.int64]

STATES = pa.array(["", *(STATE_WORDS.get(code, "") for code in range(1, 8))])
_CODES = {word: int(code) for code, word in STATE_WORDS.items()}
# What of the engine's columns each column of the protocol is made of.
_MADE_OF = {
    "state": ("due",),
    "due_us": ("due",),
    "version": ("version",),
    "attempts": ("attempts",),
    "owner": ("owner",),
    "consumer": ("lease",),
    "reason": ("lease",),
    "leased_us": ("lease",),
    "lease_until_us": ("lease",),
    "died_us": (MOMENT,),
    "expires_us": (MOMENT,),
}
# Filters that only snapshots have, and their default.
FIELDS: Header = {
    "states": [],
    "owners": [],
    "keys": [],
    "after_id": None,
    "until_id": None,
    "columns": [],
    "position": None,
    "shard": "",
    "deadline_us": None,
    "part": None,
}


def schema_of(fields: Header) -> pa.Schema:
    """The columns of a listing. Raises `invalid_argument`."""
    whole = MESSAGES if fields["payload"] else METADATA
    if not fields["columns"]:
        return whole
    return columns_of(MESSAGES, fields["columns"])


class SnapshotListing:
    """One ticket's messages. Checked when it is made; then read by one thread."""

    def __init__(self, service: Service, held: Held, fields: Header) -> None:
        self._topic = SnapshotTopic(service, held, fields["topic"])
        self._held = held
        self.schema = schema_of(fields)
        self._fields = fields
        self._range = IdRange(
            requests.integer(fields, "after_id") or 0, requests.integer(fields, "until_id")
        )
        # Readers of a range of a snapshot that others read too don't mind the order in it.
        is_range = fields["after_id"] is not None or fields["until_id"] is not None
        self._any_order = bool(fields["snapshot"]) and is_range
        self._states = self._wanted_states()
        self._owners = [*words(fields, "owners"), *([fields["owner"]] if fields["owner"] else [])]
        self._keys = words(fields, "keys")
        self._due_us = (
            requests.integer(fields, "due_from_us"),
            requests.integer(fields, "due_to_us"),
        )
        self._died_us = (
            requests.integer(fields, "died_from_us"),
            requests.integer(fields, "died_to_us"),
        )
        self._contents = tuple(name for name in self.schema.names if name in CONTENT_NAMES)
        self._is_ranked = KINDS[self._topic.settings.kind].has_priorities
        checked_partitions(fields, self._topic.settings, held.shard.place)

    def _wanted_states(self) -> list[int] | None:
        given = words(self._fields, "states")
        if self._fields["state"]:
            given.append(self._fields["state"])
        for word in given:
            if word not in _CODES:
                known = ", ".join(_CODES)
                raise InvalidArgument(f"{word!r} is not one of {known}", field="state")
        return [_CODES[word] for word in given] if given else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them. Raises `gone` when the snapshot was let go meanwhile."""
        partition = self._fields["partition"]
        wanted = self._range
        if partition is not None:
            base, end = partition << SEQUENCE_BITS, (partition + 1) << SEQUENCE_BITS
            after, until = max(wanted.after_id, base), wanted.until_id
            wanted = IdRange(after, end if until is None else min(until, end))
        left = self._fields["limit"]
        for number, columns in self._topic.parts(wanted, self._engine_columns()):
            columns = self._filtered(columns)
            if left is not None:
                columns = {name: values[:left] for name, values in columns.items()}
                left -= len(columns["flags"])
            yield from self._made(number, columns)
            if left == 0:
                return

    def _engine_columns(self) -> list[str]:
        """Those that filters and wanted columns need."""
        names = {source for name in self.schema.names for source in _MADE_OF.get(name, ())}
        if self._states is not None or self._due_us != (None, None):
            names.add("due")
        if self._owners:
            names.add("owner")
        if self._fields["reason"] or self._fields["consumer"]:
            names.add("lease")
        if self._died_us != (None, None):
            names.add(MOMENT)
        if self._contents or self._keys or self._fields["key_prefix"]:
            names.add("location")
        if self._is_ranked and PRIORITY in self.schema.names:
            names.add(PRIORITY)
        return sorted(names)

    def _filtered(self, columns: Columns) -> Columns:
        keep = is_there(columns)
        since_us, before_us = self._due_us
        if since_us is not None:
            keep &= columns["due"] >= since_us
        if before_us is not None:
            keep &= columns["due"] < before_us
        if self._states is not None:
            keep &= np.isin(self._visible(columns), self._states)
        if self._owners:
            keep &= np.isin(columns["owner"], self._numbers("owner", self._owners))
        if self._fields["reason"]:
            text = self._fields["reason"]
            names = self._held.snapshot.names["reason"]
            meant = [number for number, name in enumerate(names) if text in name]
            dead = columns["flags"] & STATE_MASK == State.DEAD
            keep &= dead & np.isin(columns["lease"], meant)
        keep &= self._held_or_died(columns)
        columns = only(columns, keep)
        if self._keys and len(columns["flags"]):
            columns = self._topic.with_keys(columns, pa.array(self._keys, pa.string()))
        if self._fields["key_prefix"] and len(columns["flags"]):
            columns = self._topic.with_prefix(columns, self._fields["key_prefix"])
        return columns

    def _held_or_died(self, columns: Columns) -> NDArray[np.bool_]:
        """Those that the named consumer has, or that died in the named time."""
        states = columns["flags"] & STATE_MASK
        keep = np.ones(len(states), dtype=np.bool_)
        since_us, before_us = self._died_us
        if since_us is not None:
            keep &= (states == State.DEAD) & (columns[MOMENT] >= since_us)
        if before_us is not None:
            keep &= (states == State.DEAD) & (columns[MOMENT] < before_us)
        if self._fields["consumer"]:
            holders = _of_leases(states, columns, self._held.snapshot.leases.consumer)
            named = self._numbers("consumer", [self._fields["consumer"]])
            keep &= (states == State.LEASED) & np.isin(holders, named)
        return keep

    def _numbers(self, kind: str, given: list[str]) -> list[int]:
        known = self._held.snapshot.names[kind]
        return [number for number, name in enumerate(known) if number and name in given]

    def _visible(self, columns: Columns) -> NDArray[np.uint8]:
        states: NDArray[np.uint8] = columns["flags"] & STATE_MASK
        scheduled = states == State.SCHEDULED
        states[scheduled & (columns["due"] <= self._held.snapshot.at_us)] = READY
        return states

    def _made(self, partition: int, columns: Columns) -> Iterator[pa.RecordBatch]:
        if self._any_order and self._contents:
            columns = by_place(columns)
        for piece in self._topic.pieces(columns, bool(self._contents)):
            contents = None
            if self._contents:
                contents = self._topic.gather(piece["location"], self._contents)
            arrays = [
                contents.column(name)
                if contents is not None and name in self._contents
                else self._column(name, partition, piece)
                for name in self.schema.names
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, partition: int, columns: Columns) -> pa.Array:
        count = len(columns["flags"])
        if name == "id":
            return pa.array(columns["sequence"] | partition << SEQUENCE_BITS)
        if name == "partition":
            return pa.array(np.full(count, partition, dtype=np.int32))
        if name == "state":
            return STATES.take(pa.array(self._visible(columns)))
        if name == "due_us":
            return pa.array(columns["due"])
        if name == "priority":
            given = columns.get(PRIORITY)
            return pa.array(np.zeros(count, np.int32) if given is None else given.astype(np.int32))
        if name in ("version", "attempts"):
            kind = np.int64 if name == "version" else np.int32
            return pa.array(columns[name].astype(kind))
        if name in SOME_MOMENTS:
            moments = self._moments(name, columns)
            return pa.array(moments, mask=moments == 0)
        return self._name(name, columns)

    def _moments(self, name: str, columns: Columns) -> Int64s:
        """When it was leased, until when, when it died or expires; 0 where there is none."""
        states = columns["flags"] & STATE_MASK
        if name == "died_us":
            return np.where(states == State.DEAD, columns[MOMENT], 0)
        if name == "expires_us":
            return np.where(columns["flags"] & EXPIRES != 0, columns[MOMENT], 0)
        leases = self._held.snapshot.leases
        moments = leases.since_us if name == "leased_us" else leases.until_us
        return _of_leases(states, columns, moments)

    def _name(self, name: str, columns: Columns) -> pa.Array:
        """Who made it, who has it, or why it is dead or came back."""
        snapshot = self._held.snapshot
        states = columns["flags"] & STATE_MASK
        if name == "owner":
            numbers = columns["owner"]
        elif name == "reason":
            own = np.where(states == State.LEASED, 0, columns["lease"])
            numbers = own + _of_leases(states, columns, snapshot.leases.reason)
        else:
            numbers = _of_leases(states, columns, snapshot.leases.consumer)
        if not numbers.any():
            return pa.nulls(len(numbers), pa.string())
        numbers = numbers.astype(np.int64)
        return pa.array(snapshot.names[name]).take(pa.array(numbers, mask=numbers == 0))


def _of_leases(states: NDArray[np.uint8], columns: Columns, values: NDArray[Any]) -> Int64s:
    """What the leases of the leased ones say; 0 for the others."""
    found = np.zeros(len(states), dtype=np.int64)
    leased = states == State.LEASED
    found[leased] = values.take(columns["lease"][leased].astype(np.int64))
    return found
