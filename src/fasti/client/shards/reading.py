"""Reads over several shards: their tickets, and their batches as one stream in the order promised.

Messages come by id and entries by key, merged batch by batch: of each shard one batch is here at a time.
A log is read one partition after the other. Each shard's part is as of one moment; over shards it is not
one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from fasti.client.shards import parallel
from fasti.client.shards.routing import OWN, at_shard, drop_absent
from fasti.client.transport import Header
from fasti.core.layout import Layout
from fasti.errors import FastiError, InvalidArgument
from fasti.protocol.schemas import AS_OF, STALE

if TYPE_CHECKING:
    from fasti.client.shards.transport import ShardedTransport

SHARD_NUMBER = "shard_number"
# By what the rows of a read are in order.
_ORDER = {"list": "id", "kv": "key"}
_OF_SNAPSHOT = frozenset(("snapshot", "position", "shard", "deadline_us"))


def plan(transport: ShardedTransport, descriptor: Header) -> list[Header]:
    """The tickets of all shards that have some of it; each names its shard."""
    pieces = _pieces(transport, descriptor)
    if "splits" in descriptor:
        share = max(1, -(-int(descriptor["splits"]) // len(pieces)))
        pieces = [(shard, {**fields, "splits": share}) for shard, fields in pieces]

    def ask(piece: tuple[int, Header]) -> list[Header]:
        shard, fields = piece
        tickets = transport.shard(shard).plan(fields)
        return [{**ticket, SHARD_NUMBER: shard} for ticket in tickets]

    lists = _answers(descriptor, pieces, parallel.each(transport.runtime, ask, pieces))
    tickets = [ticket for one in lists for ticket in one]
    return sorted(tickets, key=lambda ticket: int(ticket.get("partition") or 0))


def read(transport: ShardedTransport, ticket: Header) -> Iterator[pa.RecordBatch]:
    """The rows that a ticket stands for, in order; at least one batch, maybe empty."""
    pieces = _pieces(transport, ticket)
    if len(pieces) == 1:
        shard, fields = pieces[0]
        yield from transport.shard(shard).read(fields)
        return
    limit = ticket.get("limit")
    if ticket.get("call") == "log":
        batches = _one_after_another(transport, ticket)
    else:
        by = _ORDER[ticket["call"]]
        wanted = list(ticket.get("columns") or ())
        hidden = bool(wanted) and by not in wanted
        if hidden:
            pieces = [(shard, {**f, "columns": [*wanted, by]}) for shard, f in pieces]
        batches = _merged(transport, ticket, pieces, by)
        if hidden:
            batches = (batch.select(wanted) for batch in batches)
    yield from _limited(batches, limit)


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


# Which shards


def _pieces(transport: ShardedTransport, fields: Header) -> list[tuple[int, Header]]:
    """The shards that have some of it, and what each is asked."""
    call, topic = fields.get("call"), fields.get("topic")
    if call not in ("list", "kv", "log") or not isinstance(topic, str):
        raise InvalidArgument(
            f"{call} is read from one shard: its caller names it by {SHARD_NUMBER}",
            field=SHARD_NUMBER,
        )
    layout = transport.layouts.of(topic, fresh=True, stale=fields.get(STALE) is True)
    partition, key = fields.get("partition"), fields.get("key")
    if type(partition) is int:
        shards = [layout.shard_of(partition)]
    elif call == "kv" and isinstance(key, str):
        shards = [layout.shard_of_key(key)]
    else:
        shards = layout.all_shards
    return [(shard, _of_shard(layout, fields, shard)) for shard in shards]


def _of_shard(layout: Layout, fields: Header, shard: int) -> Header:
    # A snapshot over all shards is a map, and so is what was told of it.
    fields = {
        name: _own(value, shard) if name in _OF_SNAPSHOT and isinstance(value, dict) else value
        for name, value in fields.items()
    }
    offsets = fields.get("offsets")
    if isinstance(offsets, dict):
        own = {
            name: offset
            for name, offset in offsets.items()
            if not str(name).isdecimal() or layout.shard_of(int(name)) == shard
        }
        fields = {**fields, "offsets": own}
        if not own:
            del fields["offsets"]
    return fields


def _own(told: dict[Any, Any], shard: int) -> Any:
    # By numbers, which JSON makes texts of.
    return told[shard] if shard in told else told[str(shard)]


def _answers(fields: Header, pieces: list[tuple[int, Any]], answers: Sequence[Any]) -> list[Any]:
    """Raises the first error, which names its shard."""
    if str(fields["topic"]).startswith(OWN):
        pieces, answers = drop_absent(pieces, answers)
    for (shard, _), answer in zip(pieces, answers, strict=True):
        if isinstance(answer, FastiError):
            raise at_shard(answer, shard)
    return list(answers)


# In which order


def _one_after_another(transport: ShardedTransport, ticket: Header) -> Iterator[pa.RecordBatch]:
    """The partitions of a log, each from its shard."""
    layout = transport.layouts.of(ticket["topic"])
    offsets = ticket.get("offsets") or {}
    base = {name: value for name, value in ticket.items() if name != "offsets"}
    for partition in range(layout.partitions):
        fields = {**base, "partition": partition}
        if (offset := offsets.get(str(partition), offsets.get(partition))) is not None:
            fields["offset"] = offset
        yield from _of(transport.shard(layout.shard_of(partition)).read(fields), partition)


def _of(batches: Iterator[pa.RecordBatch], number: int) -> Iterator[pa.RecordBatch]:
    """Without the empty batch of a partition that has no rows, but for that of the first."""
    for batch in batches:
        if batch.num_rows or not number:
            yield batch


def _merged(
    transport: ShardedTransport, ticket: Header, pieces: list[tuple[int, Header]], by: str
) -> Iterator[pa.RecordBatch]:
    """The batches of all shards as one stream in the order of a column."""
    streams = [_Stream(shard, transport.shard(shard).read(fields)) for shard, fields in pieces]
    try:
        _answers(ticket, pieces, parallel.each(transport.runtime, _Stream.advance, streams))
        schema = _earliest([stream.schema for stream in streams if stream.schema is not None])
        empty = True
        while live := [stream for stream in streams if stream.head is not None]:
            taken = _next(live, by)
            empty = False
            yield taken.replace_schema_metadata(schema.metadata)
        if empty:
            yield pa.RecordBatch.from_pylist([], schema=schema)
    finally:
        for stream in streams:
            stream.close()


def _earliest(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Of stale reads, that of the one which is furthest behind: all of them are as of then at least."""

    def as_of_us(schema: pa.Schema) -> int:
        return int((schema.metadata or {}).get(AS_OF.encode(), 0))

    return min(schemas, key=as_of_us)


class _Stream:
    """One shard's batches, of which the next that has rows is here."""

    def __init__(self, shard: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._shard, self._batches = shard, batches
        self.head: pa.RecordBatch | None = None
        self.schema: pa.Schema | None = None

    def advance(self) -> None:
        """Takes the next batch; None in `head`: there is none."""
        self.head = None
        try:
            for batch in self._batches:
                self.schema = batch.schema
                if batch.num_rows:
                    self.head = batch
                    return
        except FastiError as error:
            raise at_shard(error, self._shard) from error

    def take(self, count: int) -> pa.RecordBatch:
        """The first rows of the head; when it is used up the next comes."""
        assert self.head is not None
        head = self.head
        if count < head.num_rows:
            self.head = head.slice(count)
        else:
            self.advance()
        return head.slice(0, count)

    def close(self) -> None:
        """No more is wanted."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def _next(live: Sequence[_Stream], by: str) -> pa.RecordBatch:
    """The rows that come before all that is not here yet: up to the least of the last ones."""
    if len(live) == 1:
        assert live[0].head is not None
        return live[0].take(live[0].head.num_rows)
    columns = [stream.head.column(by) for stream in live if stream.head is not None]
    bound = min((column[-1] for column in columns), key=lambda last: _ordered(last.as_py()))
    # Each is in order: what is not above the bound stands before what is.
    counts = [pc.sum(pc.less_equal(column, bound)).as_py() for column in columns]
    taken = [stream.take(n) for stream, n in zip(live, counts, strict=True) if n]
    if len(taken) == 1:
        return taken[0]
    table = pa.Table.from_batches(taken)
    # Stable: entries of one key are all of one shard, and keep their order.
    ordered = table.take(pc.sort_indices(table.column(by)))
    return ordered.combine_chunks().to_batches()[0]


def _ordered(value: Any) -> Any:
    """Texts are in the order of their bytes."""
    return value.encode() if isinstance(value, str) else value
