"""The map of shards: whose word counts."""

from __future__ import annotations

from typing import Any

import pytest

from fasti.client.shards.shard_map import ShardMap, parse_host
from fasti.errors import Unavailable

HERE, THERE = ("one", 7170), ("two", 7171)


def hello(*entries: tuple[int, str | None, int], cluster: str = "c") -> dict[str, Any]:
    known = [{"shard": n, "address": at, "epoch": epoch} for n, at, epoch in entries]
    return {"shards": 3, "cluster": cluster, "map": known}


def test_a_null_address_is_where_one_asked() -> None:
    known = ShardMap(hello((0, None, 1), (1, "two:7171", 1), (2, None, 1)), HERE)
    assert [known.place(n).host for n in range(3)] == [HERE, THERE, HERE]
    assert known.hosts() == [HERE, THERE]


def test_a_shard_that_no_map_names_is_looked_for_where_the_map_came_from() -> None:
    known = ShardMap(hello((1, "two:7171", 1)), HERE)
    assert known.place(2).host == HERE
    known.take(hello((2, "two:7171", 1)), HERE)
    assert known.place(2).host == THERE


def test_the_higher_epoch_counts_and_of_equal_ones_only_that_of_who_must_know() -> None:
    known = ShardMap(hello((0, "one:7170", 5)), HERE)
    known.take(hello((0, "two:7171", 4)), HERE)
    known.take(hello((0, "two:7171", 5)), HERE)
    assert known.place(0).host == HERE
    known.take(hello((0, "two:7171", 5)), HERE, doubted=0)
    assert known.place(0).host == THERE
    known.take(hello((0, "three:1", 6)), HERE)
    assert known.place(0).host == ("three", 1)
    assert not known.take_move({"shard": 0, "address": "two:7171", "epoch": 5}, 0)
    assert known.place(0).host == ("three", 1)
    assert known.take_move({"shard": 0, "address": "two:7171", "epoch": 6}, 0)
    assert known.place(0).host == THERE
    assert not known.take_move({"shard": 0, "address": None, "epoch": 7}, 0)


def test_another_cluster_is_refused_and_changes_nothing() -> None:
    known = ShardMap(hello((0, "one:7170", 1)), HERE)
    with pytest.raises(Unavailable, match="another cluster"):
        known.take(hello((0, "two:7171", 9), cluster="other"), THERE)
    assert known.place(0).host == HERE


def test_an_address_that_is_none_is_told() -> None:
    assert parse_host("[::1]:7170") == ("::1", 7170)
    for text in ("http://one:1", "one:x", "one:1,two:2", ""):
        with pytest.raises(Unavailable, match="is none"):
            parse_host(text or "embedded:x")
