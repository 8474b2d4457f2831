"""Reads over shards: one stream in order, batch by batch, and tickets that name their shards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fasti.errors import InvalidArgument, Unavailable
from fasti.model import TopicSettings, make_id
from tests.unit.client.shards.fake_shards import FakeShards, Header

FOUR = TopicSettings(partitions=4)


def in_batches(table: pa.Table, draw: random.Random) -> list[pa.RecordBatch]:
    """Cut anywhere, with empty ones in between."""
    rows, batches = 0, [table.slice(0, 0).combine_chunks()]
    while rows < table.num_rows:
        count = draw.randint(0, 7)
        batches.append(table.slice(rows, count).combine_chunks())
        rows += count
    schema = table.schema
    return [
        pa.RecordBatch.from_arrays(
            [_flat(part.column(name)) for name in schema.names], schema=schema
        )
        for part in batches
    ]


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_by_id(seed: int) -> None:
    draw = random.Random(seed)
    fakes = FakeShards(4, topic=TopicSettings(partitions=7))
    layout = fakes.layout("topic")
    ids = sorted(make_id(draw.randrange(7), n) for n in range(1, draw.randint(2, 150)))
    for shard in fakes.shards:
        own = [each for each in ids if int(layout.shards_of_ids([each])[0]) == shard.number]  # type: ignore[arg-type]
        shard.batches = in_batches(
            pa.table({"id": pa.array(own, pa.int64()), "at": pa.array([shard.number] * len(own))}),
            draw,
        )
    limit = draw.choice([None, 0, 1, 40, 1000])
    ticket: Header = {"call": "list", "topic": "topic"} | (
        {} if limit is None else {"limit": limit}
    )
    table = pa.Table.from_batches(list(fakes.transport.read(ticket)))
    assert table.column("id").to_pylist() == ids[:limit]


@pytest.mark.parametrize("seed", range(20))
def test_entries_come_by_key_and_those_of_one_key_in_their_order(seed: int) -> None:
    draw = random.Random(seed)
    fakes = FakeShards(3, topic=TopicSettings(kind="kv", partitions=5))
    layout = fakes.layout("topic")
    keys = sorted(
        {"".join(draw.choices("abzäß😀", k=draw.randint(1, 3))) for _ in range(60)},
        key=str.encode,
    )
    names = [(key, clustering) for key in keys for clustering in (None, "1", "2")]
    for shard in fakes.shards:
        own = [name for name in names if layout.shard_of_key(name[0]) == shard.number]
        columns: dict[str, Any] = {
            "key": pa.array([key for key, _ in own], pa.string()),
            "clustering": pa.array([clustering for _, clustering in own], pa.string()),
        }
        shard.batches = in_batches(pa.table(columns), draw)
    table = pa.Table.from_batches(list(fakes.transport.read({"call": "kv", "topic": "topic"})))
    rows = zip(table.column("key").to_pylist(), table.column("clustering").to_pylist(), strict=True)
    assert list(rows) == names


def test_a_column_that_only_the_order_needs_is_not_given() -> None:
    fakes = FakeShards(2, topic=TopicSettings(partitions=2))
    for shard in fakes.shards:
        columns = {"key": pa.array([f"k{shard.number}"]), "id": pa.array([9 - shard.number])}
        shard.batches = pa.table(columns).to_batches()
    ticket = {"call": "list", "topic": "topic", "columns": ["key"]}
    table = pa.Table.from_batches(list(fakes.transport.read(ticket)))
    assert table.to_pydict() == {"key": ["k1", "k0"]}
    assert fakes.shards[0].asked[0][1]["columns"] == ["key", "id"]


def test_a_log_is_read_one_partition_after_the_other() -> None:
    fakes = FakeShards(2, log=TopicSettings(kind="log", partitions=4))
    for shard in fakes.shards:
        shard.batches = pa.table({"offset": pa.array([1, 2])}).to_batches()
    ticket = {"call": "log", "topic": "log", "offsets": {"2": 40}}
    table = pa.Table.from_batches(list(fakes.transport.read({**ticket, "limit": 7})))
    assert table.num_rows == 7
    asked = {
        fields["partition"]: (shard.number, fields.get("offset"))
        for shard in fakes.shards
        for _, fields, _ in shard.asked
    }
    layout = fakes.layout("log")
    assert asked == {n: (layout.shard_of(n), 40 if n == 2 else None) for n in range(4)}


def test_one_partition_or_key_is_read_from_its_shard() -> None:
    fakes = FakeShards(4, topic=FOUR, pairs=TopicSettings(kind="kv", partitions=4))
    for shard in fakes.shards:
        shard.batches = pa.table({"id": pa.array([shard.number])}).to_batches()
    list(fakes.transport.read({"call": "list", "topic": "topic", "partition": 2}))
    assert list(fakes.asked()) == [fakes.layout("topic").shard_of(2)]
    fakes.shards[fakes.layout("topic").shard_of(2)].asked.clear()
    list(fakes.transport.read({"call": "kv", "topic": "pairs", "key": "k"}))
    assert list(fakes.asked()) == [fakes.layout("pairs").shard_of_key("k")]


def test_plans_have_the_tickets_of_all_shards() -> None:
    fakes = FakeShards(4, topic=FOUR)
    tickets = fakes.transport.plan({"call": "list", "topic": "topic", "splits": 10})
    assert [ticket["shard_number"] for ticket in tickets] == [0, 1, 2, 3]
    assert {ticket["splits"] for ticket in tickets} == {3}
    held = {
        "snapshot": {n: 7 + n for n in range(4)},
        "position": {str(n): 70 + n for n in range(4)},
    }
    tickets = fakes.transport.plan({"call": "list", "topic": "topic", **held})
    asked = [shard.asked[-1][1] for shard in fakes.shards]
    assert [(fields["snapshot"], fields["position"]) for fields in asked] == [
        (7 + n, 70 + n) for n in range(4)
    ]
    shard = fakes.shards[tickets[3]["shard_number"]]
    shard.batches = pa.table({"id": pa.array([1])}).to_batches()
    list(fakes.transport.read(tickets[3]))
    assert shard.asked[-1][0] == "read"
    assert "shard_number" not in shard.asked[-1][1]


def test_the_change_feed_is_read_from_one_shard() -> None:
    fakes = FakeShards(2)
    with pytest.raises(InvalidArgument, match="shard_number"):
        list(fakes.transport.read({"call": "changes"}))
    with pytest.raises(InvalidArgument, match="shard_number"):
        fakes.transport.plan({"call": "changes"})


def test_a_read_that_loses_a_shard_names_it_and_ends_the_others() -> None:
    fakes = FakeShards(2, topic=TopicSettings(partitions=2))
    ended: list[int] = []

    def broken(ticket: Header) -> Iterator[pa.RecordBatch]:
        yield from pa.table({"id": pa.array([1])}).to_batches()
        raise Unavailable("gone")

    def fine(ticket: Header) -> Iterator[pa.RecordBatch]:
        try:
            yield from pa.table({"id": pa.array([2, 3])}).to_batches()
            yield from pa.table({"id": pa.array([4])}).to_batches()
        finally:
            ended.append(1)

    fakes.shards[0].read, fakes.shards[1].read = broken, fine  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="shard 0: gone"):
        list(fakes.transport.read({"call": "list", "topic": "topic"}))
    assert ended == [1]
