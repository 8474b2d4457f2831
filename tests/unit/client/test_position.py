"""Places in the feeds of one shard and of several: as text and back, and which comes before which."""

from __future__ import annotations

import pickle

import pytest

from fasti.client.position import Position, by_shard
from fasti.errors import InvalidArgument

ZERO, ONE, TEN = "0.9f3c01d2ab45e678", "1.00000000000000aa", "10.00000000000000bb"


def test_a_position_of_one_shard_is_written_as_before() -> None:
    position = Position(ZERO, 123)
    assert str(position) == f"{ZERO}:123"
    assert Position.parse(str(position)) == position
    assert (position.shard, position.frame, position.frames) == (ZERO, 123, {ZERO: 123})
    assert Position.of({ZERO: 123}) == position
    assert position < Position(ZERO, 124)
    assert position.moved(ZERO, 7) == Position(ZERO, 7)
    assert eval(repr(position)) == position


def test_a_position_of_several_names_each_in_the_order_of_their_numbers() -> None:
    position = Position.of({TEN: 3, ONE: 2, ZERO: 1})
    assert str(position) == f"{ZERO}:1,{ONE}:2,{TEN}:3"
    assert Position.parse(str(position)) == position == Position.of({ZERO: 1, ONE: 2, TEN: 3})
    assert pickle.loads(pickle.dumps(position)) == position
    assert len({position, Position.parse(str(position))}) == 1
    assert position.moved(ONE, 9).frames == {ZERO: 1, ONE: 9, TEN: 3}
    assert eval(repr(position)) == position
    with pytest.raises(InvalidArgument, match="3 shards"):
        _ = position.frame


def test_of_two_positions_one_comes_first_if_it_does_in_every_feed() -> None:
    low, high = Position.of({ZERO: 1, ONE: 2}), Position.of({ZERO: 1, ONE: 3})
    across = Position.of({ZERO: 2, ONE: 1})
    assert low < high
    assert low <= high
    assert high > low
    assert high >= low
    assert low <= low
    assert not low < low
    for one, other in ((low, across), (across, high), (low, Position.of({ZERO: 9, TEN: 9}))):
        assert not one < other
        assert not one > other


@pytest.mark.parametrize(
    "text", ["", "0:1", f"{ZERO}:1,", f"{ZERO}:1,{ONE}", f"{ZERO}:1,0.00000000000000aa:2"]
)
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Position.parse(text)


def test_a_position_must_name_each_shard() -> None:
    assert [str(place) for place in by_shard({ONE: 2, ZERO: 1}, 2)] == [f"{ZERO}:1", f"{ONE}:2"]
    for frames in ({ZERO: 1}, {ZERO: 1, TEN: 2}, {ZERO: 1, ONE: 2, TEN: 3}):
        with pytest.raises(InvalidArgument, match="each of its 2 shards"):
            by_shard(frames, 2)
    with pytest.raises(InvalidArgument, match="each of its 1 shards"):
        by_shard({ZERO: 1, ONE: 2}, 1)
