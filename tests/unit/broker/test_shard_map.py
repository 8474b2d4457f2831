"""The map of shards as a process knows it: the higher epoch counts."""

from __future__ import annotations

from fasti.broker.shard_map import Leader, ShardMap, moved


def test_the_higher_epoch_counts() -> None:
    known = ShardMap({0: "a:1", 1: None})
    assert known.leader(0) == Leader(1, "a:1")
    assert known.note(0, 3, "b:1")
    assert not known.note(0, 2, "a:1")
    assert not known.note(0, 3, "c:1")
    assert known.leader(0) == Leader(3, "b:1")
    assert known.note(1, 1, "b:1"), "it was not known where"
    assert known.leader(2) == Leader(1, None)


def test_what_is_forgotten_is_told_by_the_next_leader_of_any_epoch_not_lower() -> None:
    known = ShardMap()
    known.note(0, 5, "a:1")
    known.forget(0, 4)
    assert known.address(0) == "a:1"
    known.forget(0, 5)
    assert known.leader(0) == Leader(5, None)
    assert not known.note(0, 4, "b:1")
    assert known.note(0, 6, "b:1")


def test_hello_leaves_out_what_is_not_here_and_not_known() -> None:
    known = ShardMap({1: "b:1"}, epoch=4)
    assert known.to_json(3, here={0}) == [
        {"shard": 0, "address": None, "epoch": 4},
        {"shard": 1, "address": "b:1", "epoch": 4},
    ]


def test_moved_names_the_leader() -> None:
    assert moved(2, Leader(7, None)).details == {"shard": 2, "address": None, "epoch": 7}
    assert "at b:1" in moved(2, Leader(7, "b:1")).message
