"""How requests are cut into pieces for shards: by rows, by partition, for all shards of a topic, ..."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fasti.client.shards.routing import Piece, Request
from fasti.client.transport import Header
from fasti.core.layout import OWN_TOPICS, Layout
from fasti.errors import CrossShard, InvalidArgument
from fasti.protocol.single_row import Part, SingleRow, as_batch

Int64s = NDArray[np.int64]

CATALOGUE = 0


def catalogue(request: Request) -> list[Piece]:
    """To the shard that has the truth about topics."""
    return [Piece(CATALOGUE, request.header, request.parts)]


def catalogue_or_own(request: Request) -> list[Piece]:
    """The same; if it is a topic that every shard makes for itself, to all."""
    return every_shard(request) if request.topic in OWN_TOPICS else catalogue(request)


def every_shard(request: Request) -> list[Piece]:
    """To all shards there are."""
    numbers = range(request.transport.shard_count)
    return [Piece(number, request.header, request.parts) for number in numbers]


def shards_of_topic(request: Request) -> list[Piece]:
    """To all shards that have a partition of the topic."""
    shards = request.layout(fresh=True).all_shards
    return [Piece(number, request.header, request.parts) for number in shards]


def topic_or_every(request: Request) -> list[Piece]:
    """To the shards of the topic, if one is named."""
    return shards_of_topic(request) if request.topic else every_shard(request)


def named_shard(request: Request) -> list[Piece]:
    """Calls about one shard, which their caller names: the change feed, sinks, backups."""
    raise InvalidArgument(
        f"{request.action} is about one shard: its caller names it by shard_number",
        field="shard_number",
    )


# By rows


def rows(request: Request) -> list[Piece]:
    """Each row of the part to the shard that its id or key belongs to."""
    if len(request.parts) != 1:
        # The broker says what is wrong with it.
        return [Piece(request.layout().all_shards[0], request.header, request.parts)]
    return cut_rows(request.layout(), request.header, request.parts)


def rows_or_topic(request: Request) -> list[Piece]:
    """By rows if some are named, else to all shards of the topic."""
    return rows(request) if request.parts else shards_of_topic(request)


def cut_rows(layout: Layout, header: Header, parts: Sequence[Part], by: int = 0) -> list[Piece]:
    """Pieces by the rows of the part number `by`; other parts have as many rows and go with them."""
    shards = shards_of_rows(layout, parts[by])
    if shards is None or not len(shards):
        return [Piece(layout.all_shards[0], header, parts, np.arange(parts[by].num_rows))]
    present = np.unique(shards)
    if len(present) == 1:
        return [Piece(int(present[0]), header, parts, np.arange(len(shards)))]
    pieces = []
    for shard in present.tolist():
        numbers = np.flatnonzero(shards == shard)
        wanted = pa.array(numbers)
        pieces.append(
            Piece(shard, header, [as_batch(part).take(wanted) for part in parts], numbers)
        )
    return pieces


def shards_of_rows(layout: Layout, part: Part) -> Int64s | None:
    """The shard of each row, by its id or its key; None if it names neither."""
    if isinstance(part, SingleRow):
        values = part.values
        if "id" in values:
            return layout.shards_of_ids(np.array([values["id"]]))
        return np.array([layout.shard_of_key(values["key"])]) if "key" in values else None
    names = part.schema.names
    try:
        if "id" in names:
            ids = _flat(part.column("id")).cast(pa.int64())
            return layout.shards_of_ids(pc.fill_null(ids, 0).to_numpy(zero_copy_only=False))
        if "key" in names:
            return layout.shards_of_keys(_flat(part.column("key")).cast(pa.string()))
    except pa.ArrowException:
        # The broker says what is wrong with them.
        return None
    return None


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


# By partition


def partitions(request: Request) -> list[Piece]:
    """By `partition` to its shard, by `offsets` to those of the partitions named, else to all."""
    header, layout = request.header, request.layout(fresh=True)
    partition, offsets = header.get("partition"), header.get("offsets")
    if type(partition) is int:
        return [Piece(layout.shard_of(partition), header)]
    if not isinstance(offsets, dict) or not offsets:
        _refuse_offset(header, layout)
        return [Piece(shard, header) for shard in layout.all_shards]
    return _by_offsets(request, layout, offsets)


def all_partitions(request: Request) -> list[Piece]:
    """To all shards of the topic, each with the offsets of its own partitions."""
    header, layout = request.header, request.layout(fresh=True)
    offsets = header.get("offsets")
    if not isinstance(offsets, dict) or not offsets:
        _refuse_offset(header, layout)
        return [Piece(shard, header) for shard in layout.all_shards]
    pieces = {piece.shard: piece for piece in _by_offsets(request, layout, offsets)}
    none = {name: value for name, value in header.items() if name != "offsets"}
    return [pieces.get(shard, Piece(shard, none)) for shard in layout.all_shards]


def _by_offsets(request: Request, layout: Layout, offsets: Header) -> list[Piece]:
    by_shard: dict[int, Header] = {}
    for name, offset in offsets.items():
        # One that is none goes anywhere: every shard refuses it alike.
        number = int(name) if str(name).isdecimal() else 0
        by_shard.setdefault(layout.shard_of(number), {})[name] = offset
    return [
        Piece(shard, {**request.header, "offsets": own}) for shard, own in sorted(by_shard.items())
    ]


def _refuse_offset(header: Header, layout: Layout) -> None:
    named = header.get("offset") is not None or header.get("before") is not None
    if named and layout.partitions > 1:
        raise InvalidArgument(
            "an offset belongs to one partition: name the partition", field="partition"
        )


# Page by page


def cursors(request: Request) -> list[Piece]:
    """A walk through all messages that fit, on all shards of the topic at once.

    Where each shard goes on stands in the cursor, which is a map; one that came to its end isn't in it.
    """
    after = request.header.get("after_id") or 0
    if not isinstance(after, dict):
        return shards_of_topic(request)
    return [
        Piece(int(shard), {**request.header, "after_id": after_id})
        for shard, after_id in after.items()
    ]


def redriven(request: Request) -> list[Piece]:
    """As `cursors`, or by ids. To another topic each message stays on its shard."""
    target = request.header.get("to")
    if target and target != request.topic:
        source, there = request.layout(fresh=True), request.transport.layouts.of(target, True)
        if not source.keeps_to(there):
            raise CrossShard(
                f"messages of {request.topic!r} can't go to {target!r} with their death in one step: "
                "equal keys of the two topics lie on different shards. Make the target with the same "
                "home, partitions and width",
                details={"topics": [request.topic, target]},
            )
    return rows(request) if request.parts else cursors(request)


def with_request(request: Request) -> list[Piece]:
    """Answers go where the requests are that they end; those that end none go anywhere."""
    if len(request.parts) == 2 and request.topic:
        return cut_rows(request.layout(), request.header, request.parts, by=1)
    count = request.parts[0].num_rows if request.parts else 0
    return [Piece(CATALOGUE, request.header, request.parts, np.arange(count))]


# Snapshots


def held_snapshots(request: Request) -> list[Piece]:
    """To each shard of which a handle has a snapshot."""
    held = request.header.get("snapshot")
    if not isinstance(held, dict):
        return named_shard(request)
    return [
        Piece(int(shard), {**request.header, "snapshot": number}) for shard, number in held.items()
    ]
