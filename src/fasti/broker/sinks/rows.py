"""The rows of a sink's stage: checked when they come, wrapped up, and unwrapped into commands.

Rows that are produced into a timeline or priority topic lie there, staged. Those of other operations
are wrapped into parcels, some thousand rows each, as the Arrow table that came; what is in a parcel
was checked when it came, so unwrapping it can't fail but for what has changed since.

Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fasti.broker.calls import changing, requests
from fasti.broker.kv import requests as kv_requests
from fasti.core import commands as co
from fasti.core.fields import HEADERS
from fasti.core.keys import Rows
from fasti.core.ownership import own_partitions
from fasti.core.sinks.commands import PARCELS
from fasti.core.traits import KINDS, kinds_with
from fasti.errors import InvalidArgument
from fasti.model import DUE_MAX_US, SECOND_US
from fasti.protocol.schemas import PRODUCE_TYPES

if TYPE_CHECKING:
    from fasti.broker.service import Service

PARCEL_ROWS, _PARCEL_BYTES = 5_000, 1 << 20
# A delay that is carried out later must still end within the time that there is.
_FAR_US = DUE_MAX_US // 2
# An entry that is over before it is carried out is there for so long.
_OVER_US = SECOND_US

OPERATIONS = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.sink_operations))
_TARGET = {"id": pa.int64(), "key": pa.string(), "version": pa.int64()}
_LOG = {name: PRODUCE_TYPES[name] for name in ("payload", "key", "headers", "content_type")}
_LOG |= {"subject": PRODUCE_TYPES["subject"], "partition": pa.int32()}
_PUT = {
    "key": pa.string(),
    "payload": pa.binary(),
    "clustering": pa.string(),
    "version": pa.int64(),
    "ttl_us": pa.int64(),
    "expires_us": pa.int64(),
    "headers": HEADERS,
    "content_type": pa.string(),
}


@dataclass(frozen=True, slots=True)
class Meant:
    """What is to be done with rows, where, and in whose name."""

    operation: str
    topic: str
    kind: str
    owner: str
    # How many the topic has; 0: it is not asked.
    partitions: int = 0

    @property
    def is_native(self) -> bool:
        """Whether the rows are staged in their topic itself."""
        return self.operation == "produce" and KINDS[self.kind].is_queue

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The columns that there may be."""
        if self.operation in ("produce", "append"):
            return PRODUCE_TYPES if self.is_native else _LOG
        if self.operation == "put":
            return _PUT
        return _TARGET | changing.TYPES[self.operation]

    @property
    def needed(self) -> str:
        """The column that there must be; of those that name messages one is looked for later."""
        return {"produce": "payload", "append": "payload", "put": "key"}.get(self.operation, "")


def check_operation(operation: str, topic: str, kind: str) -> None:
    """Raises unless such an operation is possible in such a topic."""
    if operation not in OPERATIONS:
        words = ", ".join(OPERATIONS)
        raise InvalidArgument(f"{operation!r} is not one of {words}", field="operation")
    kinds = kinds_with(lambda traits: operation in traits.sink_operations)
    if kind not in kinds:
        raise InvalidArgument(
            f"{topic!r} is a {kind} topic, where a sink can't {operation}: that is for "
            f"{' and '.join(kinds)} topics",
            field="operation",
        )


# In


def staged(service: Service, meant: Meant, batch: pa.RecordBatch) -> co.Produce:
    """The command that stages rows, without its stage. Raises what is wrong with them."""
    requests.check_columns(batch.schema, meant.types, meant.needed)
    shard = service.placement.shard_of(meant.topic)
    seed, limits = shard.store.seed, service.limits
    if meant.is_native:
        named = {"topic": meant.topic, "owner": meant.owner}
        return requests.produce(batch, seed, limits, service.clock.now_us(), **named)
    if not batch.num_rows:
        raise InvalidArgument("a batch has at least one row", field="batch")
    requests.check_contents(batch)
    requests.check_rows(batch, limits)
    if batch.nbytes > limits.batch_bytes_max:
        limit = limits.batch_bytes_max
        raise InvalidArgument(f"more than {limit} bytes", field="batch_bytes_max", limit=limit)
    _check(service, meant, batch)
    return _wrapped(meant, batch)


def _check(service: Service, meant: Meant, batch: pa.RecordBatch) -> None:
    """Makes what will be carried out, so that the writer is told what is wrong, not nobody."""
    shard = service.placement.shard_of(meant.topic)
    seed, limits = shard.store.seed, service.limits
    made: list[Any]
    if meant.operation in ("produce", "append"):
        _check_partitions(meant, batch)
        made = list(_appends(service, meant, batch))
    elif meant.operation == "put":
        made, _ = _entries(service, meant, batch)
        _check_range(batch, "ttl_us", 1)
        _check_range(batch, "expires_us", service.clock.now_us() + 1)
    else:
        made = [co.Cancel(meant.topic, changing.check(meant.operation, batch, seed, limits))]
        _check_range(batch, "due_us", 0)
        _check_range(batch, "delay_us", 0)
        if "priority" in batch.schema.names and not KINDS[meant.kind].has_priorities:
            raise InvalidArgument(
                f"{meant.topic!r} is a {meant.kind} topic: its messages have no priority",
                field="priority",
            )
    if shard.place.count > 1:
        own = own_partitions(service.require_topic(meant.topic), shard.place)
        if own is not None:
            for command in made:
                own.check_command(meant.topic, command)


def _check_range(batch: pa.RecordBatch, name: str, least: int) -> None:
    """Times that would be refused when they are carried out are refused now."""
    if name in batch.schema.names:
        bounds = pc.min_max(batch.column(name)).as_py()
        if bounds["min"] is not None and not least <= bounds["min"] <= bounds["max"] <= _FAR_US:
            raise InvalidArgument(
                f"{name} is {least} to {_FAR_US} microseconds", field=name, limit=_FAR_US
            )


def _wrapped(meant: Meant, batch: pa.RecordBatch) -> co.Produce:
    row_bytes = max(1, batch.nbytes // batch.num_rows)
    rows = max(1, min(PARCEL_ROWS, _PARCEL_BYTES // row_bytes))
    pieces = [batch.slice(begin, rows) for begin in range(0, batch.num_rows, rows)]
    payloads = pa.array([_encoded(piece) for piece in pieces], type=pa.binary())
    counts = np.array([piece.num_rows for piece in pieces], dtype=np.int64)
    parcels = Rows(pa.RecordBatch.from_arrays([payloads], ["payload"]))
    return co.Produce(PARCELS, parcels, co.When(due_us=counts), owner=meant.owner)


def _encoded(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue())


# Out


def unwrapped(payload: pa.Buffer) -> pa.RecordBatch:
    """The rows of a parcel."""
    return pa.ipc.open_stream(payload).read_next_batch()


def commands(
    service: Service, meant: Meant, batch: pa.RecordBatch
) -> tuple[list[Any], dict[str, int]]:
    """What carries rows out, and the outcomes of rows that need nothing done."""
    if meant.operation in ("produce", "append"):
        found = _appends(service, meant, batch)
        for command in found:
            service.routes.route(command)
        return list(found), {}
    if meant.operation == "put":
        return _entries(service, meant, batch)
    fields = {"topic": meant.topic, "owner": meant.owner}
    return [changing.command(service, meant.operation, fields, batch)], {}


def _appends(service: Service, meant: Meant, batch: pa.RecordBatch) -> list[co.Produce]:
    """One command for the rows of each partition that is named, and one for those of none."""
    shard = service.placement.shard_of(meant.topic)
    seed, limits = shard.store.seed, service.limits
    pieces: list[tuple[int | None, pa.RecordBatch]] = [(None, batch)]
    if "partition" in batch.schema.names:
        numbers = batch.column("partition")
        rest = batch.drop_columns(["partition"])
        pieces = [
            (
                number,
                rest.filter(numbers.is_null() if number is None else pc.equal(numbers, number)),
            )
            for number in numbers.unique().to_pylist()
        ]
    named = {"topic": meant.topic, "owner": meant.owner}
    now_us = service.clock.now_us()
    return [
        requests.produce(piece, seed, limits, now_us, partition=number, **named)
        for number, piece in pieces
    ]


def _check_partitions(meant: Meant, batch: pa.RecordBatch) -> None:
    if "partition" not in batch.schema.names or not meant.partitions:
        return
    found = pc.min_max(batch.column("partition"))
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None and not 0 <= low <= high < meant.partitions:
        wrong = low if low < 0 else high
        raise InvalidArgument(
            f"{meant.topic!r} has no partition {wrong}", field="partition", limit=meant.partitions
        )


def _entries(
    service: Service, meant: Meant, batch: pa.RecordBatch
) -> tuple[list[Any], dict[str, int]]:
    """Puts, and deletes where the payload is null."""
    shard = service.placement.shard_of(meant.topic)
    seed, limits = shard.store.seed, service.limits
    if "payload" not in batch.schema.names:
        raise InvalidArgument("the column 'payload' is missing", field="payload")
    batch = _in_time(batch, service.clock.now_us())
    values = batch.column("payload")
    outcomes: dict[str, int] = {}
    if values.null_count:
        if "version" in batch.schema.names and batch.column("version").null_count < len(values):
            raise InvalidArgument(
                "a batch that deletes (its payload is null) can't expect versions", field="version"
            )
        # Of a name the last row counts: then puts and deletes touch different ones.
        kept = _last_of_names(kv_requests.keys(batch, seed).values)
        outcomes = {"ok": batch.num_rows - len(kept)}
        batch = batch.take(kept)
        values = batch.column("payload")
    found: list[Any] = []
    puts = batch.filter(values.is_valid()) if values.null_count else batch
    if puts.num_rows:
        names = ["value" if name == "payload" else name for name in puts.schema.names]
        found.append(kv_requests.put(puts.rename_columns(names), meant.topic, seed, limits))
    if values.null_count:
        deletes = batch.filter(values.is_null())
        named = [name for name in ("key", "clustering") if name in deletes.schema.names]
        found.append(kv_requests.delete(deletes.select(named), meant.topic, seed, limits))
    return found, outcomes


def _in_time(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Expiries that have passed since the rows came are put off a little: the engine takes none."""
    place = batch.schema.get_field_index("expires_us")
    if place < 0 or batch.num_rows == batch.column(place).null_count:
        return batch
    moments = pc.max_element_wise(batch.column(place), now_us + _OVER_US, skip_nulls=False)
    return batch.set_column(place, "expires_us", moments)


def _last_of_names(names: pa.Array) -> pa.Array:
    """The place of the last row of each name, in order."""
    table = pa.table({"name": names, "row": np.arange(len(names), dtype=np.int64)})
    last = table.group_by("name").aggregate([("row", "max")]).column("row_max")
    return pa.array(np.sort(last.to_numpy()))
