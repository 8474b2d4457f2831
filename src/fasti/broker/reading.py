"""Messages together with their payloads, wherever those lie by the time that they are read.

A checkpoint may move a payload between the moment when the engine told its location and the moment
when a session's thread reads it, and then delete the place; a recovery closes the files under a
reader. Both are seen as an error of the read, and answered by asking the engine again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.core.command import Command
from fasti.core.commands import Get, Redrive, Target, Update, When
from fasti.core.fields import FIELDS
from fasti.core.keys import Keys, Rows
from fasti.core.numbered.commands import CallNumber, Numbered
from fasti.core.replies import Messages, Reply, blank
from fasti.errors import Closed, FastiError, Gone, InvalidArgument, NotFound
from fasti.model import Outcome

if TYPE_CHECKING:
    from fasti.broker.shard import Shard

Int64s = NDArray[np.int64]

# What a read says when its place is gone. Each try asks anew, so a second is rarely needed.
MOVED = (Closed, Gone, NotFound)
_TRIES = 16
# How much is gathered at once where all of it is not needed at once.
PIECE_BYTES = 64 << 20
_NAMES = ("key", "subject", "created_us")

Gather = Callable[["Shard", Int64s], pa.RecordBatch]


def fetch(
    shard: Shard, topic: str, target: Target, gather: Gather | None = None
) -> tuple[Messages, pa.RecordBatch]:
    """Messages and their payloads: a row of both for each of the target's.

    Where `status` is not ok the payload is empty and the rest of its row null; where it can't be read
    (storage/damages.py) the payload is null. `gather` reads the contents, all of them if nothing else
    is said.
    """
    error: FastiError | None = None
    gather = gather or _gather_all
    for _ in range(_TRIES):
        found: Messages = shard.call(Get(topic, target), lead=True)
        if found.error is not None:
            raise found.error
        here = np.flatnonzero(found.status == Outcome.OK)
        locations = found.columns["location"][here] if len(here) else np.zeros(0, dtype=np.int64)
        try:
            return found, _spread(gather(shard, locations), here, len(found.status))
        except MOVED as moved:
            error = moved
    assert error is not None
    raise error


def _gather_all(shard: Shard, locations: Int64s) -> pa.RecordBatch:
    return shard.store.payloads.gather(locations, lost=True)


def gather_bounded(
    shard: Shard, locations: Int64s, names: tuple[str, ...] | None = None, lost: bool = False
) -> pa.RecordBatch:
    """For whoever asked by name: no more than fits one answer, however often a message is named.

    What can't be read is null if `lost` says so, else it raises `Corruption`.
    """
    limit = shard.settings.limits.batch_bytes_max
    if shard.store.payloads.fitting(locations, limit) < len(locations):
        raise InvalidArgument(
            f"the payloads have more than {limit} bytes together: ask for fewer at a time",
            field="batch_bytes_max",
            limit=limit,
        )
    return shard.store.payloads.gather(locations, names=names, lost=lost)


def gather_messages(shard: Shard, locations: Int64s) -> pa.RecordBatch:
    """The contents of messages that were asked for; null where they can't be read."""
    return gather_bounded(shard, locations, lost=True)


def _gather_names(shard: Shard, locations: Int64s) -> pa.RecordBatch:
    """Keys and times of creation. Raises `Corruption` if they can't be read."""
    pieces: list[pa.RecordBatch] = []
    begin = 0
    while begin < len(locations) or not pieces:
        rest = locations[begin:]
        count = shard.store.payloads.fitting(rest, PIECE_BYTES)
        pieces.append(shard.store.payloads.gather(rest[:count], names=_NAMES))
        begin += count
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def update(
    shard: Shard, topic: str, target: Target, rows: Rows, versions: Int64s | int, owner: str
) -> Reply:
    """`Update`, with each message's own key and time of creation put into the rows."""
    whole = refreshed(shard, topic, target, rows)
    reply: Reply = shard.call(Update(topic, target, whole, versions, owner), lead=True)
    return reply


def refreshed(shard: Shard, topic: str, target: Target, rows: Rows) -> Rows:
    """New contents of messages, with the keys and times of creation that they have."""
    if len(target) != len(rows):
        raise InvalidArgument(f"{len(rows)} payloads for {len(target)} messages", field="payload")
    _, contents = fetch(shard, topic, target, _gather_names)
    columns = {name: rows.batch.column(name) for name in rows.batch.schema.names}
    for name in _NAMES:
        columns.pop(name, None)
        kept = contents.column(name)
        if kept.null_count < len(kept):
            columns[name] = kept
    schema = pa.schema([FIELDS[name] for name in columns])
    return Rows(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))


def redrive(
    shard: Shard,
    topic: str,
    ids: Int64s,
    when: When,
    call: CallNumber | None = None,
    chosen: bool = False,
) -> Reply:
    """`Redrive`, with the keys of the dead, which the engine doesn't keep.

    Those whose payload can't be read stay dead: their outcome is `dead`. With a `call` it happens once,
    see `Numbered`.
    """
    lost = _find_lost(shard, topic, ids)
    if lost.any():
        # Whoever redrives them may have put a good copy of the block back.
        shard.store.payloads.look_again()
        lost = _find_lost(shard, topic, ids)
    _, contents = fetch(shard, topic, Target(ids=ids[~lost]), _gather_names)
    keys = Keys(contents.column("key"), shard.store.seed)
    command: Command = Redrive(topic, ids[~lost], keys, when)
    if call is not None:
        command = Numbered(command, call, chosen=chosen)
    reply: Reply = shard.call(command, lead=True)
    if not lost.any() or reply.error is not None:
        return reply
    whole = blank(len(ids))
    whole.ids[:], whole.status[lost] = ids, Outcome.DEAD
    whole.status[~lost], whole.versions[~lost] = reply.status, reply.versions
    return whole


def _find_lost(shard: Shard, topic: str, ids: Int64s) -> NDArray[np.bool_]:
    """Which of the dead can't be read."""

    def gather(shard: Shard, locations: Int64s) -> pa.RecordBatch:
        lost = shard.store.payloads.damaged(locations)
        return pa.RecordBatch.from_arrays([pa.array(lost)], ["lost"])

    _, found = fetch(shard, topic, Target(ids=ids), gather)
    lost: NDArray[np.bool_] = found.column("lost").fill_null(False).to_numpy(zero_copy_only=False)
    return lost


def _spread(batch: pa.RecordBatch, rows: NDArray[np.intp], count: int) -> pa.RecordBatch:
    """The batch's rows at these places among `count`; the others are null, or empty payloads."""
    if len(rows) == count:
        return batch
    here = np.zeros(count, dtype=np.bool_)
    here[rows] = True
    places: NDArray[Any] = np.zeros(count, dtype=np.int64)
    places[rows] = np.arange(len(rows))
    mask, taken = pa.array(here), pa.array(places, mask=~here)
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_binary(field.type) or pa.types.is_string(field.type):
            # `take` would set aside as much as if every row were there.
            rest = pa.repeat(b"", count) if field.name == "payload" else pa.nulls(count, field.type)
            columns.append(pc.replace_with_mask(rest, mask, column))
        else:
            columns.append(column.take(taken))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
