"""Shards over members: by weight, and as stable as members are."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasti.cluster.placement import Ranking, place_shards, rank_members

names = st.text("abcdefgh-0123456789", min_size=1, max_size=8)
clusters = st.dictionaries(names, st.floats(0.1, 8), min_size=1, max_size=8)
SHARDS = range(64)
FIXED = ["bca", "acb", "bac", "cba", "cab", "abc", "bca", "bca", "acb", "acb", "cba", "cab"]


def test_the_first_leads_and_the_second_stands_by() -> None:
    ranking = rank_members(0, {"a": 1, "b": 1, "c": 1})
    assert sorted(ranking.names) == ["a", "b", "c"]
    first, second, third = ranking.names
    assert (ranking.first, ranking.followers) == (first, (second,))
    assert [ranking.wait_ms(name) for name in (first, second, third, "d")] == [0, 300, 600, None]


def test_two_standbys_and_none() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    two, none = rank_members(3, weights, 2), rank_members(3, weights, 0)
    assert len(two.followers) == 2
    assert [two.rank(name) for name in two.names] == [0, 1, 2, 3]
    assert none.followers == ()
    assert [none.wait_ms(name) for name in none.names] == [0, 300, 600, 900]


def test_nobody_is_there() -> None:
    assert rank_members(0, {}) == Ranking((), 1)
    assert rank_members(0, {"a": 0}).first is None


@pytest.mark.parametrize("standbys", [-1, 3])
def test_standbys_out_of_range(standbys: int) -> None:
    with pytest.raises(ValueError, match="standbys must be from 0 to 2"):
        rank_members(0, {"a": 1}, standbys)


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_weights_that_are_none(weight: float) -> None:
    with pytest.raises(ValueError, match="the weight of a must be"):
        rank_members(0, {"a": weight})


def test_the_arithmetic_is_fixed_for_all_versions() -> None:
    """Brokers of two versions must agree: a change here moves shards in every cluster."""
    leaders = [rank_members(shard, {"a": 1, "b": 1, "c": 1}).names for shard in range(12)]
    assert ["".join(order) for order in leaders] == FIXED


@given(clusters, st.data())
def test_a_member_that_leaves_moves_only_its_own_shards(
    weights: dict[str, float], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(weights)))
    left = {name: weight for name, weight in weights.items() if name != gone}
    before, after = place_shards(SHARDS, weights, 2), place_shards(SHARDS, left, 2)
    for shard in SHARDS:
        assert [name for name in before[shard].names if name != gone] == list(after[shard].names)


@given(clusters, names, st.floats(0.1, 8))
def test_a_member_that_joins_takes_shards_and_moves_none_between_others(
    weights: dict[str, float], name: str, weight: float
) -> None:
    joined = {**weights, name: weight}
    for shard, ranking in place_shards(SHARDS, joined).items():
        if ranking.first != name and name not in weights:
            assert ranking.first == rank_members(shard, weights).first


@given(clusters)
def test_the_order_in_which_members_are_seen_is_of_no_account(weights: dict[str, float]) -> None:
    turned = dict(reversed(weights.items()))
    assert place_shards(SHARDS, weights) == place_shards(SHARDS, turned)


def test_shards_are_spread_by_weight() -> None:
    weights = {"a": 1, "b": 1, "c": 2}
    leads = Counter(rank_members(shard, weights).first for shard in range(4000))
    assert all(abs(leads[name] - 1000 * weight) < 120 for name, weight in weights.items())
