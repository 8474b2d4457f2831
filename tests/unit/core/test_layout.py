"""Where partitions lie: the same arithmetic for brokers, clients and Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from xxhash import xxh64_intdigest

from fasti.core.keys import Keys
from fasti.core.layout import Layout
from fasti.model import TopicSettings, make_id


@pytest.mark.parametrize("shards", [1, 2, 4, 7])
@pytest.mark.parametrize("partitions", [1, 4, 12])
@pytest.mark.parametrize("width", [0, 1, 3, 100])
def test_every_partition_has_one_shard_by_the_formula(
    shards: int, partitions: int, width: int
) -> None:
    layout = Layout(shards, partitions, "orders", width)
    spread = min(width or shards, shards)
    wanted = [(xxh64_intdigest(b"orders") + p % spread) % shards for p in range(partitions)]
    assert [layout.shard_of(p) for p in range(partitions)] == wanted
    owned = [p for shard in range(shards) for p in layout.own(shard).tolist()]
    assert sorted(owned) == list(range(partitions))
    assert layout.all_shards == sorted(set(wanted))


def test_keys_and_ids_lie_with_their_partition() -> None:
    layout = Layout(4, 12)
    keys = [f"user-{number}" for number in range(500)]
    partitions = [xxh64_intdigest(key.encode()) % 12 for key in keys]
    wanted = [layout.shard_of(partition) for partition in partitions]
    assert layout.shards_of_keys(pa.array(keys)).tolist() == wanted
    assert [layout.shard_of_key(key) for key in keys] == wanted
    ids = np.array([make_id(partition, 7) for partition in partitions])
    assert layout.shards_of_ids(ids).tolist() == wanted


def test_a_copy_keeps_to_its_shard_where_layouts_are_alike() -> None:
    assert Layout(4, 4).keeps_to(Layout(4, 4))
    assert Layout(4, 8).keeps_to(Layout(4, 4))
    assert Layout(4, 1).keeps_to(Layout(4, 1))
    assert Layout(1, 3).keeps_to(Layout(1, 5))
    assert Layout(4, 3, width=1).keeps_to(Layout(4, 5, width=1))
    assert not Layout(4, 4).keeps_to(Layout(4, 1))
    assert not Layout(4, 1).keeps_to(Layout(4, 4))
    assert not Layout(4, 4).keeps_to(Layout(4, 4, home="there"))
    assert not Layout(4, 4).keeps_to(Layout(4, 6))


def test_keys_of_a_log_choose_by_rank() -> None:
    layout = Layout.of(TopicSettings(kind="log", partitions=12), 4)
    keys = pa.array([f"user-{number}" for number in range(500)])
    ranked = Keys(keys, (7, 11)).ranked(12)
    assert layout.shards_of_keys(keys).tolist() == layout.by_partition[ranked].tolist()
    one_by_one = [layout.shard_of_key(key) for key in keys.to_pylist()]
    assert one_by_one == layout.by_partition[ranked].tolist()
    assert layout.keeps_to(Layout.of(TopicSettings(kind="log", partitions=12), 4))
    assert not layout.keeps_to(Layout.of(TopicSettings(kind="log", partitions=24), 4))
    assert not layout.keeps_to(Layout(4, 12))
    assert Layout.of(TopicSettings(kind="log"), 4).keeps_to(Layout(4, 1))
