"""A consumer of several shards in virtual time: places shared out, due order, fairness, losses."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.client.machines.consumer_rig import LEASE_US, Stored
from tests.unit.client.machines.shards_rig import ShardsRig

SHARDS = 3
ACTIONS = st.one_of(
    st.tuples(st.just("pump"), st.just(0), st.just(1)),
    st.tuples(st.just("pump"), st.just(0), st.just(1)),
    st.tuples(st.just("take"), st.just(0), st.integers(1, 4)),
    st.tuples(
        st.sampled_from(["ack", "ack", "nack", "release"]),
        st.integers(0, SHARDS - 1),
        st.integers(1, 3),
    ),
    st.tuples(
        st.sampled_from(["poll", "arrive", "reply"]), st.integers(0, SHARDS - 1), st.integers(1, 4)
    ),
    st.tuples(st.sampled_from(["lose", "refuse"]), st.integers(0, SHARDS - 1), st.just(1)),
    st.tuples(
        st.just("advance"),
        st.just(0),
        st.sampled_from([1_000, 6_000, 30_000, 60_000, 200_000, 1_100_000, LEASE_US]),
    ),
)


def play(rig: ShardsRig, actions: list[tuple[str, int, int]]) -> None:
    for name, shard, count in actions:
        side = rig.sides[shard]
        if name == "advance":
            rig.advance(count)
        elif name == "pump":
            rig.pump()
        elif name == "refuse":
            side.broker.refuse = True
        elif name in ("ack", "nack", "release"):
            for place in range(count):
                side.finish(name, place)
        else:
            for _ in range(count):
                rig.take() if name == "take" else getattr(side, name)()
                rig.check()


@pytest.mark.parametrize("prefetch", [None, 1, 2, 4, 12])
@given(
    actions=st.lists(ACTIONS, min_size=20, max_size=80),
    dues_us=st.lists(
        st.lists(st.sampled_from([-5_000_000, 0, 500, 50_000, 100_000, 250_000]), max_size=5),
        min_size=SHARDS,
        max_size=SHARDS,
    ),
    ahead_us=st.lists(st.sampled_from([-3_000_000, 0, 700]), min_size=SHARDS, max_size=SHARDS),
)
def test_whatever_comes_in_whatever_order(
    prefetch: int | None,
    actions: list[tuple[str, int, int]],
    dues_us: list[list[int]],
    ahead_us: list[int],
) -> None:
    """Nothing is delivered early by the clock of its own broker, out of turn, twice or without a lease, never
    are more here than `prefetch`, and everything is finished in the end.
    """
    rig = ShardsRig(prefetch, dues_us, ahead_us)
    play(rig, actions)
    rig.settle()
    for side in rig.sides:
        for message_id in side.stale:
            assert len([one for one in side.delivered if one[0] == message_id]) > 1


def test_places_are_shared_out() -> None:
    rig = ShardsRig(16, [[] for _ in range(8)])
    rig.pump()
    assert [side.broker.credit for side in rig.sides] == [2] * 8


def test_a_shard_with_all_messages_gets_all_places() -> None:
    rig = ShardsRig(16, [[0] * 40, *([] for _ in range(7))])
    rig.pump()
    rig.run_for(10_000)
    rig.take_all()
    assert rig.in_hand == [16, 0, 0, 0, 0, 0, 0, 0]


def test_an_idle_shard_can_send_at_once_while_another_is_busy() -> None:
    rig = ShardsRig(None, [[0] * 40, [300_000], [300_000]])
    rig.holdings.takers = 1
    rig.places.window.want(4)
    rig.pump()
    rig.run_for(30_000)
    assert all(side.broker.credit > 0 for side in rig.sides[1:])


def test_one_place_goes_round_and_nothing_comes_in_vain() -> None:
    """Where there is one place for four shards with backlogs, each has its turn, and no message comes that
    has to go back.
    """
    rig = ShardsRig(1, [[0] * 10 for _ in range(4)])
    rig.pump()
    turns = []
    while not rig.all_done:
        taken = rig.take()
        assert taken is not None
        shard = rig.sides.index(rig.side_of(taken[0]))
        turns.append(shard)
        rig.finish("ack", shard)
        rig.run_for(1_000)
    assert len(turns) == 40
    for begin in range(4, 40, 4):
        assert sorted(turns[begin : begin + 4]) == [0, 1, 2, 3]
    assert all(message.delivery == 1 for side in rig.sides for message in side.broker.messages)


def test_one_place_is_offered_to_all_where_the_first_have_nothing() -> None:
    rig = ShardsRig(1, [[], [], [], [100_000], []])
    rig.pump()
    rig.run_for(50_000)
    assert [side.broker.credit for side in rig.sides] == [1, 1, 1, 0, 1]
    rig.run_for(60_000)
    assert rig.take() is not None


def test_due_order_over_shards() -> None:
    rig = ShardsRig(64, [[0, 40_000, 80_000], [10_000, 50_000], [20_000, 30_000, 60_000, 70_000]])
    rig.pump()
    rig.run_for(5_000)
    dues = []
    for _ in range(0, 100_000, 10_000):
        for run, row in rig.take_all():
            dues.append(run.due_list()[row])
        rig.run_for(10_000)
    assert dues == sorted(dues)
    assert len(dues) == 9


def test_one_that_waits_here_is_not_passed_over_for_ever() -> None:
    """A shard with an old backlog and a slow handler: the other shards' messages have their turns."""
    rig = ShardsRig(8, [[-60_000_000] * 200, [0] * 5, [0] * 5])
    rig.pump()
    shards: Counter[int] = Counter()
    for _ in range(40):
        taken = rig.take()
        assert taken is not None
        shard = rig.sides.index(rig.side_of(taken[0]))
        shards[shard] += 1
        rig.run_for(20_000)
        rig.finish("ack", shard)
        rig.pump()
    assert shards[1] == shards[2] == 5


def test_what_exceeds_the_prefetch_goes_back_unopened() -> None:
    rig = ShardsRig(2, [[], [], [], []])
    rig.pump()
    rig.run_for(20_000)
    # Each has credit that stands; now all of them have a message at once.
    for side in rig.sides:
        side.broker.messages.append(Stored(1, side.clock.at_us))
        side.broker.deliver()
    rig.pump()
    assert sum(side.machine.custody.unfinished for side in rig.sides) == 2
    assert sum(message.state == "ready" for s in rig.sides for message in s.broker.messages) == 2
    rig.settle()
    assert all(message.attempts == 1 for side in rig.sides for message in side.broker.messages)


def test_the_others_go_on_while_one_shard_is_away() -> None:
    rig = ShardsRig(8, [[0] * 20, [0] * 20, [0] * 20, [0] * 20])
    rig.pump()
    rig.take_all()
    away = rig.sides[2]
    away.lose()
    away.machine._retry_at = float("inf")
    held = len(away.in_hand)
    for _ in range(40):
        for shard in (0, 1, 3):
            while rig.sides[shard].in_hand:
                rig.finish("ack", shard)
        rig.run_for(10_000)
        rig.take_all()
    assert [rig.done(shard) for shard in (0, 1, 3)] == [20, 20, 20]
    assert held == len(away.in_hand) > 0
    # What was in hand keeps its lease, if it comes back in time, and its credit is shared anew.
    away.machine._retry_at = 0.0
    rig.settle()
    assert all(message.attempts == 1 for message in away.broker.messages)


def test_nothing_is_kept_from_other_consumers_while_user_code_is_busy() -> None:
    """One slow handler, four shards with messages: all but the one in hand go back, and none is asked for."""
    rig = ShardsRig(None, [[0] * 10 for _ in range(4)])
    rig.holdings.takers = 1
    rig.pump()
    assert rig.take() is not None
    rig.holdings.takers = 0
    rig.run_for(200_000)
    assert sum(side.machine.custody.unfinished for side in rig.sides) == 1
    assert sum(side.broker.credit for side in rig.sides) == 0
    # It is finished, and wants the next one.
    rig.finish_all()
    rig.holdings.takers = 1
    rig.take()
    rig.run_for(10_000)
    assert sum(rig.in_hand) == 1 or rig.take() is not None
    rig.settle()


def test_quick_handlers_widen_the_window_for_all_shards() -> None:
    rig = ShardsRig(None, [[0] * 300 for _ in range(4)])
    rig.holdings.takers = 1
    rig.pump()
    for _ in range(3_000):
        if rig.all_done:
            break
        rig.take_all()
        rig.finish_all()
        rig.run_for(1_000)
    assert rig.all_done
    assert rig.places.window.size > 16
